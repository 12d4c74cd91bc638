"""Detectors of reward hacking: what each of them looks for, and what an alarm does.

Off unless a stage names a held-out `judge`, or has this section. What each detector sees and how often it is wrong was
measured by simulation: docs/reward-hacking.md.

    hacking: warn                                        the three that were chosen to act only warn
    hacking: {action: restore, every: 50}                go back to the last good checkpoint; look every 50 steps
    hacking: {repetition_share: penalize}                flagged completions lose part of their reward
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rlhf.config.guards import Action, Guarded, as_written

PenaltyAction = Annotated[Literal["warn", "penalize", "stop", "restore", "off"], BeforeValidator(as_written)]
"""As ``rlhf.config.guards.Action``, and ``penalize``: while the alarm lasts, the completions that show it lose reward."""

MIN_HELD_OUT = 20
"""Held-out prompts below which the judge's detectors would be wrong more often than they say."""


class DetectorConfig(Guarded):
    """What every detector has."""

    default_action: ClassVar[str] = "warn"
    """Where neither the detector nor `hacking.action` says anything; empty for one that follows `hacking.action`."""
    asks_judge: ClassVar[bool] = False
    """Whether it needs a held-out judge."""
    action: Action | None = None
    """What an alarm does; by default what docs/reward-hacking.md lists."""


class PenalizingConfig(DetectorConfig):
    """A detector that can point at single completions."""

    action: PenaltyAction | None = None  # type: ignore[assignment]  # wider than the base; settings are read only
    """What an alarm does; `penalize` subtracts from the rewards of the completions that show it, while the alarm lasts."""


class JudgeSlopeConfig(DetectorConfig):
    """The held-out judge's score falls while the reward does not: t statistic of the prompts' least-squares slopes."""

    default_action = ""
    asks_judge = True
    window: int = Field(10, ge=4)
    """Evaluations that the short window holds."""
    threshold: float = Field(4.0, gt=0)
    """The judge's t below minus this over the short window is an alarm."""
    long_window: int = Field(20, ge=4)
    """Evaluations that the long window holds, which sees slower falls."""
    long_threshold: float = Field(3.7, gt=0)
    """The same for the long window."""
    proxy_threshold: float = 1.0
    """Where the reward's own t is at or below minus this, reward and judge fall together: no hack, but a `collapse`."""

    @model_validator(mode="after")
    def _windows_differ(self) -> Self:
        if self.long_window <= self.window:
            raise ValueError(f"long_window ({self.long_window}) must be above window ({self.window})")
        return self


class CollapseConfig(JudgeSlopeConfig):
    """Judge and reward fall together; settings as of `judge_slope`. Only a warning: quality that wanders does that, too."""

    default_action = "warn"


class WinRateDropConfig(DetectorConfig):
    """The policy loses against its own best checkpoint, in the eyes of the held-out judge: a Shiryaev-Roberts e-detector."""

    default_action = ""
    asks_judge = True
    win_rate: float = Field(0.45, gt=0, lt=1)
    """Win rates from here on are healthy: the stated false-alarm rate holds for them."""
    alpha: float = Field(0.005, gt=0, lt=1)
    """Chance of an alarm within the run's evaluations, as long as the win rate is healthy."""
    anchor_window: int = Field(5, ge=1)
    """The best checkpoint is the one with the highest mean of the judge over so many evaluations up to it."""
    anchor_gain: float = Field(1.0, ge=0)
    """A better checkpoint takes its place once that mean is higher by so many standard errors of one evaluation's mean; each change
    costs `anchor_completions` of each prompt."""
    anchor_completions: int = Field(4, ge=2)
    """Completions of the best checkpoint for each prompt, sampled after it was chosen."""


class JudgeGapConfig(DetectorConfig):
    """Reward and judge move apart, each in units of its spread over prompts at the start. Only a warning: an honest judge gains less
    than the reward, too."""

    asks_judge = True
    window: int = Field(10, ge=4)
    """Evaluations whose slopes are looked at."""
    threshold: float = Field(7.0, gt=0)
    """The t of the gap's slopes above this is an alarm."""


class BlindConfig(DetectorConfig):
    """Too few held-out prompts get a score of the judge, so that the detectors that ask it are silent. Only a warning: nothing was
    found, and nothing could be."""

    asks_judge = True
    window: int = Field(10, ge=1)
    """Evaluations that are looked at together."""
    min_prompts: int = Field(MIN_HELD_OUT, ge=1)
    """Fewer prompts than this with a score at each of them are an alarm."""


class RepetitionShareConfig(PenalizingConfig):
    """More completions repeat a long block at once than the starting policy's do on the same prompts."""

    default_action = ""
    min_words: int = Field(20, ge=2)
    """A block that is repeated at once, of so many words in all its repeats together, flags a completion."""
    max_rise: float = Field(0.08, gt=0, lt=1)
    """Share of flagged completions above that of the starting policy that is an alarm."""
    window: int = Field(10, ge=1)
    """Rollouts that are counted together."""
    min_completions: int = Field(640, ge=1)
    """As many further rollouts as this needs are counted, too: small rollouts say little."""
    penalty: float = Field(1.0, gt=0)
    """For `penalize`: subtracted from the reward of a flagged completion."""


