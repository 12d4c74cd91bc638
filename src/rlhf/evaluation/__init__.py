"""Evaluation: did the policy improve, how certain is that, and was the reward gamed?

intervals          Wilson, t, paired bootstrap; the prompt is the unit
judges             functions that score completions; ground truth of the embedded world
winrate            how often one system's completion is better
reward_quality     accuracy and calibration of a reward model
measures           KL, entropy, variety of sampled completions
overoptimization   proxy reward against the judge over a training run
evaluator          all of this for a policy and its baseline
records            the results, and the schema of evaluation.json
"""

from __future__ import annotations
