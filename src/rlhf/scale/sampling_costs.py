"""Costs of sampling on this machine, measured with the rollout engine on thin copies: whole rollouts whose completions end where
those of the real policy are expected to.

A rollout has a different shape in every step: completions end, and the rest continues in smaller matrices. oneDNN makes a kernel for
each shape that it meets for the first time (about a millisecond) and keeps the last ones (``rlhf.allocator``). So both time and memory
depend on how many different numbers of rows a run meets, and a probe must end its completions like the run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.activity import heard_by, training_loop
from rlhf.config.engines import PromptLookupConfig, RolloutWeights
from rlhf.config.policy import SamplingConfig
from rlhf.config.training import Autocast
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.models.score import ScorePath, base_model
from rlhf.rollout.continuous_batching import COMPACT_FRAC
from rlhf.rollout.local import LocalEngine
from rlhf.scale.heap import resident_growth, used_bytes
from rlhf.scale.machine import Machine
from rlhf.scale.memory import passes_kept
from rlhf.scale.probe import REPEATS, SECONDS_PER_PASS, Point, Probe, extended
from rlhf.scale.shape import ModelShape
from rlhf.seeds import derive_seed
from rlhf.training.profile import Profile

SECONDS_PER_STEP = 1e-3
"""Approximate overhead of a decoding step in one layer, only to estimate how much of a rollout can be measured."""
MOST_ROLLOUTS = 64
"""That are drawn to count how many different numbers of rows a run meets; after these there are hardly new ones."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What a probe found at some number of layers."""

    layers: int
    prefill: float
    """Seconds, of the middle one."""
    decode: float
    kept_bytes: float
    """By each number of rows that was met for the first time."""


def row_counts(lengths: Sequence[int]) -> list[int]:
    """Rows in the model at each step of a rollout, the first token's left out: rows that ended leave together, once they are
    ``COMPACT_FRAC`` of all. See ``rlhf.rollout.continuous_batching.SamplingRun``.

    Args:
        lengths: Tokens of each completion.
    """
    ends = np.sort(np.asarray(lengths))
    counts, rows = [], len(ends)
    for age in range(1, int(ends[-1])):
        alive = len(ends) - int(np.searchsorted(ends, age, side="right"))
        if rows - alive >= COMPACT_FRAC * rows:
            rows = alive
        counts.append(rows)
    return counts


