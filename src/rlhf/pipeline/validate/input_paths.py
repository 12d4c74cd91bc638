"""Files, folders, functions' files and hub names: do they exist, and can they be read? No code is run, no weights are loaded."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
from pathlib import Path

from rlhf.config.error_messages import A_REWARD
from rlhf.config.learned_rewards import ProcessRewardConfig
from rlhf.config.model import ModelConfig
from rlhf.config.rewards import REWARD_KINDS, rewards_of
from rlhf.config.rule_rewards import LexiconRewardConfig
from rlhf.config.service_reward import ServiceRewardConfig
from rlhf.config.stage_union import Stage
from rlhf.config.verifier_rewards import JSONRewardConfig
from rlhf.data.sources import open_source
from rlhf.errors import ConfigError, DataError, ModelError, RLHFError, did_you_mean, did_you_mean_file
from rlhf.models.sources import EMBEDDED
from rlhf.pipeline.doctor.probes import is_hub_offline
from rlhf.pipeline.validate.inputs import (
    embedded_model,
    functions,
    is_hub_name,
    is_of_stage,
    is_readable,
    is_rows_name,
    judging_models,
    policies,
    reward_models,
    root_model,
    rows_inputs,
)
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.weights import PROCESS_SETTINGS, ModelFacts, read_model_folder, tokenizer_problem


def check_places(review: Review) -> None:
    """Look for everything that the stages read from outside the recipe."""
    for _, stage in review.each_stage():
        for rows in rows_inputs(stage):
            for source in rows.sources:
                _check_rows(review, rows.key, source)
        for key, config in (*policies(stage), *judging_models(stage)):
            _check_model(review, key, config)
        for key, source in reward_models(stage):
            _check_reward_model(review, stage, key, source)
        for key, function in functions(stage):
            with review.at(key, otherwise=ConfigError):
                find_in_source(function)
        _check_other_files(review, stage)


def facts_of(review: Review, config: ModelConfig) -> ModelFacts | None:
    """What is known of the model that a config leads back to; None where it is new, not here, or damaged."""
    root = root_model(review.recipe.stages, config)
    try:
        folder = model_folder(root) if root is not None else None
    except ModelError:
        return None  # not a valid name; reported with the key that uses it
    return _read_once(review, folder) if folder is not None else None


def model_folder(config: ModelConfig) -> Path | None:
    """The folder on this machine; None for a new model, or one of the hub that is not in its cache."""
    return local_folder(config.path, config.revision) if config.path is not None else None


def local_folder(name: str, revision: str | None = None, file: str = "config.json") -> Path | None:
    """The folder of a model name: a path, ``embedded``, or the hub's cache; None if it is none of them."""
    if name == EMBEDDED:
        return embedded_model()
    if not is_hub_name(name):
        return Path(name).expanduser()
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:
        raise ModelError(f"{name!r} is neither a folder here nor a name that the hub could have.") from None
    return Path(cached).parent if isinstance(cached, str) else None


