"""Published benchmarks on local files in their own formats; nothing is downloaded.

table        names, what each needs, and which function runs it      run      ``run_benchmark``
truthfulqa   likelihood of right and wrong choices                   reward_bench   a reward model on best-of-4 and ties
harness      any task of lm-evaluation-harness
"""

from __future__ import annotations
