"""Evaluation: did the policy become better, how sure is that, and was the reward gamed?

intervals          Wilson, t, paired bootstrap; the prompt is the unit
judges             functions that say how good completions are; ground truth of the embedded world
winrate            how often one system's completion is the better one
reward_quality     accuracy and calibration of a reward model
measures           KL, entropy, variety of sampled completions
overoptimization   proxy reward against the judge over a training run
evaluator          all of it for a policy and its baseline
records            what was found, and the schema of evaluation.json
"""

from __future__ import annotations
