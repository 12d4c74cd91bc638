"""Every training method by name: what it is, who published it, and the settings that make a stage be it.

A method is a kind of stage with certain settings: ``ipo`` is the kind ``dpo`` with ``loss: ipo``. ``rlhf methods`` prints
this table; docs/methods has a page and recipes/methods a recipe for each name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rlhf.config.default_sources import REQUIRED
from rlhf.errors import UnknownNameError, folded, look_up

if TYPE_CHECKING:
    from rlhf.config.schema import Setting

FAMILIES = {
    "supervised": "Learning from demonstrations",
    "reward": "Models that judge",
    "preference": "Learning from preferences, without a model that judges",
    "own": "Learning from the policy's own completions, without a policy gradient",
    "policy": "Learning from rewards by a policy gradient",
}
"""What a method learns from; the order of tables."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method."""

    title: str
    about: str
    """One line: what it does, for somebody who looks for a method."""
    family: str
    """A key of ``FAMILIES``."""
    kind: str
    """The kind of stage."""
    settings: Mapping[str, Any]
    """What makes a stage of this kind the method; empty where its defaults are."""
    options: tuple[str, ...]
    """Settings that belong to the method, dotted where they are nested; all others are those of every trainer."""
    computed_by: str
    """``module:function`` below ``rlhf``, where the formula stands."""
    paper: str
    """Authors, as they are cited."""
    year: int
    arxiv: str | None = None
    derived_defaults: Mapping[str, str] = field(default_factory=dict)
    """Of options whose default follows from another setting: how."""

    @property
    def citation(self) -> str:
        """Authors, year and, where there is one, the arXiv number."""
        return f"{self.paper} {self.year}" + (f", arXiv:{self.arxiv}" if self.arxiv else "")

    def described_options(self) -> Iterator[Setting]:
        """What a stage of this method cannot do without, then each option with the default that it has there."""
        # Here, because the settings classes come to this table when they explain a kind that there is none of.
        from rlhf.config.schema import describe_setting, settings_class

        owner = settings_class(self.kind)
        for option in self.required_settings():
            yield replace(describe_setting(owner, option), default=REQUIRED)
        for option in self.options:
            default = self.derived_defaults.get(option, self.settings.get(option))
            yield describe_setting(owner, option, default=default)

    def required_settings(self) -> tuple[str, ...]:
        """Names of what a recipe has to say beside what makes it this method, model first: model, data, who teaches or judges."""
        from rlhf.config.schema import settings_class

        owner = settings_class(self.kind)
        try:
            owner.model_validate({"kind": self.kind, **self.settings})
        except ValidationError as error:  # not `is_required`: a reward is, too, where no environment stands in for it
            missing = {str(each["loc"][0]) for each in error.errors() if each["type"] == "missing"}
            return tuple(sorted(missing, key=lambda name: (name != "model", list(owner.model_fields).index(name))))
        return ()


PAIR_TERMS = ("beta", "sft_coef")
"""What all losses on the margin against a reference have."""
ROLLOUT = ("rollouts", "prompts_per_rollout", "group_size", "epochs_per_rollout", "minibatch_size")
"""How much is asked, and how often it is learned from."""
STEPS = ("prompts_per_rollout", "minibatch_size", "epochs_per_rollout")
"""How many steps a rollout is; in the first of them a ratio is 1, and nothing that bounds it acts."""
CLIPS = ("clip_low", "clip_high")
PENALTY = ("kl.where", "kl.estimator", "kl.coef")
LENGTH = ("missing_eos_penalty", "overlong")
"""What being cut, or coming near to it, costs."""
CREDIT = ("advantage", "policy_loss", "aggregation")
CRITIC = ("gae_lambda", "gamma", "value_learning_rate", "value_init", "value_model", "value_coef", "clip_value")

