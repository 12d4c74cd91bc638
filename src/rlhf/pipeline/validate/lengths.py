"""Tokenizes a sample of each source: what will be truncated or dropped, and whether it fits the model. Loads no weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf.config.model import ModelConfig
from rlhf.config.stage_inputs import OfflineStage, RowsInput
from rlhf.config.stage_union import Stage
from rlhf.data.contracts import Row
from rlhf.data.message_text import counted
from rlhf.data.row_report import TokenizationReport
from rlhf.data.tokenization import tokenization
from rlhf.errors import DataError, ModelError
from rlhf.models.sources import EMBEDDED
from rlhf.pipeline.validate.input_paths import facts_of, local_folder
from rlhf.pipeline.validate.inputs import is_of_stage, policies, root_model, rows_inputs
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import FirstRows, read_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.data.plans import Item
    from rlhf.pipeline.validate.weights import ModelFacts

SAMPLE = 300
"""Rows tokenized of each source, taken at even distances."""
MANY = 0.1
"""Share of rows that may be left out or cut before it is worth a word."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a sample of rows."""

    items: Sequence[Item]

    @property
    def longest(self) -> list[int]:
        """Of each item's longest sequence."""
        return [stored.length for _, stored in self.items]

    @property
    def prompts(self) -> list[int]:
        """Of each item's prompt."""
        from rlhf.data.tokenize import TokenizedRow

        return [len(s.prefix) if isinstance(s, TokenizedRow) else s.length for _, s in self.items]


def check_models(review: Review) -> None:
    """Tokenizers load, and agree with their models; what is sampled fits into the context."""
    for _, stage in review.each_stage():
        for key, config in policies(stage):
            root = root_model(review.recipe.stages, config)
            if root is not None and root.path == EMBEDDED and root.tokenizer is config.tokenizer is None:
                continue  # they belong together, and loading one takes seconds
            facts = facts_of(review, config)
            tokenizer = tokenizer_of(review, key, config)
            made_before = config.path is not None and is_of_stage(config.path) and config.tokenizer is None
            if tokenizer is None or facts is None or made_before:
                continue
            highest = max(tokenizer.get_vocab().values())
            if facts.num_embeddings is not None and highest >= facts.num_embeddings:
                review.error(
                    key,
                    f"The tokenizer {tokenizer.name_or_path} has tokens up to number {highest}, and the model {facts.folder} "
                    f"has only {facts.num_embeddings} embeddings; use the model's own tokenizer.",
                    ModelError,
                )
            if tokenizer.eos_token_id is None:
                review.error(
                    key,
                    f"Neither the tokenizer {tokenizer.name_or_path} nor the model says which token ends a text, so it could "
                    "never learn to stop; set `eos_token` in tokenizer_config.json.",
                    ModelError,
                )
        _check_room(review, stage)


def check_lengths(review: Review, stage: Stage, rows: RowsInput, first_rows: FirstRows) -> None:
    """What will be dropped, cut or refused; and the context of the model."""
    lengths = _lengths(review, stage, rows, first_rows)
    if lengths is None or not lengths.items:
        return
    limits = [
        (name, value, counts)
        for name, counts in (("max_length", lengths.longest), ("max_prompt_length", lengths.prompts))
        if (value := getattr(stage, name, None)) is not None
    ]
    for name, limit, counts in limits:
        _check_limit(review, stage, rows, lengths, name=name, limit=limit, counts=counts)
    if isinstance(stage, OfflineStage):
        _check_context(review, stage, rows, max(lengths.longest))
        budget: int = stage.microbatch_tokens
        largest = max(stored.num_tokens for _, stored in lengths.items)
        if largest > budget:
            review.warn(
                "microbatch_tokens",
                f"{rows.key} has a row of {largest:,} tokens, more than the {budget:,} of a micro-batch; it will be a micro-batch on its own, "
                "and take more memory than configured.",
            )


def _check_limit(
    review: Review, stage: Stage, rows: RowsInput, lengths: Lengths, *, name: str, limit: int, counts: list[int]
) -> None:
    policy = getattr(stage, "truncation", "drop")
    over = [place for place, count in enumerate(counts) if count > limit]
    if not over:
        return
    share, among = len(over) / len(counts), f"{len(over):,} of {counted(len(counts), 'row')} looked at"
    what = f"{among} of {rows.key} {'has' if len(over) == 1 else 'have'} more than {name}: {limit} tokens (the longest {max(counts):,})"
    first = lengths.items[over[0]][0].where
    if policy == "error":
        review.error(
            name, f"{what}, the first {first}, and truncation is `error`; raise it, or choose drop, keep_start or keep_end.",
            DataError,
        )  # fmt: skip
    elif policy == "drop" and share == 1:
        review.error(name, f"{what}: none would be left; raise it, or cut instead of dropping.", DataError)
    elif share > MANY:
        done = "left out" if policy == "drop" else "cut"
        review.warn(name, f"{what} and will be {done}.", DataError)


def _check_context(review: Review, stage: Any, rows: RowsInput, longest: int) -> None:
    facts = facts_of(review, stage.model)
    longest = min(longest, stage.max_length) if stage.max_length is not None else longest
    if facts is None or facts.context is None or longest <= facts.context:
        return
    review.error(
        "max_length",
        f"{rows.key} has rows of {longest:,} tokens, and the model was made for {facts.context:,}; set max_length: "
        f"{facts.context} with a truncation other than `error`.",
        DataError,
    )


