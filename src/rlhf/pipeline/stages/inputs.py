"""What stages open before they train, and the model folder they leave."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf.config.model import ModelConfig
from rlhf.config.regularizers import EWCConfig, PtxConfig
from rlhf.config.row_filter import RowFilter
from rlhf.config.stage_inputs import PolicyStage, PolicyTraining
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset, SFTDataset, TokenizedDataset
from rlhf.data.message_text import counted
from rlhf.data.pack import Group
from rlhf.data.row_report import left_out
from rlhf.data.verifiable import count_unverifiable
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import ConfigError, DataError
from rlhf.files import check_space
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model, context_length
from rlhf.models.sharded_models import saveable_on_main
from rlhf.models.weights import mapped_weights
from rlhf.pipeline.stages.context import StageContext, seed_of
from rlhf.seeds import derive_seed
from rlhf.training.penalties import ElasticWeightConsolidation
from rlhf.training.ptx import LanguageModelTerm
from rlhf.version import __version__

if TYPE_CHECKING:
    from rlhf.models.process_reward import ProcessRewardModel
    from rlhf.models.reward import RewardModel

ROWS_FOR_SELF_CHECK = 3
"""Rows that are scored every way before a stage begins."""


DataT = TypeVar("DataT", bound=TokenizedDataset[Any])


def load_policy(config: ModelConfig, at: StageContext, *, seed: int) -> PolicyModel:
    """A policy that is asked, not trained."""
    return PolicyModel.from_pretrained(at.model(config), seed=seed)


def load_for_training(config: ModelConfig, at: StageContext, *, seed: int) -> PolicyModel:
    """A policy that is trained."""
    if config.dtype != "float32" and config.lora is None:
        at.log.alarm(
            f"Weights in {config.dtype} round small steps away; to train all of them use dtype: float32 with autocast: bfloat16."
        )
    with loading_to_train():
        return load_policy(config, at, seed=seed)


def loading_to_train() -> AbstractContextManager[None]:
    """For loading a model that is trained: over ranks it is cut into shards before it takes a step, and no rank needs a copy of it."""
    return mapped_weights(current_ranks().size > 1)


def open_datasets(
    stage: Any, at: StageContext, kind: Any, streaming: Any, model: Any, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Training and held-out rows; one that is longer than the model's context is reported by file and line, before anything is trained."""
    limit = longest_row(stage.max_length, model)
    options = {**options, "max_length": limit, "on_bad_row": stage.on_bad_row, "columns": stage.columns}
    workers, source = stage.data_workers, at.paths(stage.data)
    with at.naming("eval_data"):
        held_out = (
            kind(at.paths(stage.eval_data), model.tokenizer, workers=workers, **options)
            if stage.eval_data is not None
            else None
        )
    if stage.streaming and workers > 1:
        raise ConfigError(
            f"stages.{at.name}.data_workers: a stream is tokenized as it is read; leave data_workers out."
        )
    if stage.streaming and stage.row_filter is not None:
        raise ConfigError(
            f"stages.{at.name}.row_filter: a stream is not filtered; filter the file with `rlhf data dedup`."
        )
    if stage.streaming:
        if streaming is None:
            raise ConfigError(
                f"stages.{at.name}.streaming: {stage.kind} scores its reference before the first step and needs all rows."
            )
        if stage.eval_frac:
            raise ConfigError(f"stages.{at.name}.eval_frac: a stream has no length to take a share of; give eval_data.")
        seed = derive_seed(seed_of(stage.seed), "stream")
        stream = streaming(
            source, model.tokenizer, limit=stage.limit, shuffle_buffer=stage.shuffle_buffer, seed=seed, **options
        )
        return stream, held_out
    with at.naming("data"):
        train = kind(source, model.tokenizer, limit=stage.limit, workers=workers, **options)
    at.log.write("note", message=f"data: {train.report.to_text()}")
    train = filtered_rows(train, stage.row_filter, at, "data")
    if held_out is not None:
        at.log.write("note", message=f"eval_data: {held_out.report.to_text()}")
        _tell_rows_in_both(train, held_out, at)
    elif stage.eval_frac:
        try:
            train, held_out = train.split(stage.eval_frac, seed=stage.split_seed, by=stage.eval_split)
        except DataError as err:
            raise DataError(f"stages.{at.name}.eval_frac: {err}") from None
        parts = f"{len(held_out):,} of these held out (eval_frac {stage.eval_frac:g}), {len(train):,} learned from"
        at.log.write("note", message=f"eval_data: {parts}")
    return train, held_out


def filtered_rows(data: DataT, wanted: RowFilter | None, at: StageContext, key: str) -> DataT:
    """The rows that a filter keeps; how many it leaves out is printed and logged."""
    if wanted is None:
        return data
    near = None if isinstance(wanted.dedup, bool) else wanted.dedup
    unique = data.deduplicate(near=near) if wanted.dedup else data
    with at.naming("row_filter"):
        kept = unique.filter_length(min_tokens=wanted.min_length, max_tokens=wanted.max_length)
    line = (
        f"{key}: {counted(len(data) - len(unique), 'duplicate')} and {len(unique) - len(kept):,} too short or too long left out, "
        f"{len(kept):,} of {counted(len(data), 'row')} kept"
    )
    at.log.write("note", message=line)
    at.log.say(f"  {line}")
    return kept


def _tell_rows_in_both(train: Iterable[Group], held_out: Sequence[Group], at: StageContext) -> None:
    """An alarm for held-out rows that are learned from, token for token."""
    known = {_tokens_of(group) for group in train}
    both = sum(_tokens_of(group) in known for group in held_out)
    if both:
        at.log.alarm(
            f"{at.name}: {both:,} of {counted(len(held_out), 'row')} of eval_data {'is' if both == 1 else 'are'} in data too and learned "
            "from: what is measured on them says nothing about new rows. Take them out of either, or leave eval_data out and give eval_frac."
        )