METHODS: dict[str, Method] = {
    "sft": Method(
        "Supervised fine-tuning", "Imitate demonstrations: the likelihood of their completions.",
        "supervised", "sft", {}, ("train_on", "label_smoothing", "epochs", "learning_rate"),
        "losses.supervised:nll_loss", "Ouyang et al.", 2022, "2203.02155",
    ),
    "dft": Method(
        "Dynamic fine-tuning",
        "SFT in which a token counts by the probability it has already: learn what is near, leave what is absurd.",
        "supervised", "sft", {"loss": "dft"}, ("loss", "train_on", "learning_rate"),
        "losses.supervised:dft_loss", "Wu et al.", 2025, "2508.05629",
    ),
    "neftune": Method(
        "NEFTune", "SFT with noise on the embeddings: a small data set is not learned by heart.",
        "supervised", "sft", {"neftune_alpha": 5.0}, ("neftune_alpha", "train_on", "epochs"),
        "losses.regularizers:neftune_noise", "Jain et al.", 2023, "2310.05914",
    ),
    "reward": Method(
        "Reward model (Bradley-Terry)",
        "Score completions so that the difference of two scores, times the model's std, is the log-odds of preferring one.",
        "reward", "reward", {}, ("label_smoothing", "use_label_probability", "use_margin", "center_coef", "head", "normalize"),
        "losses.reward:bradley_terry_loss", "Ouyang et al.", 2022, "2203.02155",
    ),
    "reward_hinge": Method(
        "Reward model with a hinge", "A pair teaches until its margin is reached, and all that miss it pull alike.",
        "reward", "reward", {"loss": "hinge"}, ("loss", "hinge_margin", "use_margin", "center_coef"),
        "losses.reward:hinge_margin_loss", "Herbrich, Graepel and Obermayer", 2000,
    ),
    "reward_graded": Method(
        "Reward model with graded preferences",
        "'Slightly' and 'significantly better' each have a margin, learned with the scores.",
        "reward", "reward", {"loss": "graded"}, ("loss", "center_coef"),
        "losses.ties:graded_loss", "Agresti", 1992,
    ),
    "reward_ties": Method(
        "Reward model with ties",
        "That two completions are alike is knowledge about both, not a row to drop (Davidson, or Rao and Kupper).",
        "reward", "reward", {"loss": "davidson"}, ("loss", "center_coef"),
        "losses.ties:davidson_loss", "Davidson 1970; Rao and Kupper 1967; Liu et al.", 2024, "2410.05328",
    ),
    "reward_rankings": Method(
        "Reward model from rankings (Plackett-Luce)",
        "An order of several completions is a row of choices: the best of all, the best of the rest.",
        "reward", "reward", {"loss": "plackett_luce"}, ("loss", "top_ranks"),
        "losses.rankings:plackett_luce_loss", "Plackett 1975; Rafailov et al.", 2023, "2305.18290",
    ),
    "reward_ratings": Method(
        "Reward model from ratings", "Regression on the marks that single completions were given.",
        "reward", "reward", {"loss": "rating"}, ("loss", "normalize"),
        "losses.reward:rating_loss", "Wang et al.", 2024, "2406.08673",
    ),
    "reward_binary": Method(
        "Reward model from verdicts",
        "The score is the log-odds that a completion is good; as a verifier, of whole solutions.",
        "reward", "reward", {"loss": "binary", "normalize": False}, ("loss", "normalize"),
        "losses.reward:binary_loss", "Uesato et al.", 2022, "2211.14275",
    ),
    "reward_ensemble": Method(
        "Ensemble of reward models",
        "Several models judge; where they part nobody knows, and the policy is paid for the worst case.",
        "reward", "reward", {"num_models": 3}, ("num_models", "num_heads", "head"),
        "losses.reward:bradley_terry_loss", "Coste et al.", 2023, "2310.02743",
    ),
    "prm": Method(
        "Process reward model", "Judges every step of a solution: finds the first wrong one; as a reward, one number from all steps together.",
        "reward", "prm", {},
        ("loss", "until_first_error", "wrong_weight", "aggregate", "step_separator", "extra_layers", "lm_coef"),
        "losses.process:step_loss", "Lightman et al.", 2023, "2305.20050",
    ),
    "dpo": Method(
        "Direct preference optimization",
        "Learn from pairs what a reward model and RL would end at, in one supervised step.",
        "preference", "dpo", {}, (*PAIR_TERMS, "loss", "reference_free", "learning_rate"),
        "losses.preference:dpo_loss", "Rafailov et al.", 2023, "2305.18290",
    ),
    "cdpo": Method(
        "Conservative DPO",
        "DPO for labels of which a share is the wrong way round: it stops at the margin that the noise allows.",
        "preference", "dpo", {"label_smoothing": 0.1}, ("label_smoothing", *PAIR_TERMS),
        "losses.preference:dpo_loss", "Mitchell", 2023,
    ),
    "robust_dpo": Method(
        "Robust DPO", "DPO with the effect of wrong labels taken out: on average the loss of the true ones.",
        "preference", "dpo", {"loss": "robust", "label_smoothing": 0.1}, ("loss", "label_smoothing", *PAIR_TERMS),
        "losses.preference:robust_dpo_loss", "Chowdhury et al.", 2024, "2403.00409",
    ),
    "ipo": Method(
        "IPO", "The margin is drawn to a target instead of pushed without end: no overfitting of sure pairs.",
        "preference", "dpo", {"loss": "ipo"}, ("loss", "beta", "ipo_per_token", "sft_coef"),
        "losses.preference:ipo_loss", "Azar et al.", 2023, "2310.12036",
    ),
    "slic": Method(
        "SLiC (hinge)", "A hinge on DPO's margin: a pair that is won by enough teaches nothing more.",
        "preference", "dpo", {"loss": "hinge"}, ("loss", *PAIR_TERMS),
        "losses.preference:dpo_hinge_loss", "Zhao et al.", 2023, "2305.10425",
    ),
    "exo": Method(
        "EXO", "Reverse KL to the annotator's choice where DPO has forward KL: it seeks the mode.",
        "preference", "dpo", {"loss": "exo", "label_smoothing": 0.1}, ("loss", "label_smoothing", *PAIR_TERMS),
        "losses.preference:exo_loss", "Ji et al.", 2024, "2402.00856",
    ),
    "discopop": Method(
        "DiscoPOP", "A blend of the logistic and the exponential loss that a language model's search came up with.",
        "preference", "dpo", {"loss": "discopop"}, ("loss", "discopop_temperature", *PAIR_TERMS),
        "losses.preference:discopop_loss", "Lu et al.", 2024, "2406.08414",
    ),
    "nca": Method(
        "NCA", "Noise-contrastive: also holds the chosen completion's own likelihood, which DPO may let fall.",
        "preference", "dpo", {"loss": "nca"}, ("loss", *PAIR_TERMS),
        "losses.anchored:nca_loss", "Chen et al.", 2024, "2402.05369",
    ),
    "bco": Method(
        "BCO on pairs", "The implicit reward is the logit of 'this one was chosen', for each side by itself.",
        "preference", "dpo", {"loss": "bco"}, ("loss", *PAIR_TERMS),
        "losses.anchored:bco_pair_loss", "Jung et al.", 2024, "2404.04656",
    ),
    "sppo": Method(
        "SPPO", "Self-play: each log-ratio is drawn to what its win rate is worth. For rounds of fresh pairs.",
        "preference", "dpo", {"loss": "sppo"}, ("loss", *PAIR_TERMS),
        "losses.anchored:sppo_loss", "Wu et al.", 2024, "2405.00675",
    ),
    "apo_zero": Method(
        "APO-zero",
        "Chosen up and rejected down, each against the reference: for data better than what the policy writes.",
        "preference", "dpo", {"loss": "apo_zero"}, ("loss", *PAIR_TERMS),
        "losses.anchored:apo_zero_loss", "D'Oosterlinck et al.", 2024, "2408.06266",
    ),
    "apo_down": Method(
        "APO-down", "Both down, the rejected one further: for data worse than what the policy writes.",
        "preference", "dpo", {"loss": "apo_down"}, ("loss", *PAIR_TERMS),
        "losses.anchored:apo_down_loss", "D'Oosterlinck et al.", 2024, "2408.06266",
    ),
    "aot": Method(
        "AOT", "Optimal transport: the policy's margins shall dominate the reference's, rank by rank over a step.",
        "preference", "dpo", {"loss": "aot"}, ("loss", *PAIR_TERMS, "batch_size"),
        "losses.transport:aot_loss", "Melnyk et al.", 2024, "2406.05882",
    ),
    "fdpo": Method(
        "f-DPO", "DPO under another divergence than reverse KL (Jensen-Shannon here): more or less variety.",
        "preference", "dpo", {"divergence": "js"}, ("divergence", "divergence_alpha", "loss", *PAIR_TERMS),
        "losses.divergences:divergence_scores", "Wang et al.", 2023, "2309.16240",
    ),
    "ld_dpo": Method(
        "LD-DPO", "Tokens that only the longer completion of a pair has count for less: no reward for length.",
        "preference", "dpo", {"length_alpha": 0.5}, ("length_alpha", "loss", *PAIR_TERMS),
        "losses.pair_tokens:length_desensitized_logprobs", "Liu et al.", 2024, "2409.06411",
    ),
    "length_normalized_dpo": Method(
        "Length-normalized DPO", "DPO on log-ratios per token: a long completion has no larger say than a short one.",
        "preference", "dpo", {"length_normalized": True, "beta": 3.0}, ("length_normalized", *PAIR_TERMS),
        "losses.preference:length_normalized_dpo_loss", "Lambert et al.", 2024, "2411.15124",
    ),
    "wpo": Method(
        "WPO", "Pairs that the policy could have written itself count more: old data as if it were fresh.",
        "preference", "dpo", {"weight_by_policy": True}, ("weight_by_policy", "loss", *PAIR_TERMS),
        "losses.pair_tokens:wpo_weights", "Zhou et al.", 2024, "2406.11827",
    ),
    "rpo": Method(
        "RPO", "DPO with the chosen completion's likelihood as a second term: the chosen one cannot fade.",
        "preference", "dpo", {"sft_coef": 1.0}, ("sft_coef", "beta", "loss"),
        "losses.pair_tokens:chosen_nll", "Pang et al.", 2024, "2404.19733",
    ),
    "simpo": Method(
        "SimPO", "No reference: the mean log-probability is the reward, and it has to win by a margin.",
        "preference", "simpo", {}, ("beta", "target_margin", "label_smoothing", "sft_coef"),
        "losses.reference_free:simpo_loss", "Meng et al.", 2024, "2405.14734",
    ),
    "cpo": Method(
        "CPO", "No reference: DPO's loss on bare log-probabilities, held by the chosen completion's likelihood.",
        "preference", "cpo", {}, ("beta", "sft_coef", "label_smoothing"),
        "losses.reference_free:cpo_loss", "Xu et al.", 2024, "2401.08417",
    ),
    "orpo": Method(
        "ORPO", "Fine-tuning and preference in one loss, straight from a base model.",
        "preference", "orpo", {}, ("odds_coef", "sft_coef", "learning_rate"),
        "losses.reference_free:odds_ratio_loss", "Hong et al.", 2024, "2403.07691",
    ),
    "kto": Method(
        "KTO", "No pairs: single completions, each good or bad, valued as people value gains and losses.",
        "preference", "kto", {},
        ("beta", "desirable_weight", "undesirable_weight", "reference_point", "reference_point_decay"),
        "losses.unpaired:kto_loss", "Ethayarajh et al.", 2024, "2402.01306",
    ),
    "kto_bco": Method(
        "BCO on single completions",
        "No pairs: a binary classifier of good and bad, whose logit is the implicit reward.",
        "preference", "kto", {"loss": "bco"}, ("loss", "beta", "reference_point_decay"),
        "losses.unpaired:bco_loss", "Jung et al.", 2024, "2404.04656",
    ),
    "iterative_dpo": Method(
        "Iterative DPO",
        "Several rounds: fresh pairs from the newest policy, each judged, each held to the first policy.",
        "own", "dpo", {}, ("reference", *PAIR_TERMS, "loss"),
        "losses.preference:dpo_loss", "Xiong et al.", 2023, "2312.11456",
    ),
    "online_dpo": Method(
        "Online DPO", "DPO on pairs that the policy has just written and a reward has just judged.",
        "own", "online_dpo", {}, ("group_size", "beta", "loss", "label_smoothing", *ROLLOUT[:2], "minibatch_size"),
        "losses.preference:dpo_loss", "Guo et al.", 2024, "2402.04792",
    ),
    "best_of_n": Method(
        "Best of n, distilled",
        "Rejection-sampling fine-tuning (RAFT): ask often, keep what the reward likes best, imitate it.",
        "own", "best_of_n", {}, ("num_samples", "keep", "min_score", "sampling.temperature"),
        "losses.supervised:nll_loss", "Dong et al.", 2023, "2304.06767",
    ),
    "distill": Method(
        "On-policy distillation",
        "A teacher's distributions on the student's own completions: dense, and about its own mistakes.",
        "own", "distill", {}, ("divergence_beta", "on_policy_frac", *ROLLOUT[:2], "minibatch_size"),
        "losses.distillation:generalized_jsd", "Agarwal et al.", 2023, "2306.13649",
    ),
    "ppo": Method(
        "PPO", "The classic of RLHF: a critic says what to expect, a clipped ratio how far a step may go.",
        "policy", "ppo", {}, (*CLIPS, *STEPS, *PENALTY, *CRITIC, "whiten_advantages", *LENGTH[:1]),
        "losses.policy:clipped_policy_loss", "Schulman et al.", 2017, "1707.06347",
    ),
    "vapo": Method(
        "VAPO", "PPO for long reasoning: a pre-trained critic, a lambda for each side, and for each length.",
        "policy", "vapo", {},
        (
            "value_warmup_rollouts", "value_gae_lambda", "length_adaptive_alpha", "positive_nll_coef", "positive_score",
            *CLIPS, "group_size", *STEPS, "value_learning_rate",
        ),
        "losses.advantage:length_adaptive_lambda", "Yue et al.", 2025, "2504.05118",
    ),
    "trpo": Method(
        "TRPO", "One natural-gradient step a rollout, as long as the exact KL allows: nothing to clip.",
        "policy", "trpo", {}, ("max_kl", "damping", "cg_iterations", "line_search_tries", "fisher_frac", *CRITIC[:3]),
        "losses.trust_region:trust_region_step", "Schulman et al.", 2015, "1502.05477",
    ),
    "grpo": Method(
        "GRPO", "No critic: a completion is measured against its siblings of the same prompt.",
        "policy", "grpo", {}, ("group_size", *STEPS, *CREDIT, *CLIPS, *PENALTY, "kl.unbiased"),
        "losses.advantage:group_advantages", "Shao et al.", 2024, "2402.03300",
    ),
    "dr_grpo": Method(
        "Dr. GRPO", "GRPO without its biases by length and by difficulty, and without KL.",
        "policy", "dr_grpo", {}, ("group_size", *STEPS, *CREDIT, *CLIPS, "kl.where", "kl.measure_every"),
        "losses.aggregation:constant_mean", "Liu et al.", 2025, "2503.20783",
    ),
    "dapo": Method(
        "DAPO", "GRPO for long reasoning: clip higher, mean over tokens, groups that teach, soft length limit, no KL.",
        "policy", "dapo", {},
        (
            "group_size", *STEPS, *CLIPS, "aggregation", "dynamic_sampling", "max_sampling_rounds", "overlong", "kl.where",
            "kl.measure_every",
        ),
        "losses.shaping:teaching_groups", "Yu et al.", 2025, "2503.14476",
        {"overlong": "max_new_tokens / 5"},
    ),
    "gspo": Method(
        "GSPO", "One ratio, and one clip, for a whole completion: steadier for long ones and mixtures of experts.",
        "policy", "gspo", {}, ("group_size", *STEPS, *CLIPS, *CREDIT, "kl.where"),
        "losses.sequence_ratio:sequence_policy_loss", "Zheng et al.", 2025, "2507.18071",
    ),
    "cispo": Method(
        "CISPO", "Clips the weight of a token and never its gradient: rare words that start a thought keep teaching.",
        "policy", "cispo", {}, ("group_size", *STEPS, *CLIPS, *CREDIT, "kl.where"),
        "losses.policy:cispo_loss", "MiniMax", 2025, "2506.13585",
    ),
    "sapo": Method(
        "SAPO", "A soft gate in place of the clip: what a token teaches fades and never stops at once.",
        "policy", "sapo", {}, ("group_size", *STEPS, *CREDIT, "kl.where"),
        "losses.policy:sapo_loss", "Gao et al.", 2025, "2511.20347",
    ),
    "rloo": Method(
        "RLOO", "The plain policy gradient against the mean of a completion's siblings: simple, unbiased.",
        "policy", "rloo", {}, ("group_size", *CREDIT, *PENALTY),
        "losses.advantage:leave_one_out_advantages", "Ahmadian et al.", 2024, "2402.14740",
    ),
    "reinforce_pp": Method(
        "REINFORCE++", "No critic and no groups: advantages of tokens, whitened over the whole rollout.",
        "policy", "reinforce_pp", {}, ("group_size", *STEPS, "baseline", *CREDIT, *CLIPS, *PENALTY),
        "losses.advantage:reinforce_plus_plus_advantages", "Hu et al.", 2025, "2501.03262",
    ),
    "remax": Method(
        "ReMax", "The plain policy gradient against the prompt's greedy completion: one more sample, no critic.",
        "policy", "remax", {}, ("prompts_per_rollout", "group_size", *CREDIT, *PENALTY),
        "losses.advantage:greedy_baseline_advantages", "Li et al.", 2023, "2310.10505",
    ),
}  # fmt: skip
"""In the order of tables: by family, then as one comes to them."""