def find_in_source(function: str) -> None:
    """Look for ``package.module:function`` or ``path/to/file.py:function`` by reading the file, without running it.

    Raises:
        ConfigError: There is no such file or module, it is not Python, or it has nothing of that name at its top level.
    """
    module, _, name = function.rpartition(":")
    path = Path(module).expanduser() if module.endswith(".py") else _module_file(module)
    if path is None or path.suffix != ".py":
        return  # a compiled module: only importing it tells
    if not path.is_file():
        near = did_you_mean_file(path.name, [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else [])
        raise ConfigError(f"There is no file {path}, where the function {name!r} should be.{near}")
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as err:
        line = getattr(err, "lineno", None)
        raise ConfigError(f"{path}{f', line {line}' if line else ''} is not valid Python: {err}.") from None
    made, bound, all_known = _top_level_names(tree)
    if name not in bound and all_known:
        known = ", ".join(sorted(n for n in made if not n.startswith("_"))) or "none"
        raise ConfigError(f"{path} has no function {name!r}.{did_you_mean(name, made)} Its functions: {known}.")


def _check_rows(review: Review, key: str, source: str) -> None:
    if is_of_stage(source) or is_rows_name(source):  # those are code, which is looked for with the functions
        return
    if is_hub_name(source):
        if not is_hub_offline():
            review.leave(f"data set {source} of the hub")
        else:
            review.warn(
                key,
                f"There is no file or folder {source} here; as a data set of the hub it must be in the cache, for "
                "HF_HUB_OFFLINE is set.",
                DataError,
            )
        return
    path = Path(source).expanduser()
    if path.exists() and not is_readable(path):
        review.error(key, f"{source} can't be read: this process has no permission to; change its mode.", DataError)
    elif not (path / "state.json").exists() and not (path / "dataset_dict.json").exists():
        with review.at(key):
            open_source(source)


def _check_model(review: Review, key: str, config: ModelConfig) -> None:
    if config.path is not None and not is_of_stage(config.path):
        facts = _check_folder(review, key, config)
        if facts is not None and facts.is_reward:
            review.error(
                key,
                f"{config.path} is a reward model: it gives scores, not words. Give the policy's folder.",
                ModelError,
            )
    source = config.tokenizer or config.path
    if source is not None and not is_of_stage(source) and not (config.tokenizer is None and is_hub_name(source)):
        with review.at(key, otherwise=ModelError):
            folder = local_folder(source, file="tokenizer_config.json")
            if folder is None:
                _not_cached(review, key, source, "tokenizer")
            elif (folder.is_dir() or config.tokenizer) and (problem := tokenizer_problem(folder)):
                review.error(f"{key}.tokenizer" if config.tokenizer else key, problem, ModelError)


def _check_reward_model(review: Review, stage: Stage, key: str, source: str) -> None:
    if is_of_stage(source):
        return
    if source.endswith(".py"):
        review.error(key, _no_function_named(Path(source).expanduser()), ConfigError)
        return
    if key.endswith(".source") and "/" not in source and is_hub_name(source):
        with review.at(key, otherwise=ModelError):
            if local_folder(source) is None:
                review.error(key, _no_reward(source), ConfigError)
                return
    facts = _check_folder(review, key, ModelConfig(path=source))
    wants_steps = any(
        f"{name}.source" == key for name, spec in rewards_of(stage) if isinstance(spec, ProcessRewardConfig)
    )
    if facts is not None and (facts.folder / PROCESS_SETTINGS).is_file() != wants_steps:
        what = "is not a process reward model: it has no" if wants_steps else "is a process reward model: it has an"
        other = "train one with `rlhf prm`" if wants_steps else f"write {{kind: process, source: {source}}}"
        review.error(key, f"{source} {what} {PROCESS_SETTINGS}; {other}.", ModelError)
        return
    if facts is not None and not facts.is_reward and not _classifies(facts):
        review.error(
            key,
            f"{source} is a language model ({', '.join(facts.architectures) or facts.family}), which returns text, not "
            "scores; give the folder of a reward model, or train one in a stage before.",
            ModelError,
        )


def _no_function_named(path: Path) -> str:
    """What to answer to a Python file without the name of a function."""
    if not path.is_file():
        near = did_you_mean_file(path.name, [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else [])
        return f"There is no file {path}; a function is named {path}:FUNCTION.{near}"
    try:
        made, _, _ = _top_level_names(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):
        made = set()
    known = sorted(name for name in made if not name.startswith("_"))
    return (
        f"{path} is a Python file; name the function, as in {path}:{known[0] if len(known) == 1 else 'FUNCTION'}."
        + (f" Its functions: {', '.join(known)}." if len(known) > 1 else "")
    )


def _no_reward(word: str) -> str:
    """What to answer to a bare word where a judge is wanted; reward models of the hub have an owner."""
    kinds = [kind.kind_name() for kind in REWARD_KINDS]
    near = f" Did you mean {{kind: {word}, ...}}?" if word in kinds else did_you_mean(word, BUILT_IN)
    return (
        f"{word!r} names no reward: there is no folder of that name, and a reward model of the hub is OWNER/NAME.{near} A "
        f"reward is {A_REWARD} ({', '.join(kinds)})."
    )


BUILT_IN = ("rules",)
"""Words that ``rlhf.config.rewards`` reads as a reward that is built in; a test compares them."""


def _check_folder(review: Review, key: str, config: ModelConfig) -> ModelFacts | None:
    """Complain about a model's folder; its facts where there is nothing to complain about."""
    assert config.path is not None
    with review.at(key, otherwise=ModelError):
        folder = local_folder(config.path, config.revision)
        if folder is None:
            _not_cached(review, key, config.path, "model")
            return None
        if review.deep and config.path != EMBEDDED and (folder / "config.json").is_file():
            from rlhf.models.checks import check_model_folder  # imports torch

            check_model_folder(folder, trust_remote_code=config.trust_remote_code, allow_pickle=config.allow_pickle)
        if config.allow_pickle and folder.is_dir() and not any(folder.glob("**/*.safetensors")):
            review.leave(f"the size of {config.path}, whose weights are pickles")
            return None
        facts = _read_once(review, folder)
        if facts is not None:
            return facts
        read_model_folder(folder)
    return None


def _check_other_files(review: Review, stage: Stage) -> None:
    for key, spec in rewards_of(stage):
        if isinstance(spec, LexiconRewardConfig):
            from rlhf.rewards.lexicon import read_lexicon

            with review.at(f"{key}.path"):
                read_lexicon(Path(spec.path).expanduser())
        if isinstance(spec, ServiceRewardConfig) and spec.headers:
            from rlhf.rewards.service import filled_header

            with review.at(f"{key}.headers"):
                for header, value in spec.headers.items():
                    filled_header(value, header)
        if isinstance(spec, JSONRewardConfig) and spec.json_schema is not None:
            from rlhf.rewards.verifiers.answers import BadReferenceError
            from rlhf.rewards.verifiers.json_answer import check_reference

            try:
                check_reference(spec.json_schema)
            except BadReferenceError as err:
                review.error(f"{key}.json_schema", f"It {err}.")
    rollouts = getattr(stage, "rollouts", None)  # a file of them, or how many a stage that trains makes
    if isinstance(rollouts, str) and not is_of_stage(rollouts):
        path = Path(rollouts).expanduser()
        if not path.is_file():
            near = did_you_mean_file(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
            review.error("rollouts", f"There is no file {rollouts}.{near}", DataError)


def _read_once(review: Review, folder: Path) -> ModelFacts | None:
    """The facts of a folder; None if it can't be used (reported once for each key that uses it)."""
    place = ("model", folder)
    if place not in review.shared:
        try:
            review.shared[place] = read_model_folder(folder)
        except (RLHFError, OSError, ValueError):
            review.shared[place] = None
    model_facts: ModelFacts | None = review.shared[place]
    return model_facts


def _not_cached(review: Review, key: str, name: str, what: str) -> None:
    parent = Path(name).parent
    near = did_you_mean(name, [EMBEDDED]) or did_you_mean_file(
        Path(name).name, [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    )
    if is_hub_offline():
        review.error(
            key,
            f"There is no folder {name} here, the hub's cache has no such {what}, and HF_HUB_OFFLINE disables "
            f"downloads; give a local folder, or download it first.{near}",
            ModelError,
        )
    else:
        text = f"There is no folder {name} here, so it must be a {what} of the hub; that was not checked.{near}"
        review.warn(key, text, ModelError)
        review.leave(f"{what} {name} of the hub")


def _classifies(facts: ModelFacts) -> bool:
    """Whether the folder is another's sequence classifier, which can be used as a reward model."""
    return any("SequenceClassification" in name or "RewardModel" in name for name in facts.architectures)


def _module_file(module: str) -> Path | None:
    """The file of a module, found without importing its packages; None for one that is not a file.

    Raises:
        ConfigError: There is no such module.
    """
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    for part in rest:
        locations = spec.submodule_search_locations if spec is not None else None
        # by the last part of its name: below a folder without __init__.py the whole name wants its package imported
        spec = importlib.machinery.PathFinder.find_spec(part, list(locations)) if locations is not None else None
    if spec is None:
        raise ConfigError(f"There is no module {module!r}; is its package installed, or its folder on PYTHONPATH?")
    return Path(spec.origin) if spec.origin is not None and spec.has_location else None


def _top_level_names(tree: ast.Module) -> tuple[set[str], set[str], bool]:
    """Functions and classes of a module, everything that it binds, and whether that is all.

    Definitions under an ``if`` or a ``try`` count; ``import *`` and a module's ``__getattr__`` may bring more.
    """
    made: set[str] = set()
    bound: set[str] = set()
    all_known = True
    todo: list[ast.AST] = list(tree.body)
    while todo:
        match node := todo.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
                continue  # what is inside is not at the top
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
                all_known &= all(alias.name != "*" for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
            case _:
                pass
        todo += ast.iter_child_nodes(node)
    return made, made | bound, all_known and "__getattr__" not in made
