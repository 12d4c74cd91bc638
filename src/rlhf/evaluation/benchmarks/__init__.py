"""Published benchmarks on local files in their own formats; nothing is downloaded.

benchmark_table  names, what each needs, and which function runs it
run_benchmark    several benchmarks of one model
mt_bench         two turns, graded from 1 to 10; mt_bench_pairs: against a baseline
truthfulqa       likelihood of right and wrong choices
reward_bench     a reward model on best-of-4 and ties
harness          any task of lm-evaluation-harness
"""

from __future__ import annotations
