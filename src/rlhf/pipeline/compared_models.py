"""What `rlhf compare` compares: models by folder, stage, hub name or alias, or files of completions; and their completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf.config.comparison import CompareConfig
from rlhf.data.contracts import CompletionRow, RowError, Text
from rlhf.data.expand import prompt_names, text_key
from rlhf.data.json_rows import read_jsonl
from rlhf.data.message_text import counted
from rlhf.data.read import open_rows
from rlhf.errors import ConfigError, DataError, ModelError, did_you_mean
from rlhf.files import sha256, write_jsonl
from rlhf.models.sources import check_there
from rlhf.pipeline.models import model_in, where_models_are
from rlhf.registry.registry import Registry
from rlhf.rewards.pairwise.model_identity import model_identity
from rlhf.rewards.pairwise.votes import digest
from rlhf.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two."""

    name: str
    """As people wrote it."""
    path: str
    """The folder, the hub name, or the file."""
    is_file: bool = False

    @property
    def content(self) -> str:
        """What tells it from any other, whatever it is called."""
        return sha256(self.path)[:16] if self.is_file else digest(model_identity(self.path))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "path": self.path, "content": self.content, "is_file": self.is_file}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion."""

    text: str
    ended: bool


@dataclass(slots=True, kw_only=True)
class Answers:
    """Completions of one side, by prompt."""

    prompts: list[Text]
    columns: list[dict[str, Any]]
    samples: list[list[Sample]]


def find_side(text: str, *, registry: str) -> Side:
    """What a name on the command line stands for.

    Raises:
        ModelError: A run with several models, or nothing of that name.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return Side(name=text, path=str(path), is_file=True)
    if path.is_dir():
        if (folder := model_in(path)) is not None:
            return Side(name=text, path=str(folder))
        models = where_models_are(path)
        raise ModelError(f"{text} is a folder without a model.{' ' if models else ''}{models}")
    aliases = Registry(registry).aliases() if Path(registry).is_dir() else {}
    if text in aliases:
        return Side(name=text, path=str(Registry(registry).path(text)))
    check_spelled(text, aliases)
    return Side(name=text, path=text)


def check_spelled(model: str, names: Iterable[str]) -> None:
    """Reject an unavailable model, with the names that could have been written in its place and that it resembles.

    Raises:
        ModelError: There is no such folder, and no such name on the hub or in its cache.
    """
    try:
        check_there(model)
    except ModelError as err:
        raise ModelError(f"{err}{did_you_mean(model, names)}") from None


def read_completions(path: str, *, limit: int | None = None) -> Answers:
    """Completions from a file of rows with ``prompt`` and ``completion``, as `rlhf generate` writes; several of a prompt are its samples.

    Raises:
        DataError: A row is none.
    """
    answers = Answers(prompts=[], columns=[], samples=[])
    places: dict[str, int] = {}
    for row in open_rows(path):
        if not isinstance(row, CompletionRow):
            raise RowError(
                row.where, f"a row of kind {row.kind}; wanted `prompt` and `completion`, as `rlhf generate` writes."
            )
        key = text_key(row.prompt)
        if key not in places:
            if limit is not None and len(places) == limit:
                continue
            places[key] = len(places)
            answers.prompts.append(row.prompt)
            answers.columns.append(
                {k: v for k, v in row.columns.items() if k not in ("model", "sampling", "logprob", "finish_reason")}
            )
            answers.samples.append([])
        text = row.completion if isinstance(row.completion, str) else str(row.completion[-1]["content"])
        ended = row.columns.get("finish_reason") != "length"
        answers.samples[places[key]].append(Sample(text=text, ended=ended))
    if not answers.prompts:
        raise DataError(f"{path} holds no completions.")
    return answers


