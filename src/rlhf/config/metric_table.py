"""The metrics of a model by name: what each needs, and which function measures it. Loads no torch.

A metric is one file below ``rlhf.evaluation.metrics`` and one line here. A user's own is ``package.module:name`` or
``path/to/file.py:name``: a ``Metric``, or a function of the reward signature, ``(prompts, completions, **columns)``, that gives a
number or None for each completion.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.config.base import FUNCTION
from rlhf.errors import ConfigError, look_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a model."""

    measure: str | Callable[..., Any]
    """Takes ``rlhf.evaluation.metrics.metric_inputs.MetricInputs`` and gives ``Measured``; by text, ``module:function`` below
    ``rlhf.evaluation.metrics``."""
    needs: tuple[str, ...] = ()
    """Keys of ``NEEDS``; sampled completions where it is empty."""
    unit: str = ""
    """Of its number, such as ``nats``; ``share`` for 0 to 1."""
    of_baseline: bool = True
    """Whether it means something for the baseline, too, so that the difference of the two is measured."""
    about: str = ""
    """One line for `rlhf evaluate --help`."""

    def __call__(self, inputs: Any) -> Any:
        """Measure it: ``MetricInputs`` -> ``Measured``."""
        if not isinstance(self.measure, str):
            return self.measure(inputs)
        module, _, name = self.measure.partition(":")
        return getattr(importlib.import_module(f"rlhf.evaluation.metrics.{module}"), name)(inputs)


NEEDS: Mapping[str, str] = {
    "ref_model": "ref_model=, the model that the distance is measured to; baseline= does as well",
    "baseline": "baseline=, the model that it is compared with",
    "reward_model": "reward_model=, a reward model or any other reward",
    "judge": "judge=, who scores completions",
    "preference": "judge=, who says which of two completions is better",
    "quality": "judge= or reward_model=, who says how good a completion is",
    "pairwise_judge": "judge=, one that compares two completions, such as an endpoint or a local model",
    "pairs": "pairs=, a file of held-out preference pairs",
    "references": "test rows with a column `reference`, `references` or `completion`: the texts to compare with",
    "texts": "texts=, a file of texts, dialogues or demonstrations whose likelihood is measured",
    "toxicity_classifier": "toxicity_classifier=, the folder or hub name of a text classifier, or lexicon:FILE",
    "should_refuse": "test rows with a column `should_refuse`, true or false",
}
"""What a metric may need -> what to give."""
COLUMN_NEEDS = frozenset({"references", "should_refuse"})
"""Columns of the rows: whether they are there shows when the rows are read."""
NO_COMPLETIONS = frozenset({"pairs", "texts"})
"""A metric with one of these reads rows of its own and samples nothing."""

DRAWN_COMPLETIONS = frozenset({"kl_divergence"})
"""Metrics whose number says something only of completions that were drawn from the policy's own distribution."""