OTHER_NAMES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "aot_pair": ("aot", {}),
    "aot_unpaired": ("aot", {"loss": "aot_unpaired"}),
    "bco_pair": ("bco", {}),
    "bradley_terry": ("reward", {}),
    "dpo_norm": ("length_normalized_dpo", {}),
    "exo_pair": ("exo", {}),
    "gkd": ("distill", {"divergence_beta": 0.5, "on_policy_frac": 0.5}),
    "nca_pair": ("nca", {}),
    "oaif": ("online_dpo", {}),
    "plackett_luce": ("reward_rankings", {}),
    "raft": ("best_of_n", {}),
    "rao_kupper": ("reward_ties", {"loss": "rao_kupper"}),
    "reinforce_pp_baseline": ("reinforce_pp", {"group_size": 4, "baseline": "group"}),
    "rejection_sampling": ("best_of_n", {}),
    "rft": ("best_of_n", {}),
    "rso": ("slic", {}),
    "sppo_hard": ("sppo", {}),
}
"""What papers and other tools call a method, or one of its options: our name, and settings beside the method's own."""


def method(name: str) -> Method:
    """The method of that name.

    Raises:
        UnknownNameError: There is none; the message holds what we call it, or the nearest names and all of them.
    """
    for other, (ours, settings) in OTHER_NAMES.items():
        if folded(name) == folded(other):
            found = METHODS[ours]
            meant = as_settings(replace(found, settings={**found.settings, **settings}))
            raise UnknownNameError(f"No method is called {name!r} here: it is `{meant}`. See `rlhf methods {ours}`.")
    return look_up(METHODS, name, kind="method")


def method_behind(word: str, kinds: Collection[str]) -> tuple[str, Method] | None:
    """The method that somebody means who writes its name for a kind of stage; capitals and punctuation do not count.

    Args:
        word: What was written, such as ``ipo`` or ``Dr.GRPO``.
        kinds: Those that could be meant there.
    """
    for name, found in METHODS.items():
        if folded(name) == folded(word) and found.kind in kinds:
            return name, found
    return None


def as_settings(method: Method) -> str:
    """What makes a stage be the method, as YAML has it: ``kind: dpo, loss: ipo``."""
    shown = {"kind": method.kind, **method.settings}
    return ", ".join(
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in shown.items()
    )


def recipe_of(name: str) -> str:
    """Where the method's recipe lies in the repository."""
    return f"recipes/methods/{name}.yaml"


def page_of(name: str) -> str:
    """Where the method's page lies in the repository."""
    return f"docs/methods/{name}.md"
