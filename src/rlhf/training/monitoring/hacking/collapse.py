"""The held-out judge's score falls, and the reward with it."""

from __future__ import annotations

from rlhf.training.monitoring.hacking.observations import Detection, HeldOutObservation, strongest
from rlhf.training.monitoring.hacking.slopes import JudgeWindows


class Collapse(JudgeWindows):
    """As ``JudgeSlope``, where the reward falls with the judge: the policy gets worse by any measure.

        alarm:  t_judge < -threshold over either window, and t_proxy <= -proxy_threshold over the same one

    A policy whose quality wanders does that now and then, and comes back: a warning.
    """

    shows = "proxy"

    def update(self, observation: HeldOutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        for fall in self.falls(observation):
            if fall.t_proxy is not None and fall.t_proxy <= -self.proxy_threshold:
                return Detection(
                    value=fall.t_judge,
                    limit=fall.limit,
                    message=(
                        f"The held-out judge's score falls over the last {fall.window} evaluations ({fall.numbers}), and the reward with "
                        "it: the policy gets worse. Lower the learning rate, or raise kl.coef."
                    ),
                    places=strongest(-fall.slopes),
                    good_step=fall.best_step,
                )
        return None
