"""Speculative decoding by name: the samples of a policy, in fewer passes of it."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any, Literal, get_args

from rlhf.config.engines import DraftModelConfig, PromptLookupConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Text
from rlhf.errors import ConfigError
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.text_completions import generate_texts
from rlhf.rollout.types import Completion, SamplablePolicy

Keeps = Literal["samples", "distribution"]
PROMPT_LOOKUP = "prompt_lookup"
"""In place of a draft model: guess what followed the same tokens before."""


class SpeculativeDecoder:
    """Samples from a policy; a draft guesses several tokens, and one pass of the policy checks them.

        decoder = SpeculativeDecoder(policy, "runs/speculative/draft/model", compiled=True)
        [[completion]] = decoder.generate("once upon a time", temperature=0.8)
        decoder.acceptance_rate

    The distribution of samples is the policy's own (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318), and
    greedy decoding gives the same text, up to the rounding of products of another shape. With ``keeps="samples"`` so does sampling: for
    the same seed the samples of ``PolicyModel.generate`` (``rlhf.rollout.speculation`` says how). A good draft model is small beside
    the policy and distilled from it (`rlhf distill`; Zhou et al. 2023, "DistillSpec", arXiv:2310.08461).

    Args:
        policy: Sampled from.
        draft: A policy with the same tokenizer, the folder or hub name of one, or ``"prompt_lookup"``.
        draft_tokens: Most tokens guessed at once.
        max_rows: Guess only while at most so many completions are sampled side by side.
        keeps: What is as without a draft model: the ``"distribution"`` of samples, whose rejection sampling accepts the most guesses; a
            sample then depends on the draft model, and on what is sampled beside it. Or the ``"samples"``, of which it accepts fewer.
            Prompt lookup keeps the samples, and so the distribution, either way.
        ngram_tokens: For prompt lookup: so many tokens must agree for what followed them to be guessed.
        settings: Further arguments of ``LocalEngine``, such as ``compiled=True``.

    Raises:
        ConfigError: A setting is wrong.
        ModelError: The draft model has another vocabulary, or can't be loaded.
    """

    def __init__(
        self,
        policy: SamplablePolicy,
        draft: SamplablePolicy | str | PathLike[str] = PROMPT_LOOKUP,
        *,
        draft_tokens: int = 4,
        max_rows: int = 4,
        keeps: Keeps = "distribution",
        ngram_tokens: int = 2,
        **settings: Any,
    ) -> None:
        if keeps not in (known := get_args(Keeps)):
            raise ConfigError(f"keeps is {keeps!r}; give {' or '.join(map(repr, known))}.")
        self.policy = policy
        how = {"draft_tokens": draft_tokens, "max_rows": max_rows}
        if isinstance(draft, str | PathLike):
            name, given = fspath(draft), None
        else:
            name, given = "given", draft
        config: PromptLookupConfig | DraftModelConfig
        if given is None and name == PROMPT_LOOKUP:
            config = PromptLookupConfig.of({**how, "ngram_tokens": ngram_tokens})
        else:
            config = DraftModelConfig.of({**how, "keeps": keeps, "model": name})
        self.engine = LocalEngine(policy, speculate=config, draft=given, **settings)

    def generate(
        self,
        prompts: Text | Sequence[Text],
        *,
        num_samples: int = 1,
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> list[list[Completion]]:
        """Sample completions of texts; arguments, results and errors as of ``PolicyModel.generate``.

        Raises:
            ModelError: Also where wrong guesses can't be rolled back, as in a state-space model.
        """
        self.engine.load_weights(self.engine.weight_version)  # counts begin anew
        return generate_texts(
            self.policy,
            prompts,
            num_samples=num_samples,
            sampling=sampling,
            seed=seed,
            engine=self.engine,
            **settings,
        )

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafted tokens that the policy drew too, in the newest ``generate``; None where nothing was drafted."""
        return self.engine.figures.get("rollout/draft_accept_frac")

    @property
    def tokens_per_forward(self) -> float | None:
        """Tokens that a completion gained in each pass of the policy, in the newest ``generate``; None where there was no pass."""
        return self.engine.figures.get("rollout/tokens_per_forward")
