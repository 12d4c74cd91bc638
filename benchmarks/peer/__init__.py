"""The same training step here and in TRL, side by side on this machine: ``python -m benchmarks.peer --help``.

cases         what is measured: method, model, type, threads, lengths; what the issue asks for
work          the rows, drawn from a seed; how many tokens they are, and how much arithmetic is useful
models        the models, made once from a seed
channel       how the driver and a side talk, and how a side measures itself
side_rlhf     our side, one process; side_trl: TRL's; side_trl_ppo: that of TRL 1.12, the last with PPO; side_generate: sampling alone
machine       what the machine can do: matrix products, copies
environments  the peer's virtual environments
driver        starts two sides, lets them step in turns, compares what they computed, then their seconds
results       one file for each row, so that a run can be broken off; report: RESULTS.md from them
gpu           the rows of `make bench-gpu`, on the same harness; gpu_report: RESULTS-gpu.md

What both sides import (cases, work, channel) needs the standard library alone: the peer's environment has no rlhf.
"""