METRICS: Mapping[str, Metric] = {
    "kl_divergence": Metric(
        measure="kl_divergence:kl_divergence", needs=("ref_model",), unit="nats", of_baseline=False,
        about="KL(model || reference) of a completion, exact at each token of the model's own samples",
    ),
    "reward_score": Metric(
        measure="reward_score:reward_score", needs=("reward_model",), unit="points", about="mean score of a reward",
    ),
    "judge_score": Metric(
        measure="reward_score:judge_score", needs=("judge",), unit="points", about="mean score of the judge",
    ),
    "reward_accuracy": Metric(
        measure="reward_accuracy:reward_accuracy", needs=("reward_model", "pairs"), unit="share", of_baseline=False,
        about="share of held-out pairs that the reward orders as people did",
    ),
    "judge_accuracy": Metric(
        measure="judge_accuracy:judge_accuracy", needs=("pairwise_judge", "pairs"), unit="share", of_baseline=False,
        about="share of held-out pairs that a judge which compares decides as people did",
    ),
    "calibration": Metric(
        measure="pair_calibration:pair_calibration", needs=("reward_model", "pairs"), unit="nats", of_baseline=False,
        about="log loss of the reward's probabilities on held-out pairs, with Brier score and ECE",
    ),
    "win_rate": Metric(
        measure="judged_win_rate:judged_win_rate", needs=("baseline", "preference"), unit="share", of_baseline=False,
        about="share of prompts on which the judge prefers the model to the baseline, ties half",
    ),
    "quality_at_equal_length": Metric(
        measure="equal_length:quality_at_equal_length", needs=("baseline", "quality"), unit="points", of_baseline=False,
        about="gain in quality over the baseline that length does not explain",
    ),
    "pass_at_k": Metric(
        measure="solved_in_k:solved_in_k", needs=("judge",), unit="share",
        about="chance that one of k samples solves a prompt, k = 1 and powers of two",
    ),
    "length": Metric(measure="length:length", unit="tokens", about="median length, 95 % quantile, share cut off"),
    "distinct_n": Metric(
        measure="distinct_n:distinct_words", unit="share", about="different pairs of words among all (also 1, 3 words)",
    ),
    "ead": Metric(measure="ead:ead", unit="share", about="different tokens, corrected for how many were written"),
    "self_bleu": Metric(
        measure="self_bleu:self_bleu", unit="share", about="how alike the samples of a prompt are; lower is more diverse",
    ),
    "compression_ratio": Metric(
        measure="compression_ratio:compression_ratio", unit="", about="bytes of all texts over bytes compressed; lower is more diverse",
    ),
    "vendi_score": Metric(
        measure="vendi:vendi", unit="texts", about="effective number of different completions, by their words",
    ),
    "perplexity": Metric(
        measure="perplexity:perplexity", needs=("texts",), unit="", about="of given texts; compare models of one tokenizer only",
    ),
    "bits_per_byte": Metric(
        measure="bits_per_byte:bits_per_byte", needs=("texts",), unit="bits", about="of given texts; compares any tokenizers",
    ),
    "rouge": Metric(
        measure="rouge:rouge", needs=("references",), unit="share", about="ROUGE-L F1 with reference texts (also 1, 2, Lsum)",
    ),
    "bleu": Metric(measure="bleu:bleu", needs=("references",), unit="", about="corpus BLEU with reference texts, 0 to 100"),
    "toxicity": Metric(
        measure="toxicity:toxicity", needs=("toxicity_classifier",), unit="share",
        about="mean probability of the classifier's toxic label, or a lexicon's negative sentiment",
    ),
    "refusal": Metric(
        measure="refusal:refusal", needs=("should_refuse",), unit="share", about="share of prompts to refuse that are refused",
    ),
    "over_refusal": Metric(
        measure="refusal:over_refusal", needs=("should_refuse",), unit="share", about="share of prompts to answer that are refused",
    ),
}  # fmt: skip
"""Name -> metric, in the order of tables."""


def metric_named(name: str) -> Metric | str:
    """The metric of a name; a user's own as it was written, to be loaded where it is measured.

    Raises:
        UnknownNameError: There is none of that name.
    """
    return name if FUNCTION.match(name) else look_up(METRICS, name, kind="metric")


def asks_model(name: str) -> bool:
    """Whether the model must write completions for the metric of a name; a user's own is taken to want them."""
    metric = METRICS.get(name)
    return metric is None or not NO_COMPLETIONS & set(metric.needs)


def check_metric_names(names: Sequence[str]) -> None:
    """Refuse names that are none, and names that come twice.

    Raises:
        UnknownNameError: There is no metric of that name.
        ConfigError: A name comes twice, or there is none at all.
    """
    for name in names:
        metric_named(name)
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ConfigError(f"The metric {twice[0]!r} is asked for twice; name each once.")
    if not names:
        raise ConfigError(f"metrics is empty; name at least one of {', '.join(METRICS)}.")


def missing_need(needs: Sequence[str], given: frozenset[str]) -> str | None:
    """The first of a metric's needs that was not given; None where all were."""
    return next((need for need in needs if need not in given), None)


def unmet(name: str, need: str) -> ConfigError:
    """The error of a metric that lacks what it needs."""
    return ConfigError(f"The metric {name!r} needs {NEEDS[need]}.")
