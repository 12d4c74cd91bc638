"""What rewards share that ask a model of their own: ids or texts of samples become its rows, too long ones are reported or cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, split_by_tokens
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import is_sharded
from rlhf.errors import ConfigError, RewardError, RLHFError
from rlhf.models.offload import on_device
from rlhf.models.scalar_model import ScalarModel
from rlhf.models.score import base_model, context_length, evaluating
from rlhf.rewards.lengths import LengthRule
from rlhf.rewards.types import CompletionLike, OnError, parts_of

ModelT = TypeVar("ModelT", bound=ScalarModel)
"""With a tokenizer, which a critic has not."""


class ModelReward(Generic[ModelT]):
    """A model, the policy's tokenizer, and how results are reported.

    Args:
        model: Stays on its device; put into evaluation mode for each call.
        tokenizer: The policy's. None where it is not known: then ids are used if the model's tokenizer reads the same texts from them.
        name: What metrics and errors call it.
        max_tokens: Distinct tokens in one forward pass; memory only.
        on_error: ``report`` puts samples whose score is not finite into the result's ``errors`` instead of raising.
    """

    def __init__(
        self, model: ModelT, *, tokenizer: PreTrainedTokenizerBase | None, name: str, max_tokens: int, on_error: OnError
    ) -> None:
        own: Any = model.tokenizer
        self.model = model
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.on_error = on_error
        self.lengths = LengthRule(context_length(base_model(model.networks[0])))
        self._name = name
        self._same_ids = same_ids(tokenizer, own) if tokenizer is not None else None

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def groups(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
        """The model's rows of samples, in order; neighbors that share a prompt are one group.

        Raises:
            RewardError: A sample can't be read, or is too long for the model and none is cut (``lengths``).
        """
        raise NotImplementedError

    def num_outputs(self, group: Group) -> int:
        """How many columns of ``outputs`` a group has."""
        raise NotImplementedError

    def outputs(self, groups: Sequence[Group]) -> Tensor:
        """[K, C] what the model says of rows, on the CPU; a group's columns follow those of the group before it."""
        raise NotImplementedError

    def scores(self, groups: Sequence[Group], outputs: Tensor) -> list[float]:
        """[S] scores of the rows' completions, from the model's ``outputs`` [K, C]."""
        raise NotImplementedError

    @torch.no_grad()
    def passes(self, groups: Sequence[Group], through: Callable[[Sequence[Group]], Tensor]) -> list[Tensor]:
        """What ``through`` gives for each micro-batch of the rows, on the CPU.

        Where the model lies in shards, all ranks come here at once, one without rows too, and each makes as many passes as the one with
        the most.
        """
        runs = list(split_by_tokens(groups, max_tokens=self.max_tokens))
        spare = max(current_ranks().gather(len(runs))) - len(runs) if is_sharded(self.model) else 0
        with on_device(self.model), evaluating(self.model):
            given = [through(run).cpu() for run in runs]
            for _ in range(spare):
                through([_stand_in(self.model.tokenizer)])
        return given

    @property
    def takes_ids(self) -> bool:
        """Whether it reads the ids that were sampled: the policy's tokenizer is known and has the same ones."""
        return bool(self._same_ids)


def model_rewards(scorer: object) -> Iterator[ModelReward[Any]]:
    """Each reward that has a model, of a scorer and of those that it is made of."""
    if isinstance(scorer, ModelReward):
        yield scorer
    for part in parts_of(scorer):
        yield from model_rewards(part)


def _stand_in(tokenizer: Any) -> Group:
    """A row of no one's, of two tokens; the last one is a step."""
    token = int(tokenizer.eos_token_id or 0)
    return Group([token], [Branch([token])], {"step_ends": [[0]]})


def model_folder(source: str) -> str:
    """A reward model's folder or hub name, for anyone who has no recipe.

    Raises:
        ConfigError: It names a stage.
    """
    if source.startswith("stage:"):
        raise ConfigError(f"The reward {source!r} names a stage; outside a recipe give the folder of its model.")
    return source


