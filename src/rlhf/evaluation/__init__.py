"""Evaluation: did the policy improve, how certain is that, and was the reward gamed?

intervals          Wilson, t, clustered, paired bootstrap; the prompt is the unit
paired_tests       sign test, McNemar, sign flips; Holm and Benjamini-Hochberg for many tests
noninferiority     is it as good as before, but for a margin; is it better; of a fixed number, or looked at any time
sequential         tests and intervals that may be looked at any time
sample_size        how many prompts a comparison takes
prediction_powered a judge corrected by some labels
ratings            strengths of several systems: Bradley-Terry, Plackett-Luce, Elo, style control
decision           pass, fail or undecided
judges             functions that score completions; ground truth of the embedded world
winrate            how often one system's completion is better
reward_quality     accuracy and calibration of a reward model
measures           KL, entropy, variety of sampled completions
overoptimization   proxy reward against the judge over a training run
evaluator          all of this for a policy and its baseline
records            the results, and the schema of evaluation.json
"""

from __future__ import annotations
