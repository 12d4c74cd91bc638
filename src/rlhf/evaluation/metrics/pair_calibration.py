"""Are a reward's probabilities true?"""

from __future__ import annotations

import numpy as np

from rlhf.evaluation.intervals import unit_means
from rlhf.evaluation.metrics.metric_inputs import MetricInputs, about_missing
from rlhf.evaluation.metrics.reward_accuracy import differences, pair_scores, pair_units
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic, Measured, missing
from rlhf.evaluation.reward_model_quality import tie_threshold
from rlhf.evaluation.reward_quality import reward_quality


def pair_calibration(inputs: MetricInputs) -> Measured:
    """Log loss of P(chosen beats rejected) on held-out pairs, nats; log 2 = 0.693 is a coin.

    Parts: ``brier``, in 0 to 1 (0.25 is a coin). In ``about``: ``expected_error`` (ECE, 10 bins), which is only to be read next to
    ``expected_error_null``, what it would be if the probabilities were exactly true; ``fitted_scale``, below 1 for a model that is too sure.
    See ``rlhf.evaluation.reward_quality``. Pairs of one prompt are averaged first, as for ``reward_accuracy``.
    """
    assert inputs.needs.reward is not None
    model, pairs = inputs.needs.reward_model, inputs.needs.pairs
    scored = pair_scores(inputs.needs.reward, pairs)
    difference = differences(scored)
    known = np.isfinite(difference)
    difference = difference[known]
    # Undoes the normalization: the Bradley-Terry loss saw raw scores.
    scale = float(model.std.mean()) if model is not None else 1.0
    threshold = tie_threshold(model) if model is not None else 0.0
    quality = reward_quality(difference, np.zeros_like(difference), scale=scale, threshold=threshold, seed=inputs.seed)
    if quality.calibration is None:
        return missing(next(iter(scored.errors.values()), "there are no pairs"))
    calibration = quality.calibration
    d = difference * scale
    logits = np.logaddexp(0, d + threshold) - np.logaddexp(0, threshold - d) if threshold else d
    losses = np.logaddexp(0, -logits)
    brier = np.square(1 - np.exp(-losses))
    units, places = pair_units(pairs, known)
    return Measured(
        value=MeanStatistic(unit_means(losses, units)),
        parts={"brier": MeanStatistic(unit_means(brier, units), share=True)},
        over="pairs",
        places=places,
        about={
            "expected_error": calibration.expected_error,
            "expected_error_null": calibration.expected_error_null,
            "fitted_scale": quality.to_dict()["fitted_scale"],
            "scale": scale,
            **about_missing(scored.errors, 2 * len(pairs)),
        },
    )