def same_ids(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether an id means the same to both, the ids that begin and end a text included."""
    if one is other:
        return True
    specials = [(t.bos_token_id, t.eos_token_id) for t in (one, other)]
    return specials[0] == specials[1] and one.get_vocab() == other.get_vocab()


def usable_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    same: bool | None = None,
) -> list[bool]:
    """[S] whether a model can take the ids that were sampled as they are.

    Args:
        tokenizer: The model's.
        prompts: [S].
        completions: [S].
        same: Whether the policy's tokenizer has the same ids. None where it is not known: then those samples whose ids this tokenizer
            reads as the texts they stand for, and none where it reads most of them otherwise.
    """
    known = [bool(completion.tokens) for completion in completions]  # of some only the text is known
    if same is not None:
        return [same and there for there in known]
    asked = zip(known, prompts, completions, strict=True)
    read = [there and _reads_the_same(tokenizer, prompt, completion) for there, prompt, completion in asked]
    return read if 2 * sum(read) > sum(known) else [False] * len(read)


def _reads_the_same(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, completion: CompletionLike) -> bool:
    """Whether a tokenizer reads from the ids the text they stand for, and a special token where they end."""
    decoded = str(tokenizer.decode([*prompt.ids, *completion.tokens], skip_special_tokens=True))
    if not decoded.endswith(completion.text):
        return False
    if not completion.text and str(tokenizer.decode(completion.tokens, skip_special_tokens=True)).strip():
        return False
    ended_in_text = tokenizer.decode(completion.tokens[-1:], skip_special_tokens=True) != ""
    return completion.truncated or ended_in_text or completion.tokens[-1] in tokenizer.all_special_ids


def groups_of_texts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    who: str,
) -> list[Group]:
    """One group each, in order; completions with and without an end of their own are tokenized apart.

    Raises:
        RewardError: A sample can't be read as text by ``who``.
    """
    groups: dict[int, Group] = {}
    for add_eos in (True, False):
        # An empty completion without EOS would leave no token to read a score at.
        places = [i for i, c in enumerate(completions) if (not c.truncated or not c.text) == add_eos]
        rows = [_row(prompts[i], completions[i]) for i in places]
        if not rows:
            continue
        try:
            data = SFTDataset(rows, tokenizer, add_eos=add_eos)
        except RLHFError as err:
            raise RewardError(f"{who} can't read the samples as text: {err}") from err
        groups.update(zip(places, data, strict=True))
    return [groups[i] for i in range(len(completions))]


def groups_of_samples(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    as_ids: Sequence[bool],
    who: str,
) -> list[Group]:
    """Samples in order, each as the ids that were sampled or (``as_ids`` [S] says) as a text that is tokenized by ``tokenizer``."""
    groups: list[Group] = []
    for by_ids, run in groupby(range(len(completions)), key=as_ids.__getitem__):
        places = list(run)
        asked, said = [prompts[i] for i in places], [completions[i] for i in places]
        groups += groups_of_ids(asked, said) if by_ids else groups_of_texts(tokenizer, asked, said, who=who)
    return groups


def groups_of_ids(prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
    """Neighbors with the same prompt share it; the order of completions stays."""
    groups: list[Group] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        branch = Branch(completion.tokens)
        if groups and groups[-1].prefix == prompt.ids:
            groups[-1] = Group(prompt.ids, [*groups[-1].branches, branch], groups[-1].columns)
        else:
            groups.append(Group(prompt.ids, [branch], {"id": prompt.id}))
    return groups


def _row(prompt: Prompt, completion: CompletionLike) -> dict[str, object]:
    if prompt.messages is None:
        return {"prompt": prompt.text, "completion": completion.text}
    return {"prompt": prompt.messages, "completion": [{"role": "assistant", "content": completion.text}]}