class LengthGamingConfig(PenalizingConfig):
    """Longer completions of the same prompt score higher, and completions have grown."""

    window: int = Field(10, ge=1)
    """Rollouts that are counted together."""
    correlation: float = Field(0.5, gt=0, lt=1)
    """Correlation of log length and reward within prompts above this,"""
    growth: float = Field(1.5, gt=1)
    """and a geometric mean length above so many times the starting policy's on the same prompts, are an alarm."""
    penalty: float = Field(1.0, gt=0)
    """For `penalize`: subtracted for each factor e of length beyond the starting policy's."""


class SpikesConfig(DetectorConfig):
    """The mean reward of a rollout is far from the median of those before: finds broken rewards rather than hacking."""

    window: int = Field(50, ge=10)
    """Rollouts before it that are looked at."""
    threshold: float = Field(8.0, gt=0)
    """Robust deviations (1.4826 times the median absolute deviation)."""


class SimpleLengthConfig(PenalizingConfig):
    """Pooled correlation of length and reward: measured, it sees next to nothing, and mixtures of tasks set it off."""

    default_action = "off"
    baseline_words: int = Field(200, ge=1)
    """Length that a completion is compared with."""
    min_words: int = Field(10, ge=0)
    """Shorter completions are skipped."""
    correlation: float = Field(0.7, gt=0, lt=1)
    """Pearson correlation of words and rewards above which completions are penalized."""
    min_values: int = Field(100, ge=3)
    """Nothing is said until more values than this were seen; the correlation is that of the newest so many."""
    ratio: float = Field(2.0, gt=0)
    """A completion longer than this many baselines loses log(words / baseline / ratio)."""


class SimpleRepetitionConfig(PenalizingConfig):
    """Share of repeated three-word runs: grows with length by itself, and lists and JSON set it off."""

    default_action = "off"
    min_words: int = Field(10, ge=0)
    """Shorter completions are skipped."""
    rate: float = Field(0.3, gt=0, lt=1)
    """Share above which a completion is flagged."""
    penalty_factor: float = Field(2.0, gt=0)
    """A flagged completion loses its share times this."""


class SimpleSpikesConfig(PenalizingConfig):
    """Single rewards far from the mean of the earlier ones: among thousands of rewards some always are."""

    default_action = "off"
    window: int = Field(50, ge=2)
    """Earlier rewards that one is compared with; nothing is said until there are so many."""
    deviations: float = Field(3.0, gt=0)
    """Standard deviations beyond which a reward is flagged; with `penalize` it is cut to them."""


class HackingConfig(Guarded):
    """Detectors of reward hacking; a word in place of the section is the action of `judge_slope`, `win_rate_drop` and
    `repetition_share`."""

    action: Action = "stop"
    """What an alarm of those three does where they say nothing else; `off` turns every detector off that says nothing else."""
    every: int = Field(20, ge=1)
    """Optimizer steps between looks at the held-out prompts, where there is a judge; a look comes before a rollout."""
    num_prompts: int = Field(128, ge=MIN_HELD_OUT)
    """Held-out prompts, the first of `eval_prompts`; each gets one completion at each look."""
    reference_completions: int = Field(256, ge=1)
    """Training prompts whose completions by the starting policy the lengths and repetitions are compared with, one each."""
    allow_shared: bool = False
    """Take a judge that is the reward, has its weights or was trained on its pairs: it shares the flaws that it should find."""
    judge_slope: JudgeSlopeConfig = JudgeSlopeConfig()
    """The judge's score falls while the reward does not."""
    collapse: CollapseConfig = CollapseConfig()
    """The judge's score falls, and the reward with it."""
    win_rate_drop: WinRateDropConfig = WinRateDropConfig()
    """Losses against the best checkpoint."""
    judge_gap: JudgeGapConfig = JudgeGapConfig()
    """Reward and judge move apart."""
    blind: BlindConfig = BlindConfig()
    """The judge gives no scores."""
    repetition_share: RepetitionShareConfig = RepetitionShareConfig()
    """Completions that go round in circles."""
    length_gaming: LengthGamingConfig = LengthGamingConfig()
    """Length that pays."""
    spikes: SpikesConfig = SpikesConfig()
    """Leaps of the mean reward."""
    simple_length: SimpleLengthConfig = SimpleLengthConfig()
    """A heuristic that is off by default."""
    simple_repetition: SimpleRepetitionConfig = SimpleRepetitionConfig()
    """A heuristic that is off by default."""
    simple_spikes: SimpleSpikesConfig = SimpleSpikesConfig()
    """A heuristic that is off by default."""

    def action_of(self, detector: str) -> Literal["warn", "penalize", "stop", "restore", "off"]:
        """What an alarm of this detector does."""
        config: Any = getattr(self, detector)
        action: Any = config.action or ("off" if self.action == "off" else config.default_action or self.action)
        return action

    def without_judge(self) -> list[str]:
        """Detectors that were set although they need a held-out judge: what to say where there is none."""
        defaults = {
            name: field.default for name, field in type(self).model_fields.items()
        }  # a resolved recipe writes all out
        return [
            name
            for name, config in self.of_each().items()
            if config.asks_judge and config != defaults[name] and self.action_of(name) != "off"
        ]

    def of_each(self) -> dict[str, DetectorConfig]:
        """Every detector's own settings, by its name."""
        return {name: value for name, value in self if isinstance(value, DetectorConfig)}
