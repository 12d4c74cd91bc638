from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from rlhf.errors import CheckpointError
from rlhf.training.checkpoint_folder import Record, Snapshot


def round_trip(folder, modules, state):
    """Written, and read back with every check."""
    snapshot = Snapshot.of(modules, state)
    snapshot.write(folder, step=3, identity={"seed": 1}, best=True)
    record = Record.read(folder)
    record.verify()
    assert (record.step, record.best, record.identity) == (3, True, {"seed": 1})
    assert snapshot.num_bytes >= sum(record.sizes.values()), "room for all of it is asked for"
    return record.load()


def same(mine, theirs):
    return mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs)


BASE = torch.arange(24).reshape(4, 6)
TENSORS = {
    "non-contiguous": BASE.T,
    "a view of a large storage": torch.arange(100_000)[7:9],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "0-d": torch.tensor(1.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "bfloat16": torch.randn(3, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "float16": torch.tensor([65504.0, -0.0, float("inf")], dtype=torch.float16),
    "float8": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
    "complex": torch.tensor([1 + 2j]),
    "wants a gradient": nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_the_state_comes_back_exactly(kind, tmp_path):
    tensor = TENSORS[kind].detach()
    state = round_trip(tmp_path, {}, {"t": TENSORS[kind], "list": [TENSORS[kind]]}).state
    if tensor.dtype == torch.float8_e4m3fn:  # not comparable as it is
        state["t"], tensor = state["t"].view(torch.uint8), tensor.view(torch.uint8)
    assert same(state["t"], tensor)
    assert (tmp_path / "state.pt").stat().st_size < 20_000, "no more of a storage than the tensor needs"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_parameters_of_any_type_come_back_exactly(dtype, tmp_path):
    module = nn.Module()
    base = torch.arange(12.0).reshape(3, 4).to(dtype)
    module.plain = nn.Parameter(base[0])
    module.same_storage = nn.Parameter(base[:2].T)
    module.scalar = nn.Parameter(base[1, 1])
    module.empty = nn.Parameter(base[:0])
    module.tied = module.plain
    policy = round_trip(tmp_path, {"policy": module}, {}).weights["policy"]
    assert policy.keys() == {"plain", "same_storage", "scalar", "empty"}
    assert all(same(policy[name], parameter.detach()) for name, parameter in module.named_parameters())


def test_a_type_that_safetensors_can_not_store_is_named(tmp_path):
    module = nn.Module()
    module.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(CheckpointError, match=r"policy .*torch\.complex128"):
        round_trip(tmp_path, {"policy": module}, {})


def test_containers_come_back_and_one_thing_stays_one_thing(tmp_path):
    moments = torch.ones(2)
    ring = [1]
    state = {
        "a": moments,
        "b": [moments, (None, True, 2.5, "ü", b"x", 1 << 70)],
        "ordered": OrderedDict(z=1, a=2),
        "lists": [ring, ring],
        3: {(1, 2): {4}},
        "size": torch.Size([2]),
        "dtype": torch.bfloat16,
    }
    actual = round_trip(tmp_path, {}, state).state
    assert actual["a"] is actual["b"][0]
    assert actual["lists"][0] is actual["lists"][1]
    assert {**actual, "a": 0, "b": actual["b"][1]} == {**state, "a": 0, "b": state["b"][1]}
    assert list(actual["ordered"]) == ["z", "a"]


def test_a_snapshot_shares_nothing_with_the_run(tmp_path):
    module = nn.Linear(2, 2)
    state = {"rows": [[1]], "moments": {"m": torch.ones(2)}, "set": {1}}
    snapshot = Snapshot.of({"policy": module}, state)
    with torch.no_grad():
        module.bias.fill_(7.0)
    state["rows"][0].append(2)
    state["set"].add(2)
    state["moments"]["m"].fill_(7.0)
    assert snapshot.state["rows"] == [[1]]
    assert snapshot.state["set"] == {1}
    assert torch.equal(snapshot.state["moments"]["m"], torch.ones(2))
    assert not (snapshot.weights["policy"]["bias"] == 7.0).any()


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize("value", [np.float64(1.0), np.arange(2), Point(1), lambda: 1], ids=lambda v: type(v).__name__)
def test_what_could_not_be_read_back_is_refused_when_it_is_saved(value):
    kind = rf"{type(value).__module__}\.{type(value).__name__}"
    message = rf"state\['algorithm'\]\['rows'\]\[1\] is a {kind}, which can't be read back.* Keep numbers, text"
    with pytest.raises(CheckpointError, match=message):
        Snapshot.of({}, {"algorithm": {"rows": [0, value]}})
