"""A rollout engine over vLLM's public calls: in a separate process, in the environment that has vLLM.

    the policy that is trained ----- a folder, sha256 of each file -----> vllm_worker: LLM, reload_weights
                               <---- version, hash of files and memory --
    prompt ids, one seed a sample --------------------------------------> LLM.generate
    ids, log-probabilities, version, hash <------------------------------

Before each rollout changed weights are written, loaded, and acknowledged by version and hash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from transformers import PreTrainedModel

from rlhf.config.engines import VLLMEngineConfig
from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, DataError, TrainingError
from rlhf.models.score import base_model
from rlhf.rollout.requests import check_prompts, check_request, number_samples
from rlhf.rollout.stopping import StopTexts, completion_texts, eos_ids
from rlhf.rollout.types import Completion, EngineHealth, FinishReason, PromptLike, SamplablePolicy
from rlhf.rollout.vllm_session import Session
from rlhf.rollout.vllm_weights import Outbox
from rlhf.seeds import derive_seed


class VLLMEngine:
    """See ``rlhf.rollout.types.RolloutEngine`` for what it promises.

    Every sample has the seed that it has in the local engine, but vLLM makes other random numbers of it: the two engines give
    different samples of the same distribution. A completion that a stop text ends is sampled on to its limit, and cut here.
    """

    reopens = True

    def __init__(
        self,
        policy: SamplablePolicy,
        config: VLLMEngineConfig | None = None,
        *,
        autocast: Literal["none", "bfloat16", "float16"] = "none",
    ) -> None:
        """Wrap a policy; nothing is started before the first request.

        Args:
            policy: Its weights as they are at each ``load_weights`` are what is sampled from.
            config: Which vLLM, and how.
            autocast: The trainer's; the engine computes in this type where its config says ``auto``.
        """
        self.policy = policy
        self.config = config or VLLMEngineConfig()
        held = str(next(policy.model.parameters()).dtype).removeprefix("torch.")
        chosen = self.config.dtype
        self.dtype = chosen if chosen != "auto" else autocast if autocast != "none" else held
        self._version = 0
        self._paused = False
        self._outbox = Outbox()
        self._session = Session(self.config, dtype=self.dtype, log=self._outbox.folder / "vllm.log")

    @property
    def weight_version(self) -> int:
        """The last version passed to ``load_weights``."""
        return self._version

    @property
    def exact(self) -> bool:
        """Whether it computes in float32, so that its log-probabilities are the trainer's up to the order of additions."""
        return self.dtype == "float32"

    @property
    def notify(self) -> Callable[[str], None]:
        """Called with a message when vLLM's process had to be restarted."""
        return self._session.notify

    @notify.setter
    def notify(self, notify: Callable[[str], None]) -> None:
        self._session.notify = notify

    @property
    def restarts(self) -> int:
        """How often vLLM's process was lost."""
        return self._session.restarts

    def load_weights(self, version: int) -> None:
        """Give the engine the policy's weights as they are now, and hear from it that it has them.

        Raises:
            RLHFError: As ``Session.push`` does.
        """
        self._version = version
        self._session.open()
        self._session.push(self._outbox.write(self.policy, untied=self._session.on_cpu), version)

    def pause(self) -> None:
        """Refuse requests until ``resume``; vLLM keeps its memory."""
        self._paused = True

    def resume(self) -> None:
        """Take requests again."""
        self._paused = False

    def health(self) -> EngineHealth:
        """Checks whether the process is alive, without a request."""
        lost = self._session.is_lost
        detail = f"vllm {self._session.vllm or '(not started yet)'}, {self.dtype}"
        if lost:
            detail = "vLLM's process has ended; the next request starts it again"
        if self._paused:
            detail = "paused; call resume()"
        return EngineHealth(ok=not self._paused and not lost, weight_version=self._version, detail=detail)

    @property
    def context_length(self) -> int | None:
        """As the engine's settings have it; None where vLLM takes the model's own."""
        return self.config.max_model_len

    def fingerprint(self) -> str:
        """The policy's own, of when its weights were pushed, where vLLM still holds those; else a hash of what it holds."""
        self._push_first()
        newest = self._outbox.newest
        assert newest is not None, "weights were pushed"
        return self._session.foreign() or newest.trainer

    def restart(self) -> None:
        """End the process; the next request starts one that begins with the newest weights instead of loading them into an old model."""
        self._session.close()

    def close(self) -> None:
        """End the process and remove the weights that were written for it; another request restarts it."""
        self._session.close()
        self._outbox.close()
        self._outbox = Outbox()
        self._session.log = self._outbox.folder / "vllm.log"

    def generate(
        self,
        prompts: Sequence[PromptLike],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
        rollout_index: int,
    ) -> list[list[Completion]]:
        """Sample ``num_samples`` completions of each prompt.

        Raises:
            ConfigError: ``num_samples`` below 1, or a way of sampling that vLLM can't account for.
            DataError: A prompt without tokens, with an id that the model does not know, or too long for it.
            TrainingError: The engine is paused, was lost twice, has other weights, or gave a number that is not finite.
        """
        check_request(num_samples, paused=self._paused)
        if complaint := self.config.complaint(sampling):
            raise ConfigError(f"{complaint}.")
        if not prompts:
            return []
        model: PreTrainedModel = base_model(self.policy.model)
        check_prompts(prompts, model, sampling)
        self._check_lengths(prompts, sampling)
        self._push_first()
        ends = eos_ids(model, self.policy.tokenizer)
        requests = number_samples(prompts, num_samples)
        completions = self._session.ask(
            "generate",
            prompts=[list(map(int, prompt.ids)) for prompt in prompts],
            places=[place for place, _ in requests],
            seeds=[
                derive_seed(seed, "rollout", rollout_index, prompts[place].id, sample) for place, sample in requests
            ],
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_ids=ends,
        )["completions"]
        if len(completions) != len(requests):
            raise TrainingError(f"vLLM gave {len(completions)} completions, and {len(requests)} were asked for.")
        stop = StopTexts(self.policy.tokenizer, sampling.stop)
        results: list[list[Completion]] = [[] for _ in prompts]
        for (place, sample), (tokens, logprobs, reason) in zip(requests, completions, strict=True):
            _check_sample(prompts[place], tokens, logprobs, reason)
            length, finish = _end_of(tokens, ends, stop)
            results[place].append(
                Completion(
                    prompt_id=prompts[place].id, sample=sample, tokens=tokens[:length], logprobs=logprobs[:length],
                    finish_reason=finish, weight_version=self._version, text="",
                )
            )  # fmt: skip
        return [self._with_texts(prompt, group) for prompt, group in zip(prompts, results, strict=True)]

    def _push_first(self) -> None:
        """Before any weights were loaded, the policy is used as it is."""
        if self._outbox.newest is None:
            self.load_weights(self._version)

    def _with_texts(self, prompt: PromptLike, group: Sequence[Completion]) -> list[Completion]:
        texts = completion_texts(self.policy.tokenizer, prompt.ids, [completion.tokens for completion in group])
        return [replace(completion, text=text) for completion, text in zip(group, texts, strict=True)]

    def _check_lengths(self, prompts: Sequence[PromptLike], sampling: SamplingConfig) -> None:
        limit = self.config.max_model_len
        longest = max(prompts, key=lambda prompt: len(prompt.ids))
        if limit is not None and len(longest.ids) + sampling.max_new_tokens > limit:
            raise DataError(
                f"Prompt {longest.id!r} has {len(longest.ids)} tokens and may grow by {sampling.max_new_tokens}, but "
                f"engine.max_model_len is {limit}; raise it, shorten the prompt or lower max_new_tokens."
            )


