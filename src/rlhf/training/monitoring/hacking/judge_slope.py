"""The held-out judge's score falls while the reward does not."""

from __future__ import annotations

from rlhf.training.monitoring.hacking.observations import Detection, HeldOutObservation, strongest
from rlhf.training.monitoring.hacking.slopes import JudgeWindows


class JudgeSlope(JudgeWindows):
    """t statistics of the prompts' slopes over a short and a long window of evaluations.

        b_i = least-squares slope of prompt i,   t = mean(b) / (sd(b) / sqrt(n))
        alarm:  t_judge < -threshold over either window, and t_proxy > -proxy_threshold over the same one

    Prompts are the units, and each is compared with itself, so that hard and easy ones make no noise. Where the reward falls, too, it is
    no hack: see ``Collapse``.

    Source: measured for docs/reward-hacking.md; the test is Student's on one slope for each prompt.
    """

    def update(self, observation: HeldOutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        for fall in self.falls(observation):
            if fall.t_proxy is None or fall.t_proxy > -self.proxy_threshold:
                return Detection(
                    value=fall.t_judge,
                    limit=fall.limit,
                    message=(
                        f"The held-out judge's score falls over the last {fall.window} evaluations ({fall.numbers}), and the reward does "
                        "not: the policy may be hacking it. Look at the samples; raise kl.coef, or go back to an earlier checkpoint."
                    ),
                    places=strongest(-fall.slopes),
                    good_step=fall.best_step,
                )
        return None
