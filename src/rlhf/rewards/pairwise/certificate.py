"""The certificate of a judge: a file that says how far it agrees with people, and what exactly was measured.

``rlhf judge certify`` writes it (``rlhf.evaluation.judge_certificate``). It is about one model, one wording of its prompt, the settings that
change its answers, one set of labels and the guidelines they were given by, each kept as a hash. Whatever changes makes it *stale*, and
what changed is named.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.base import BaseConfig
from rlhf.config.judge_base import JudgeBase
from rlhf.config.judge_types.function_judge import FunctionJudgeConfig
from rlhf.config.judge_types.jury import JuryJudgeConfig
from rlhf.config.judges import read_judge
from rlhf.errors import ConfigError, DataError, RLHFError
from rlhf.files import sha256
from rlhf.rewards.pairwise.human_votes import STORE_READER
from rlhf.rewards.pairwise.model_identity import model_identity
from rlhf.rewards.pairwise.templates import load_template
from rlhf.rewards.pairwise.votes import digest

SCHEMA = 1
CERTIFIED, REFUSED = "certified", "refused"
SEAL = "sha256"
"""Key of the hash of everything else in the file."""
PARTS = frozenset({"verdict", "reasons", "judge", "labels", "guidelines"})
WORDS = {
    "type": "the type of judge",
    "path": "the model",
    "model": "the model",
    "url": "the endpoint's address",
    "template": "the prompt template",
    "temperature": "the temperature",
    "max_tokens": "the longest answer (max_tokens)",
    "arguments": "the arguments sent with each request",
    "combine": "how the jury combines its members",
    "members": "the number of members",
    "function": "the function",
    "tie_band": "the tie band",
}
"""Setting -> what it is called where it changed; others by their own name."""


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """What a certificate still says of a judge."""

    changed: tuple[str, ...] = ()
    """What is another one since, each in words such as ``the prompt template``; empty where it holds."""
    unchecked: tuple[str, ...] = ()
    """What could not be compared, and why, such as labels that are not on this machine."""

    @property
    def is_stale(self) -> bool:
        """Whether anything changed."""
        return bool(self.changed)


def bindings(config: Any) -> dict[str, str]:
    """What a certificate is bound to of a judge's settings: setting -> hash, or the value where that is short and tells more.

    Settings that change no verdict (prices, rates, caches, the name) are left out; whatever else there is, or will be, is in.

    Args:
        config: As of ``rlhf.config.judges.read_judge``; models as folders or hub names, not as ``stage:NAME``.

    Raises:
        ConfigError: The settings are wrong, or the prompt template is not there.
    """
    settings = read_judge(config)
    hashes = {"type": settings.type_name()}
    if isinstance(settings, FunctionJudgeConfig):
        hashes["function"] = digest(_function(settings.function))
    models = {key for key, _ in settings.models_asked()}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if name in settings.not_deciding or name in hashes:
            continue
        if isinstance(settings, JuryJudgeConfig) and name == "members":
            hashes["members"] = str(len(value))
            for place, member in enumerate(value):
                hashes |= {f"members.{place}.{key}": bound for key, bound in bindings(member).items()}
        elif name in models:
            if value.startswith("stage:"):
                raise ConfigError(
                    f"The judge's {name} is {value!r}, a stage; outside a recipe give the folder of its model."
                )
            hashes[name] = digest(model_identity(value))
        elif name == "template":
            hashes[name] = load_template(value).identity["hash"]
        else:
            hashes[name] = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashes


def _function(name: str) -> Any:
    """A rule of the library by its name, a function of somebody's with its source."""
    if ":" not in name:
        return name
    from rlhf.rewards.functions import load_function
    from rlhf.rewards.pairwise.function_judge import function_identity

    return function_identity(load_function(name))


def check_certificate(config: Any, certificate: Mapping[str, Any], *, folder: Path | str = ".") -> CertificateCheck:
    """What has changed since a certificate was written.

    Args:
        config: The judge as it is now; see ``bindings``.
        certificate: As of ``read_certificate``.
        folder: Where the certificate lies: its labels and guidelines are looked for from there.

    Raises:
        ConfigError: As of ``bindings``.
    """
    before, now = certificate["judge"]["bindings"], bindings(config)
    changed = [
        _called(part, settings=config) for part in dict.fromkeys((*before, *now)) if before.get(part) != now.get(part)
    ]
    if before.get("type") != now["type"]:
        changed = [WORDS["type"]]
    unchecked = []
    for what in ("labels", "guidelines"):
        if (bound := certificate[what]) is None:
            continue
        try:
            is_other = source_hash(bound["source"], kind=bound["kind"], folder=folder) != bound["hash"]
        except (RLHFError, OSError) as err:
            unchecked.append(f"the {what} ({err})")
            continue
        changed += [f"the {what}"] if is_other else []
    return CertificateCheck(tuple(dict.fromkeys(changed)), tuple(unchecked))


def _called(part: str, *, settings: Any) -> str:
    name = part.rpartition(".")[2]
    word = WORDS.get(name, f"the setting {name}")
    if "." not in part:
        return word
    return f"{word} of member {int(part.split('.')[1]) + 1} of the jury"


