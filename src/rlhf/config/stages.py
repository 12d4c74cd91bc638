"""The kinds of stages that a recipe is made of.

    stage_inputs      what stages have in common: rows, prompts, models, who judges
    file_stages       those that leave files            reasoning_stages   those around problems that can be checked
    training_stages   those that leave a model          methods            a stage that a method declares, and the table of methods
    stage_union       what a recipe holds under ``stages``

A method's own settings are in ``sft``, ``reward_model``, ``preference``, ``policy``, ``grpo_settings``, ``on_policy``, or in the
method's module; a stage adds models, data and who judges. All of these are imported for the kinds that are asked for: together they
take longer than most commands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from rlhf.config.methods import METHODS, OWN_KINDS
from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from rlhf.config.stage_inputs import StageConfig


@dataclass(frozen=True, slots=True)
class StageEntry:
    """A kind of stage, as it is known before its settings are imported."""

    settings: str
    """``module:Class`` below ``rlhf.config``; empty where the method of the kind's name declares it."""
    command: str = ""
    """Help of the command ``rlhf KIND``; empty where there is none."""


STAGE_KINDS: Mapping[str, StageEntry] = {
    "world": StageEntry("file_stages:WorldStage"),
    "reasoning": StageEntry("reasoning_stages:ReasoningStage"),
    "calculator": StageEntry("file_stages:CalculatorStage"),
    "preferences": StageEntry("file_stages:PreferencesStage"),
    "judge_rows": StageEntry("judge_rows:JudgeRowsStage"),
    "step_labels": StageEntry("reasoning_stages:StepLabelsStage"),
    "contexts": StageEntry("context_compression:ContextsStage"),
    "sft": StageEntry("training_stages:SFTStage", "Fine-tune a model on demonstrations: rlhf sft model=PATH data=FILE"),
    "reward": StageEntry(
        "training_stages:RewardStage", "Train a reward model on pairs: rlhf reward model=PATH data=FILE"
    ),
    "prm": StageEntry(
        "training_stages:ProcessRewardStage", "Train a judge of each step: rlhf prm model=PATH data=FILE"
    ),
    "dpo": StageEntry("training_stages:DPOStage", "Learn from pairs directly: rlhf dpo model=PATH data=FILE"),
    "simpo": StageEntry(
        "training_stages:SimPOStage",
        "Learn from pairs by mean log-probabilities, without a reference: rlhf simpo model=PATH data=FILE",
    ),
    "cpo": StageEntry(
        "training_stages:CPOStage",
        "Learn from pairs and from the better completions at once: rlhf cpo model=PATH data=FILE",
    ),
    "orpo": StageEntry(
        "training_stages:ORPOStage", "Fine-tune and learn from pairs in one stage: rlhf orpo model=PATH data=FILE"
    ),
    "kto": StageEntry(
        "training_stages:KTOStage", "Learn from single completions, good or bad: rlhf kto model=PATH data=FILE"
    ),
    "ppo": StageEntry(
        "training_stages:PPOStage",
        "Learn from rewards with a critic: rlhf ppo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    ),
    "vapo": StageEntry(
        "training_stages:VAPOStage",
        "PPO for long reasoning, the critic trained first: rlhf vapo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    ),
    "trpo": StageEntry(
        "training_stages:TRPOStage",
        "One natural-gradient step a rollout, within an exact KL: rlhf trpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    ),
    **{kind: StageEntry("", about) for kind, about in OWN_KINDS.items()},
    "online_dpo": StageEntry(
        "training_stages:OnlineDPOStage",
        "DPO on the policy's own completions, judged: rlhf online_dpo model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    ),
    "distill": StageEntry(
        "training_stages:DistillStage",
        "Learn a teacher's distributions on texts of one's own: rlhf distill model=PATH teacher=PATH prompts=FILE",
    ),
    "compressor": StageEntry(
        "context_compression:CompressorStage",
        "Learn to put a context into a few vectors: rlhf compressor model=PATH data=FILE num_vectors=4",
    ),
    "best_of_n": StageEntry(
        "file_stages:BestOfNStage",
        "Keep what a reward likes best of a policy's samples: rlhf best_of_n model=PATH prompts=FILE reward=FILE.py:FUNCTION",
    ),
    "evaluate": StageEntry("file_stages:EvaluateStage"),
    "pass_at_k": StageEntry("reasoning_stages:PassAtKStage"),
    "search_compare": StageEntry("search_stages:SearchCompareStage"),
    "context_compare": StageEntry("context_compression:ContextCompareStage"),
    "capabilities": StageEntry(
        "capabilities:CapabilitiesStage",
        "Ask capability suites before and after: rlhf capabilities policy=PATH baseline=PATH suites=[general,my.yaml]",
    ),
    "gate": StageEntry("gates:GateStage"),
}
"""Every kind of stage; a line more is a kind more, and so is a line of ``OWN_KINDS`` for a method that declares its stage. The order
is that of `rlhf --help`, of `rlhf config schema` and of errors."""


class StageClasses(Mapping[str, "type[StageConfig]"]):
    """Kind -> its class; a class is imported when it is looked up, and all of them for ``values`` and ``items``."""

    def __getitem__(self, kind: str) -> type[StageConfig]:
        """The class of a kind.

        Raises:
            KeyError: There is no such kind.
            ConfigError: What its line names is missing, or is not a stage of this kind.
        """
        return _imported(kind, STAGE_KINDS[kind].settings)

    def __contains__(self, kind: object) -> bool:
        return kind in STAGE_KINDS

    def __iter__(self) -> Iterator[str]:
        return iter(STAGE_KINDS)

    def __len__(self) -> int:
        return len(STAGE_KINDS)


@cache
def _imported(kind: str, settings: str) -> type[StageConfig]:
    from rlhf.config.kind_lines import class_of_line
    from rlhf.config.stage_inputs import StageConfig

    of = f"The stage kind {kind!r} in STAGE_KINDS (rlhf/config/stages.py)"
    stage: Any = class_of_line(settings, StageConfig, of=of) if settings else METHODS[kind].stage
    if not (isinstance(stage, type) and issubclass(stage, StageConfig)) or stage.kind_name() != kind:
        raise ConfigError(
            f"The stage kind {kind!r} should be a class below StageConfig with `kind: Literal[{kind!r}]`; got {stage!r}."
        )
    return stage


BY_KIND = StageClasses()


class KindsThat(Collection[str]):
    """Names of kinds whose class has a property; only the class of the kind that is asked about is imported, and all to list them.

    Args:
        have_it: Whether a class has it.
    """

    def __init__(self, have_it: Callable[[type[StageConfig]], bool]) -> None:
        self._have_it = have_it

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, str) and kind in BY_KIND and self._have_it(BY_KIND[kind])

    def __iter__(self) -> Iterator[str]:
        return (kind for kind, stage in BY_KIND.items() if self._have_it(stage))

    def __len__(self) -> int:
        return sum(1 for _ in self)


POLICY_KINDS = KindsThat(lambda stage: stage.leaves == "policy")
"""Kinds that leave a policy."""
JUDGE_KINDS = KindsThat(lambda stage: stage.leaves == "judge")
"""Kinds that leave a model which scores."""
MODEL_STAGES = KindsThat(lambda stage: stage.leaves != "files")
"""Kinds that leave a model."""
FILE_STAGES = KindsThat(lambda stage: stage.leaves == "files")
"""Kinds that leave files."""


def judge_kinds(judged: str) -> KindsThat:
    """Kinds that leave a model which scores whole completions, or steps."""
    return KindsThat(lambda stage: stage.judges == judged)
