"""A run that samples with a rounded copy and guesses ahead, killed: the resumed one ends with the same bits."""

from __future__ import annotations

import pytest

from rlhf.rollout import int8
from tests.fixtures import toy
from tests.invariants.test_resume import KilledError, KillingLog, build, ends_the_same

ENGINE = {
    "kind": "local", "weights": "int8", "mismatch": {"warn_at": 0.05, "stop_at": 0.1},
    "speculate": {"kind": "prompt_lookup", "ngram_tokens": 1, "max_rows": 100},
}  # fmt: skip
SETTINGS = {"engine": ENGINE, "rollouts": 3, "save_every": 1, "sampling": {"max_new_tokens": 12, "temperature": 0.2}}


@pytest.mark.parametrize("overlap", ["none", "one_step"])
@pytest.mark.slow
def test_rounded_weights_and_guesses_leave_no_trace_of_a_kill(overlap, tmp_path, monkeypatch):
    monkeypatch.setattr(int8, "SMALLEST", 1)  # the toy's layers are small; a sampler beside training has its own
    settings = SETTINGS | {"overlap": overlap}
    whole = KillingLog(tmp_path / "whole", stage="run")
    trainer = build("grpo", tmp_path / "whole", log=whole, **settings)
    result = trainer.train()
    writes = 10**9 - whole.writes_left
    for number in (writes // 3, 2 * writes // 3):
        folder = tmp_path / str(number)
        log = KillingLog(folder, stage="run")
        log.writes_left = number
        with pytest.raises(KilledError):
            build("grpo", folder, log=log, **settings).train()
        ends_the_same("grpo", folder, result, toy.weights_of(trainer), tmp_path / "whole", **settings)
