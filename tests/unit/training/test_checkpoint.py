from __future__ import annotations

import json
import os

import pytest
import torch
from torch import nn

from rlhf.errors import CheckpointError
from rlhf.training.checkpoint import CheckpointStore, load_weights


def modules(value: float = 1.0) -> dict[str, nn.Module]:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(value)
    return {"policy": layer}


def names(store: CheckpointStore) -> list[str]:
    return [path.name for path in store.paths()]


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run", keep=2, identity={"seed": 1, "learning_rate": 1e-3})


def test_what_was_saved_comes_back(store):
    state = {"at": {"step": 5}, "tensor": torch.arange(3), "nested": [1, None, "x", (2.5, True)], "average": None}
    store.save(5, modules(3.0), state)
    found = store.load_latest()
    assert (found.step, found.path.name) == (5, "checkpoint-00000005")
    assert torch.equal(found.weights["policy"]["weight"], torch.full((2, 2), 3.0))
    assert torch.equal(found.state["tensor"], torch.arange(3))
    assert found.state["nested"] == [1, None, "x", (2.5, True)]


def test_the_newest_is_loaded_and_the_oldest_leave(store):
    for step in (2, 10, 4):
        store.save(step, modules(step), {})
    assert names(store) == ["checkpoint-00000004", "checkpoint-00000010"]
    assert store.load_latest().step == 10


def test_an_empty_folder_and_none_at_all_hold_no_checkpoint(store):
    assert store.load_latest() is None
    store.folder.mkdir()
    assert store.load_latest() is None


def test_only_what_is_trained_is_kept(store):
    module = modules()
    module["policy"].bias.requires_grad_(False)
    store.save(1, module, {})
    assert list(store.load_latest().weights["policy"]) == ["weight"]


def test_a_step_may_be_saved_again(store):
    store.save(1, modules(1.0), {})
    store.save(1, modules(2.0), {})
    assert float(store.load_latest().weights["policy"]["bias"][0]) == 2.0


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a flipped bit of the weights": lambda p: flip_a_byte(p / "weights-policy.safetensors"),
    "a flipped bit of the state": lambda p: flip_a_byte(p / "state.pt"),
    "a missing file": lambda p: (p / "state.pt").unlink(),
    "a file cut short": lambda p: os.truncate(p / "state.pt", 10),
    "no record": lambda p: (p / "checkpoint.json").unlink(),
    "a record that is no JSON": lambda p: (p / "checkpoint.json").write_text("{"),
    "a record of something else": lambda p: (p / "checkpoint.json").write_text("[1]"),
    "a record without hashes": lambda p: (p / "checkpoint.json").write_text('{"step": 2, "identity": {}}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning_that_names_it(store, damage):
    store.save(1, modules(1.0), {})
    DAMAGES[damage](store.save(2, modules(2.0), {}))
    said: list[str] = []
    assert store.load_latest(warn=said.append).step == 1
    assert len(said) == 1
    assert said[0].startswith(f"The checkpoint {store.folder / 'checkpoint-00000002'} is damaged: ")
    assert said[0].endswith("Trying the checkpoint before it.")


def test_the_warning_names_the_file_and_is_logged_where_nobody_listens(store, caplog):
    store.save(1, modules(1.0), {})
    flip_a_byte(store.save(2, modules(2.0), {}) / "state.pt")
    store.load_latest()
    assert "state.pt is not what was written" in caplog.text


def test_when_all_are_damaged_the_run_does_not_quietly_begin_anew(store):
    for step in (1, 2):
        flip_a_byte(store.save(step, modules(), {}) / "state.pt")
    with pytest.raises(CheckpointError, match=r"All 2 checkpoints in .* are damaged; remove them to start"):
        store.load_latest(warn=lambda _: None)


def test_a_checkpoint_of_a_run_with_other_settings_is_refused_and_says_which(store):
    store.save(1, modules(), {})
    other = CheckpointStore(store.folder, identity={"seed": 2, "learning_rate": 1e-3})
    with pytest.raises(CheckpointError, match=r"run with other settings: seed was 1 and is 2\. Go back to those"):
        other.load_latest()


def test_settings_that_json_writes_differently_are_still_the_same(tmp_path):
    identity = {"betas": (0.9, 0.999), "epochs": 3.0}
    CheckpointStore(tmp_path, identity=identity).save(1, modules(), {})
    assert CheckpointStore(tmp_path, identity=identity).load_latest().step == 1


def test_what_a_killed_process_left_is_no_checkpoint_and_is_cleared_away(store):
    store.save(1, modules(1.0), {})
    left = store.folder / ".checkpoint-00000002.tmp"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    assert store.load_latest().step == 1
    store.save(3, modules(3.0), {})
    assert not left.exists()
    assert sorted(json.loads((store.paths()[-1] / "checkpoint.json").read_text())["sha256"]) == [
        "state.pt",
        "weights-policy.safetensors",
    ]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"value": {}}, r"holds the modules \['value'\], this run trains \['policy'\]"),
        ({"policy": {"weight": torch.zeros(2, 2)}}, "differ in parameters such as bias"),
        (
            {"policy": {"weight": torch.zeros(2, 2), "bias": torch.zeros(3)}},
            r"policy, bias: the checkpoint has shape \(3,\), the model \(2,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_is_changed(weights, message):
    mine = modules(5.0)
    with pytest.raises(CheckpointError, match=message):
        load_weights(mine, weights)
    assert torch.equal(mine["policy"].weight, torch.full((2, 2), 5.0))