def source_hash(source: str, *, kind: str, folder: Path | str = ".") -> str:
    """Hash of a file's bytes, or of what a preference store says: of its pairs with their judgments, or of its guidelines.

    Args:
        source: A path, relative to ``folder``, or the address of a store.
        kind: ``file``, ``store`` (its labels) or ``store guidelines``.
        folder: Where a relative path begins.

    Raises:
        DataError: There is no such file.
        RLHFError: The store can't be opened.
    """
    path = Path(folder) / Path(source).expanduser()
    place = source if "://" in source else str(path)
    if kind == "file":
        if not path.is_file():
            raise DataError(f"{path} is not there")
        return sha256(path)[:16]
    reader = importlib.import_module(STORE_READER)
    labels_or_guidelines: str = reader.labels_hash(place) if kind == "store" else reader.guidelines_hash(place)
    return labels_or_guidelines


def bound_source(source: str | Path, *, kind: str, folder: Path | str) -> dict[str, str]:
    """Where something comes from and its hash, for a certificate in ``folder``: paths are kept relative to it."""
    text = str(source)
    if "://" not in text:
        text = os.path.relpath(Path(text).expanduser().resolve(), Path(folder).resolve())
    return {"source": text, "kind": kind, "hash": source_hash(text, kind=kind, folder=folder)}


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a hash over all of it, so that an edit shows. It is no signature."""
    plain = json.loads(json.dumps(document))  # as it will be read
    return {**plain, SEAL: _hash_of(plain)}


def _hash_of(document: Mapping[str, Any]) -> str:
    told = {key: value for key, value in document.items() if key != SEAL}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def read_certificate(path: Path | str) -> dict[str, Any]:
    """A certificate from its file.

    Raises:
        DataError: It is not there, can't be read, is none, or was changed by hand.
    """
    try:
        certificate = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise DataError(f"{path} can't be read as the certificate of a judge: {err}.") from None
    if not isinstance(certificate, dict) or not certificate.keys() >= PARTS:
        raise DataError(
            f"{path} is no certificate of a judge: wanted {', '.join(sorted(PARTS))}; `rlhf judge certify` writes one."
        )
    if certificate.get("schema") != SCHEMA:
        raise DataError(
            f"{path} has schema {certificate.get('schema')!r}, and this version reads {SCHEMA}; certify the judge again."
        )
    if certificate.get(SEAL) != _hash_of(certificate):
        raise DataError(
            f"{path} was changed since it was written: the {SEAL} in it is not that of the rest. Restore it, or certify the judge again."
        )
    return certificate


PAIRS = "pairwise"
"""What a certificate is about: which of two completions is better."""


def certificate_problem(config: Any, *, asked: str = PAIRS) -> str | None:
    """Why the verdicts of a judge are not to be relied on yet, as a sentence; None where it is certified, or needs no certificate.

    Needed by prompted language models and by juries with one. A rule is a program that can be read, people are what others are measured
    by, and a reward model is measured on held-out pairs by its own stage.

    Args:
        config: As of ``bindings``.
        asked: What the judge is asked here; another question than which of two is better, such as for points, was not measured.

    Raises:
        ConfigError: The settings are wrong.
        DataError: The certificate can't be read, or was changed by hand.
    """
    settings = read_judge(config)
    if not settings.needs_certificate:
        return None
    name = judge_called(settings)
    path = getattr(settings, "certificate", None)
    if path is None:
        return (
            f"The judge {name} has no certificate: how far it agrees with people was not measured. `rlhf judge certify` measures it on "
            "items that people have judged."
        )
    return problem_in_certificate(settings, Path(path).expanduser(), asked=asked)


def problem_in_certificate(settings: JudgeBase, file: Path, *, asked: str = PAIRS) -> str | None:
    """Why a certificate does not vouch for a judge, whether it needs one or not; None where it does.

    Args:
        settings: Of the judge as it is now.
        file: The certificate.
        asked: As of ``certificate_problem``.

    Raises:
        ConfigError, DataError: As of ``certificate_problem``.
    """
    name = judge_called(settings)
    certificate = read_certificate(file)
    check = check_certificate(settings, certificate, folder=file.parent)
    if check.is_stale:
        return (
            f"The certificate of the judge {name} is stale: {' and '.join(check.changed)} changed since it was written ({file}). Certify "
            "the judge again."
        )
    if certificate["verdict"] != CERTIFIED:
        why = " ".join(str(reason["text"]) for reason in certificate["reasons"])
        return f"The judge {name} was refused a certificate: {why} ({file})"
    if asked != PAIRS:
        return (
            f"The certificate of the judge {name} is about which of two completions is better, and here it is asked for {asked}: how far "
            "that agrees with people was not measured."
        )
    return None


def asked_by(holder: BaseConfig) -> str:
    """What a section asks its judge: which of two is better, or another question, as a reward may."""
    mode = str(getattr(holder, "mode", PAIRS))
    if getattr(holder, "rubric", None) is not None:
        return f"{mode} by a rubric"
    return mode


def judge_called(settings: JudgeBase) -> str:
    """What sentences call a judge of which only the settings are known."""
    if settings.name is not None:
        return settings.name
    if isinstance(settings, JuryJudgeConfig):
        return f"jury of {', '.join(map(judge_called, settings.members))}"
    for key in ("model", "path", "function"):
        if (value := getattr(settings, key, None)) is not None:
            return str(value)
    return settings.type_name()