def _tokens_of(group: Group) -> tuple[tuple[int, ...], ...]:
    return (tuple(group.prefix), *(tuple(branch.tokens) for branch in group.branches))


def longest_row(max_length: int | None, model: PolicyModel | RewardModel | ProcessRewardModel) -> int | None:
    """Tokens that a row may have: what the settings say, and no more than the model was made for."""
    network: Any = model.model if isinstance(model, PolicyModel) else model.members[0]
    limits = [limit for limit in (max_length, context_length(base_model(network))) if limit is not None]
    return min(limits, default=None)


def choose_path(model: PolicyModel | RewardModel | ProcessRewardModel, data: Any, at: StageContext) -> None:
    """The self-check of every run: a few rows scored every way."""
    cursor = data.state_dict() if hasattr(data, "state_dict") else None
    groups = list(itertools.islice(iter(data), ROWS_FOR_SELF_CHECK))
    if cursor is not None:
        data.load_state_dict(cursor)  # a stream gives its first rows to training all the same
    choice = model.choose_path(groups)
    at.log.write("note", message=f"Scoring path: {choice.path} ({choice.reason}).")
    if choice.path != "packed":
        at.log.alarm(f"Scoring takes the {choice.path} path, slower than packed: {choice.reason}.")


def read_prompts(
    source: str | list[str],
    policy: PolicyModel,
    at: StageContext,
    *,
    key: str = "prompts",
    row_filter: RowFilter | None = None,
    **options: Any,
) -> list[Prompt]:
    """All prompts of a data source, which stands under ``key`` of the stage."""
    with at.naming(key):
        data = GRPODataset(at.paths(source), policy.tokenizer, **options)
    at.log.write("note", message=f"prompts: {data.report.to_text()}")
    prompts = list(filtered_rows(data, row_filter, at, key))
    with at.naming(key):
        if line := count_unverifiable(prompts):
            at.log.write("note", message=f"{key}: {line}")
            at.log.say(f"  {key}: {line}")
    return prompts


def penalties_of(stage: PolicyTraining, policy: PolicyModel, at: StageContext) -> list[ElasticWeightConsolidation]:
    """What the settings hold a policy to, in addition to its reference: to be appended to a trainer's, while the policy is as it came."""
    if stage.ewc is None:
        return []
    ewc, seed = stage.ewc, derive_seed(seed_of(getattr(stage, "seed", None)), "ewc")
    rows = _rows_to_keep("ewc.data", ewc, policy, at, limit=ewc.rows)
    at.log.say(f"  measuring what {counted(len(rows), 'row')} of ewc.data depend on")
    return [ElasticWeightConsolidation(policy, rows, coef=ewc.coef, targets=ewc.targets, seed=seed)]


def language_model_term(stage: PolicyStage, policy: PolicyModel, at: StageContext) -> LanguageModelTerm | None:
    """Rows whose likelihood every step adds; None where there are none, or they have no weight."""
    ptx = stage.ptx
    if ptx is None or ptx.coef == 0:
        return None
    rows = _rows_to_keep("ptx.data", ptx, policy, at)
    seed = derive_seed(seed_of(stage.seed), "ptx")
    return LanguageModelTerm(rows, coef=ptx.coef, batch_size=ptx.batch_size, seed=seed)


def _rows_to_keep(
    key: str, config: EWCConfig | PtxConfig, policy: PolicyModel, at: StageContext, *, limit: int | None = None
) -> SFTDataset:
    """Rows that a policy is to remember, the start of those that are longer than its context."""
    with at.naming(key):
        rows = SFTDataset(
            at.paths(config.data), policy.tokenizer, train_on=config.train_on,
            limit=limit, max_length=longest_row(None, policy), truncation="keep_start",
        )  # fmt: skip
    at.log.write("note", message=f"{key}: {rows.report.to_text()}")
    return rows


def save_model(
    model: PolicyModel | RewardModel | ProcessRewardModel, stage: Any, at: StageContext, metrics: Mapping[str, Any]
) -> None:
    """The stage's ``model`` folder, with a card that says where it came from; of several ranks, which all call this, rank 0 writes it."""
    ranks = current_ranks()
    about = {
        "stage": at.name,
        "summary": f"Made by the `{stage.kind}` stage of an rlhf recipe.",
        "version": __version__,
        "base_model": stage.model.path or "random weights",
        "data": stage.data if hasattr(stage, "data") else stage.prompts,
        "recipe": stage.model_dump(mode="json", exclude_unset=True),
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float)},
    }
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if ranks.is_main:
        check_space(at.folder, needed if ranks.size == 1 else 2 * needed, purpose="The model")
    with saveable_on_main(model, at.folder):
        if ranks.is_main:
            model.save_pretrained(at.folder / "model", card=about)


def num_rows(data: Any, noun: str) -> str:
    """``55 rows (5 of 60 left out: 4 bad, 1 too long)``: for people, so that no row is left out silently."""
    if not hasattr(data, "__len__"):
        return f"streamed {noun}s"
    counts = left_out(data.report)
    omitted = f" ({sum(counts.values()):,} of {data.report.num_rows:,} left out: " if counts else ""
    omitted += ", ".join(f"{count:,} {what}" for what, count in counts.items()) + ")" if counts else ""
    return f"{len(data)} {noun}{'' if len(data) == 1 else 's'}{omitted}"
