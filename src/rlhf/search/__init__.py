"""Search at inference: more tokens for better answers, by strategies that share one contract.

contract             what a strategy asks for, what it costs, where it stops
search_run           many prompts side by side; the account and the budget
strategies/          one a file
answer_key           what makes two completions one answer
step_scores          a tree's siblings scored with their beginning read once
result_file          finished prompts, for a rerun
configured_search    a search from settings
search_engine        a search in place of an engine
sampler              BestOfNSampler, MCTSGenerator and others from Python
ensemble_policy      several policies as one
strategy_comparison  which strategy to take
"""

from __future__ import annotations