def answers_of(
    config: CompareConfig, sides: tuple[Side, Side], folder: Path, *, progress: Any = None
) -> tuple[Answers, Answers]:
    """Completions of both sides on the same prompts, in the same order; those of models are sampled, and kept in ``folder``.

    Raises:
        ConfigError: Two models, and no prompts.
        DataError: The two do not answer the same prompts as often.
    """
    read = [read_completions(side.path, limit=config.limit) if side.is_file else None for side in sides]
    given = next((answers for answers in read if answers is not None), None)
    rows: Any
    if config.prompts is not None:
        rows = config.prompts
    elif given is not None:
        rows = [{"prompt": prompt, **columns} for prompt, columns in zip(given.prompts, given.columns, strict=True)]
    else:
        raise ConfigError("prompts: two models need prompts to be compared on; give --prompts FILE.")
    count = config.samples_per_prompt
    if given is not None and not config.differs("samples_per_prompt"):
        count = len(given.samples[0])
    of_side = [
        answers if answers is not None else _sampled(side, which, rows, count, config, folder, progress)
        for which, (side, answers) in enumerate(zip(sides, read, strict=True))
    ]
    return _together(of_side[0], of_side[1], sides)


def _sampled(
    side: Side, which: int, rows: Any, count: int, config: CompareConfig, folder: Path, progress: Any
) -> Answers:
    """From the file of an earlier start with the same settings, or from the model."""
    from rlhf.data.datasets import GRPODataset
    from rlhf.evaluation.sampled_completions import sample_completions
    from rlhf.models.policy import PolicyModel
    from rlhf.rollout.local import LocalEngine

    policy = PolicyModel.from_pretrained(side.path)
    prompts = list(GRPODataset(rows, policy.tokenizer, limit=config.limit))
    texts = [prompt.messages or prompt.text for prompt in prompts]
    ids = prompt_names(texts)
    answers = Answers(prompts=texts, columns=[dict(prompt.columns) for prompt in prompts], samples=[])
    key = digest([side.content, ids, count, config.sampling.model_dump(), config.seed, which])
    path = folder / f"{'ab'[which]}-{key}.jsonl"
    if path.is_file():
        kept = {str(raw.value["id"]): raw.value["samples"] for raw in read_jsonl(path, 0)}
        answers.samples = [[Sample(**sample) for sample in kept[name]] for name in ids]
        return answers
    prompts = [
        replace(prompt, id=name) for prompt, name in zip(prompts, ids, strict=True)
    ]  # samples are drawn by the id
    groups = sample_completions(
        LocalEngine(policy), prompts, num_samples=count, sampling=config.sampling,
        seed=derive_seed(config.seed, "evaluation", 1 - which), name=side.name, progress=progress,
    )  # fmt: skip
    answers.samples = [[Sample(text=c.text, ended=not c.truncated) for c in group] for group in groups]
    write_jsonl(
        path,
        (
            {"id": name, "prompt": text, "samples": [{"text": s.text, "ended": s.ended} for s in samples]}
            for name, text, samples in zip(ids, texts, answers.samples, strict=True)
        ),
    )
    return answers


def _together(a: Answers, b: Answers, sides: Sequence[Side]) -> tuple[Answers, Answers]:
    """b in the order of a."""
    places = {text_key(prompt): place for place, prompt in enumerate(b.prompts)}
    order = [places.get(text_key(prompt)) for prompt in a.prompts]
    missing = [prompt for prompt, place in zip(a.prompts, order, strict=True) if place is None]
    if missing or len(order) != len(b.prompts):
        one, other = (sides[1], sides[0]) if missing else (sides[0], sides[1])
        number = len(missing) or len(b.prompts) - len(order)
        first = f" (the first: {text_key(missing[0])[:60]!r})" if missing else ""
        raise DataError(
            f"{one.name} has no completion for {counted(number, 'prompt')} that {other.name} answered{first}; compare them on the same prompts."
        )
    same = [place for place in order if place is not None]
    b = Answers(prompts=a.prompts, columns=a.columns, samples=[b.samples[place] for place in same])
    for prompt, mine, theirs in zip(a.prompts, a.samples, b.samples, strict=True):
        if len(mine) != len(theirs):
            raise DataError(
                f"On the prompt {text_key(prompt)[:60]!r} {sides[0].name} has {counted(len(mine), 'completion')} and {sides[1].name} "
                f"{len(theirs)}; give the same number of each."
            )
    return a, b