def _check_room(review: Review, stage: Stage) -> None:
    """Prompt and completion together have to fit into the context: the sampler refuses a prompt that may outgrow it."""
    if not stage.samples:
        return
    key, config = policies(stage)[0]
    facts = facts_of(review, config)
    if facts is None or facts.context is None:
        return
    new, most = stage.sampling.max_new_tokens, getattr(stage, "max_prompt_length", None)
    if new >= facts.context:
        review.error(
            "sampling.max_new_tokens",
            f"{new} tokens leave no room for a prompt: the {key} was made for {facts.context} in all.",
        )
        return
    for rows in rows_inputs(stage):
        first_rows = read_once(review, rows) if rows.wanted == "grpo" else None
        lengths = _lengths(review, stage, rows, first_rows) if first_rows is not None else None
        if lengths is None or not lengths.items:
            if most is not None and most + new > facts.context and rows.wanted == "grpo":
                review.warn(
                    "max_prompt_length",
                    f"A prompt of {most} tokens and a completion of {new} are more than the {facts.context} the model was made "
                    "for; such a prompt would stop the run.",
                )
            continue
        longest = max(count for count in [*lengths.prompts, 0] if most is None or count <= most)
        if longest + new > facts.context:
            review.error(
                rows.key,
                f"A prompt has {longest:,} tokens and may grow by {new}, but the model was made for {facts.context:,}; lower "
                f"sampling.max_new_tokens, or set max_prompt_length: {facts.context - new}.",
                DataError,
            )


def _lengths(review: Review, stage: Stage, rows: RowsInput, first_rows: FirstRows) -> Lengths | None:
    """A sample of rows tokenized without any limit; None without a model or its tokenizer. Complains about what fails."""
    models = policies(stage)
    if not models:
        return None
    key, config = models[0]
    root = root_model(review.recipe.stages, config)
    allowed = tuple(getattr(stage, "allow_lost_fields", ()))
    place = (
        "lengths",
        rows.sources,
        rows.wanted,
        rows.limit,
        root and root.model_dump_json(),
        getattr(stage, "train_on", None),
        allowed,
    )
    if place in review.shared:
        known: Lengths | None = review.shared[place]
        return known
    review.shared[place] = None
    tokenizer = tokenizer_of(review, key, config)
    if tokenizer is None or tokenizer.eos_token_id is None:
        return None
    sample = first_rows.rows[:: max(1, math.ceil(len(first_rows.rows) / SAMPLE))]
    if tokenizer.chat_template is None and (dialogue := next(filter(_is_dialogue, sample), None)) is not None:
        review.error(
            f"{key}.chat_template",
            f"{rows.key} holds dialogues (such as {dialogue.where}) and the tokenizer has no chat template; give one: `plain`, a "
            "Jinja file or its text.",
            ModelError,
        )
        return None
    from rlhf.data.plans import (
        PLANS,  # here: torch comes with it, and a recipe whose rows are still to be made needs none
    )

    report = TokenizationReport()
    with review.at(rows.key):
        how = tokenization(tokenizer, train_on=getattr(stage, "train_on", "completion"), allow_lost_fields=allowed)
        items = PLANS[rows.wanted].items(sample, how, report, skip_bad_rows=True)
        if report.bad_rows and not rows.skips_bad_rows:
            row, num_bad = report.bad_rows[0], len(report.bad_rows)
            among = f" ({num_bad:,} of {counted(len(sample), 'row')} looked at can't be used.)" if num_bad > 1 else ""
            review.error(rows.key, f"{row.where}: {row.reason}{among}", DataError)
        review.shared[place] = Lengths(items)
    made: Lengths | None = review.shared[place]
    return made


def _is_dialogue(row: Row) -> bool:
    return any(isinstance(getattr(row, name, None), list) for name in ("prompt", "messages", "chosen"))


def tokenizer_of(review: Review, key: str, config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model as in its stage; None if it does not exist yet, or can't be loaded (which is reported)."""
    root = root_model(review.recipe.stages, config)
    if root is None:
        return None
    template = config.chat_template or root.chat_template
    source = config.tokenizer or root.tokenizer or root.path
    if source is None or is_of_stage(source):
        review.leave("tokenizers that stages are still to make")
        return None
    place = ("tokenizer", source, template)
    if place not in review.shared:
        review.shared[place] = None
        with review.at(key, otherwise=ModelError):
            folder = local_folder(source, root.revision, "tokenizer_config.json")
            if folder is None or not folder.is_dir():
                return None  # reported already, for the folder
            from rlhf.models.tokens import load_tokenizer

            loaded = load_tokenizer(ModelConfig(path=str(folder), chat_template=template))
            _settle_end(review, key, loaded, facts_of(review, config))
            review.shared[place] = loaded
    tokenizer: PreTrainedTokenizerBase | None = review.shared[place]
    return tokenizer


def _settle_end(review: Review, key: str, tokenizer: PreTrainedTokenizerBase, facts: ModelFacts | None) -> None:
    """As ``rlhf.models.tokens.settle_tokens`` does where the tokenizer does not know which token ends a text."""
    if tokenizer.eos_token_id is not None or facts is None:
        return
    if facts.end_tokens:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(facts.end_tokens[0])
        return
    from rlhf.models.tokens import family_end_token

    number = family_end_token(facts.family) if not facts.names_end else None
    token = tokenizer.convert_ids_to_tokens(number) if number is not None else None
    if token is not None:
        tokenizer.eos_token = token
        review.warn(
            key,
            f"Neither the tokenizer {tokenizer.name_or_path} nor the files of the model {facts.folder} name a token that ends a text; "
            f"it will be {token!r} (number {number}), transformers' default for {facts.family}. Set `eos_token` in "
            "tokenizer_config.json if texts end otherwise.",
            ModelError,
        )
