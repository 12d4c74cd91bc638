"""What watches a training run and acts when a number goes wrong.

guard_rules      what each guard calls unhealthy: pure functions of a metric's values
guards           their memory: warn, stop, or ask for the last good checkpoint
alarms           what the loop does then, with the samples that show it
hacking/         detectors of reward hacking
rollout_alarms   rollouts that teach nothing
"""

from __future__ import annotations