def _check_sample(prompt: PromptLike, tokens: Sequence[int], logprobs: Sequence[float], reason: str) -> None:
    if not tokens or len(tokens) != len(logprobs) or reason not in ("stop", "length"):
        raise TrainingError(
            f"vLLM gave {len(tokens)} tokens and {len(logprobs)} log-probabilities for prompt {prompt.id!r} and ended with "
            f"{reason!r}; wanted as many of both, and an end by 'stop' or 'length'."
        )
    if not all(map(math.isfinite, logprobs)):
        raise TrainingError(
            f"Sampling from prompt {prompt.id!r} gave a log-probability that is not finite: the weights hold "
            "NaN or infinity, or overflowed in half precision. Go back to a checkpoint from before."
        )


def _end_of(tokens: Sequence[int], ends: Sequence[int], stop: StopTexts) -> tuple[int, FinishReason]:
    """Tokens that count, and why the completion ends behind them."""
    ended = tokens[-1] in ends
    for place in stop.candidates(tokens) if stop else ():
        if stop.reached(tokens[: place + 1]) and not (ended and place == len(tokens) - 1):
            return place + 1, "stop"
    return len(tokens), "eos" if ended else "length"


def build_vllm(
    policy: SamplablePolicy, config: VLLMEngineConfig, *, autocast: Literal["none", "bfloat16", "float16"] = "none"
) -> VLLMEngine:
    """The engine of these settings."""
    return VLLMEngine(policy, config, autocast=autocast)
