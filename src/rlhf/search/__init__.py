"""Search at inference: more tokens for better answers, by strategies that share one contract.

contract             what a strategy asks for, what it costs, where it stops
search_run           many prompts side by side; the account and the budget
live_search          one of them
strategies/          one a file
answer_key           what makes two completions one answer
critics              what is wrong with a draft
prompt_texts         a model's ids of prompts about drafts, and of a draft's beginning
search_helpers       critic, value model and tokenizer of a search
step_scores          a tree's siblings scored with their beginning read once
value_scores         what a value model expects behind a beginning
refined_pairs        accepted revisions as preference rows
result_file          finished prompts, for a rerun
configured_search    a search from settings
search_engine        a search in place of an engine
sampler              BestOfNSampler, MCTSGenerator and others from Python
ensemble_policy      several policies as one
strategy_comparison  which strategy to take
"""

from __future__ import annotations
