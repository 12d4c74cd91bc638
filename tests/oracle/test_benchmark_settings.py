"""What `make bench-gpu` would set TRL to is there in the TRL that it is pinned to; no GPU here has run it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl

from benchmarks.peer import environments
from benchmarks.peer.cases import candidates_of, gpu_cases

CONFIGS = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig, "grpo": trl.GRPOConfig}


@pytest.mark.parametrize("case", gpu_cases(device="cuda"), ids=lambda case: case.method)
def test_every_setting_is_one_of_trls(case):
    fields = CONFIGS[case.method].__dataclass_fields__
    for candidate in candidates_of(case):
        assert set(candidate.settings) <= set(fields), candidate.name
        assert set(candidate.model) <= {"attn_implementation", "use_kernels"}, candidate.name


def test_the_peer_is_the_oracle_of_these_tests():
    lines = (
        Path(environments.__file__).parents[1].joinpath(environments.REQUIREMENTS["trl-gpu"]).read_text().splitlines()
    )
    assert f"trl=={trl.__version__}" in lines
    assert all(extra.endswith(f"=={trl.__version__}") for extra in environments.OPTIONAL["trl-gpu"])