class SamplingProbe:
    """See ``rlhf.scale.costs.SamplingCosts``.

    Args:
        shape: Of the model.
        prompts: As they will come.
        group_size: Completions of each.
        machine: This one.
        autocast: Type of the matrix products.
        sampling: How completions are drawn.
        weights: What the engine multiplies with.
        speculate: How the engine guesses tokens.
        compiled: Whether the engine decodes in C.
    """

    def __init__(
        self,
        shape: ModelShape,
        prompts: Sequence[Prompt],
        group_size: int,
        machine: Machine,
        *,
        autocast: Autocast,
        sampling: SamplingConfig,
        weights: RolloutWeights = "same",
        speculate: PromptLookupConfig | None = None,
        compiled: bool = False,
    ) -> None:
        self.inner = Probe(
            shape, [_as_group(p) for p in prompts], machine, autocast=autocast, head="logprobs", tokens=1
        )
        self.prompts, self.group_size = list(prompts), group_size
        self.sampling = sampling
        self.how = {"autocast": autocast, "weights": weights, "speculate": speculate, "compiled": compiled}
        """Settings of the engine."""
        self._known_rollouts: dict[tuple[int, ...], list[Rollouts]] = {}

    def decode(self, prompt_tokens: float, num_prompts: int, lengths: Sequence[int]) -> tuple[float, float]:
        """Seconds of reading prompts once each, and of sampling completions of these lengths side by side."""
        rollouts, layers = self._rollouts(lengths), self.inner.shape.num_layers
        prefill, decoding = (
            extended(
                [Point(one.layers, 1.0, seconds) for one, seconds in zip(rollouts, column, strict=True)], layers, 1.0
            )
            for column in zip(*((one.prefill, one.decode) for one in rollouts), strict=True)
        )
        return prefill, decoding

    def sampling_bytes(self, prompts: Sequence[int], rows: int) -> float:
        """Memory for prefilling prompts of these lengths and sampling this many rows, in addition to keys and values. One layer, one
        token of each row."""
        policy = self._policy(1)
        engine = self._engine(policy, [1] * rows)
        return float(resident_growth(lambda: self._ask(engine, rows, 1)))

    def kernel_bytes(self, lengths: Sequence[int], rollouts: int) -> float:
        """What libraries keep of so many rollouts with such lengths: the kernels that they made for each number of rows."""
        kept = self._rollouts(lengths)[-1].kept_bytes  # layers of one width share their kernels
        draw = np.random.default_rng(derive_seed(0, "plan", "row counts"))
        met: set[int] = set()
        for _ in range(min(rollouts, MOST_ROLLOUTS)):
            met.update(row_counts(draw.choice(lengths, size=len(lengths)).tolist()))
        return kept * min(len(met), passes_kept(self.inner.shape.num_products))

    def _rollouts(self, lengths: Sequence[int]) -> list[Rollouts]:
        key = tuple(lengths)
        if key not in self._known_rollouts:
            self._known_rollouts[key] = [self._measured(layers, lengths) for layers in self.inner.layers]
        return self._known_rollouts[key]

    def _measured(self, layers: int, lengths: Sequence[int]) -> Rollouts:
        """The middle one of a few rollouts, after one that is not counted; each with other lengths, as in a run."""
        share = self._share(layers, lengths)
        draw = np.random.default_rng(derive_seed(0, "plan", "lengths"))
        policy = self._policy(layers)
        engine = self._engine(policy, lengths)
        seconds: list[tuple[float, float]] = []
        met: set[int] = set()
        new, before = 0, 0
        for number in range(1 + REPEATS):
            drawn = draw.choice(lengths, size=len(lengths))
            cut = [max(1, round(share * int(length))) for length in drawn]
            engine.lengths = cut
            prefill, decoding = self._timed(engine, cut, number)
            seconds.append((prefill, decoding * float(sum(drawn)) / sum(cut)))
            counts = set(row_counts(cut))
            if number == 0:
                before = self._used_by(engine)
            else:
                new += len(counts - met)
            met |= counts
        kept = (self._used_by(engine) - before) / new if new else 0.0
        prefills, decodings = zip(*seconds[1:], strict=True)
        return Rollouts(layers, statistics.median(prefills), statistics.median(decodings), max(0.0, kept))

    def _share(self, layers: int, lengths: Sequence[int]) -> float:
        """How much of each completion can be sampled in a few seconds."""
        shape = self.inner.shape
        weights = shape.num_body / shape.num_layers * layers + shape.num_head
        work = 2 * sum(lengths) * weights / (self.inner.machine.flops("float32") * self.inner.machine.threads)
        return min(1.0, 4 * SECONDS_PER_PASS / (work + max(lengths) * layers * SECONDS_PER_STEP))

    def _timed(self, engine: ForcedEngine, lengths: Sequence[int], number: int) -> tuple[float, float]:
        """Processor seconds of reading prompts, and of everything else, in a rollout of this number."""
        profile = Profile()
        with heard_by(profile), training_loop("probe"):
            self._ask(engine, len(lengths), max(lengths), number)
        prefill = profile.spent["rollout prefill"].cpu_seconds
        return prefill, profile.cpu_seconds - prefill

    @staticmethod
    def _used_by(engine: LocalEngine) -> int:
        """Bytes in use, without the engine's cache, which is counted for itself."""
        engine.pause()
        engine.resume()
        return used_bytes()

    def _policy(self, layers: int) -> ThinPolicy:
        model = self.inner.thin_copy(layers)
        return ThinPolicy(model, self.inner.path_of(model))

    def _engine(self, policy: ThinPolicy, lengths: Sequence[int]) -> ForcedEngine:
        return ForcedEngine(policy, lengths, **self.how)

    def _ask(self, engine: ForcedEngine, rows: int, most: int, number: int = 0) -> None:
        """A rollout; one of another number has other prompts, whose lengths are new to the kernels, too."""
        samples = min(self.group_size, rows)
        count = rows // samples
        places = [place % len(self.prompts) for place in range(number * count, (number + 1) * count)]
        prompts = [Prompt(str(row), self.prompts[place].ids, "") for row, place in enumerate(places)]
        sampling = self.sampling.updated(max_new_tokens=most, stop=[])
        engine.generate(prompts, num_samples=samples, sampling=sampling, seed=0, rollout_index=0)


class ForcedEngine(LocalEngine):
    """Ends each completion after a number of tokens that is given."""

    def __init__(self, policy: ThinPolicy, lengths: Sequence[int], **options: Any) -> None:
        super().__init__(policy, **options)
        self.lengths = list(lengths)

    def _limits(self, requests: Sequence[tuple[int, int]], most: int) -> np.ndarray:
        return np.asarray(self.lengths[: len(requests)])


class ThinPolicy:
    """A thin copy for an engine; no completion ends early, and the samples are discarded."""

    def __init__(self, model: Any, path: ScorePath) -> None:
        self.model = model.eval()
        self.tokenizer: Any = _Silent()
        self.path: ScorePath | None = path
        beyond = int(base_model(model).config.get_text_config().vocab_size)
        base_model(model).config.get_text_config().eos_token_id = beyond
        if getattr(base_model(model), "generation_config", None) is not None:
            base_model(model).generation_config.eos_token_id = beyond

    def choose_path(self, groups: Sequence[Group]) -> object:
        """Known already."""
        return self.path

    def fingerprint(self) -> str:
        """Not used."""
        return ""


class _Silent:
    """In the place of a tokenizer."""

    eos_token_id = None

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Nothing."""
        return ""

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        """Nothing, of each."""
        return [""] * len(rows)


def _as_group(prompt: Prompt) -> Group:
    return Group(prompt.ids, [Branch(prompt.ids[-1:])])
