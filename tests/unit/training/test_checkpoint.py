from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import re
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from rlhf.errors import CheckpointError, ConfigError, StorageError
from rlhf.training import checkpoint_folder
from rlhf.training.checkpoint import CheckpointManager, load_weights
from rlhf.training.checkpoint_folder import Snapshot
from rlhf.training.checkpoint_names import step_of


def modules(value: float = 1.0) -> dict[str, nn.Module]:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(value)
    return {"policy": layer}


def names(store: CheckpointManager) -> list[str]:
    return [path.name for path in store.paths()]


def saved(store: CheckpointManager, step: int, value: float = 1.0) -> Path:
    store.save(step, modules(value), {"value": value})
    return next(path for path in reversed(store.paths()) if step_of(path) == step)


def steps(store: CheckpointManager) -> list[int | None]:
    return [step_of(path) for path in store.paths()]


@pytest.fixture
def store(tmp_path):
    return CheckpointManager(tmp_path / "run", keep=2, identity={"seed": 1, "learning_rate": 1e-3})


def test_what_was_saved_comes_back(store):
    state = {"at": {"step": 5}, "tensor": torch.arange(3), "nested": [1, None, "x", (2.5, True)], "average": None}
    store.save(5, modules(3.0), state)
    latest = store.load_latest()
    assert (latest.step, latest.path.name) == (5, "checkpoint-00000005")
    assert torch.equal(latest.weights["policy"]["weight"], torch.full((2, 2), 3.0))
    assert torch.equal(latest.state["tensor"], torch.arange(3))
    assert latest.state["nested"] == [1, None, "x", (2.5, True)]


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


def test_a_step_may_be_saved_again_and_takes_the_place_of_the_first(store):
    for value in (1.0, 2.0, 3.0):
        store.save(1, modules(value), {})
        assert float(store.load_latest().weights["policy"]["bias"][0]) == value
        assert len(store.paths()) == 1
    assert (names(store), steps(store)) == (["checkpoint-00000001-3"], [1])
    assert store.load(1).state == {}


def test_steps_of_any_size_are_in_order(store):
    for step in (99_999_999, 100_000_000):
        store.save(step, modules(), {})
    assert names(store) == ["checkpoint-99999999", "checkpoint-100000000"]


def test_one_that_was_just_written_stays_even_where_later_steps_are_there(store):
    for step in (10, 11, 3):
        store.save(step, modules(), {})
    assert steps(store) == [3, 10, 11]


def test_multiples_of_keep_every_stay(tmp_path):
    store = CheckpointManager(tmp_path, keep=1, keep_every=4)
    for step in range(1, 11):
        store.save(step, modules(), {})
    assert steps(store) == [4, 8, 10]


def test_the_best_stays_until_a_better_one_comes_also_over_a_restart(tmp_path):
    for step, best in ((1, True), (2, False), (3, False)):
        CheckpointManager(tmp_path, keep=1).save(step, modules(), {}, best=best)
    store = CheckpointManager(tmp_path, keep=1)
    assert steps(store) == [1, 3]
    store.save(4, modules(), {}, best=True)
    store.save(5, modules(), {})
    assert steps(store) == [4, 5]


def test_a_checkpoint_can_be_asked_for_by_its_step(store):
    for step in (2, 4):
        store.save(step, modules(step), {})
    assert float(store.load(2).weights["policy"]["bias"][0]) == 2.0
    with pytest.raises(CheckpointError, match=r"step 3; .*: 2, 4\.$"):
        store.load(3)


def test_going_back_to_a_step_removes_the_later_ones(tmp_path):
    store = CheckpointManager(tmp_path, keep=5, identity={"seed": 1})
    for step in (2, 4, 6):
        store.save(step, modules(), {})
    store.discard_after(2)
    assert steps(store) == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000002"]


@pytest.mark.parametrize("arguments", [{"keep": 0}, {"keep_every": 0}])
def test_a_store_that_keeps_nothing_is_refused(tmp_path, arguments):
    with pytest.raises(ConfigError, match=r"keep(_every)? .* is 0; .*1 or more"):
        CheckpointManager(tmp_path, **arguments)


# ------------------------------------------------------------------------------------------------------ in the background


def test_training_may_go_on_at_once_while_it_is_written(tmp_path, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(Snapshot, "write", waiting_for(go, Snapshot.write))
    store = CheckpointManager(tmp_path, background=True)
    module, state = modules(1.0), {"moments": [torch.ones(3)], "rows": [1, 2]}
    store.save(1, module, state)
    with torch.no_grad():
        module["policy"].bias.fill_(9.0)
    state["moments"][0].fill_(9.0)
    state["rows"].append(3)
    assert store.paths() == [], "it is not there before it is written"
    go.set()
    store.wait()
    latest = store.load_latest()
    assert float(latest.weights["policy"]["bias"][0]) == 1.0
    assert latest.state["rows"] == [1, 2]
    assert torch.equal(latest.state["moments"][0], torch.ones(3))
    store.close()


def waiting_for(event, write):
    def slow(snapshot, *args, **kwargs):
        assert event.wait(20)
        write(snapshot, *args, **kwargs)

    return slow


def test_a_second_save_waits_for_the_first_and_close_for_the_last(tmp_path, monkeypatch):
    running, most = [], []

    def watched(snapshot, *args, write=Snapshot.write, **kwargs):
        running.append(threading.current_thread().name)
        most.append(len(running))
        write(snapshot, *args, **kwargs)
        running.pop()

    monkeypatch.setattr(Snapshot, "write", watched)
    store = CheckpointManager(tmp_path, keep=3, background=True)
    for step in (1, 2, 3):
        store.save(step, modules(step), {})
    store.close()
    store.close()
    assert steps(store) == [1, 2, 3]
    assert most == [1, 1, 1]
    assert not [t for t in threading.enumerate() if t.name.startswith("checkpoint")], "the thread has ended"
    store.save(4, modules(), {})
    store.close()
    assert steps(store) == [2, 3, 4], "a closed store can be saved to again"


@pytest.mark.parametrize("call", ["save", "wait", "close", "load_latest"])
def test_an_error_of_the_background_is_raised_as_itself_by_the_next_call(tmp_path, monkeypatch, call):
    store = CheckpointManager(tmp_path, background=True)
    store.save(1, modules(), {})
    store.wait()
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "write", failing)
        store.save(2, modules(), {})
        with pytest.raises(ZeroDivisionError):
            store.save(3, modules(), {}) if call == "save" else getattr(store, call)()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"], "nothing half-written remains"
    store.wait()
    store.save(3, modules(), {})
    store.close()
    assert steps(store) == [1, 3]


def failing(snapshot, folder, **_):
    (folder / "state.pt").write_bytes(b"half")
    raise ZeroDivisionError


def test_the_files_are_the_same_bits_in_the_background(tmp_path):
    shared = torch.arange(12.0)
    state = {"a": shared, "view": shared[3:7], "text": "x", "again": "x", "nested": [{"t": torch.ones(2, 3).T}]}
    for name, background in (("front", False), ("back", True)):
        store = CheckpointManager(tmp_path / name, background=background)
        store.save(7, modules(0.1), state)
        store.close()
    front, back = ({p.name: p.read_bytes() for p in (tmp_path / n).rglob("*.*")} for n in ("front", "back"))
    assert len(front) == 3
    assert front == back


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite_record(change, *, sealed=True):
    """Someone who changes a record, and its hash with it, so that only what it says can be wrong."""

    def damage(path):
        record = json.loads((path / "checkpoint.json").read_text())
        change(record)
        rest = {key: value for key, value in record.items() if key != "record_sha256"}
        if sealed:
            record["record_sha256"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
        (path / "checkpoint.json").write_text(json.dumps(record))

    return damage


def replace_file(name, content):
    """Other content, with the size and the hash of it in the record."""

    def damage(path):
        (path / name).write_bytes(content)
        sha = hashlib.sha256(content).hexdigest()
        rewrite_record(lambda r: (r["sha256"].update({name: sha}), r["bytes"].update({name: len(content)})))(path)

    return damage


def pickled(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def make_pipe(path):
    (path / "state.pt").unlink()
    os.mkfifo(path / "state.pt")


def name_outside(record):
    record["sha256"]["../../secret"] = record["bytes"]["../../secret"] = "0"


def write_record(content):
    return lambda path: (path / "checkpoint.json").write_bytes(content)


DAMAGES = {
    "a flipped bit of the weights": (
        lambda p: flip_a_byte(p / "weights-policy.safetensors"),
        "weights-policy.safetensors is not what was written: its sha256 is another",
    ),
    "a flipped bit of the state": (lambda p: flip_a_byte(p / "state.pt"), "state.pt is not what was written"),
    "a missing file": (lambda p: (p / "state.pt").unlink(), "state.pt is missing"),
    "a file cut short": (
        lambda p: os.truncate(p / "state.pt", 10),
        "state.pt is not what was written: it has 10 bytes, and should have 1",
    ),
    "a folder for a file": (
        lambda p: ((p / "state.pt").unlink(), (p / "state.pt").mkdir()),
        "state.pt is not a file",
    ),
    "a pipe that nobody writes to": (make_pipe, "state.pt is not a file"),
    "a surplus file": (
        lambda p: (p / "weights-value.safetensors").write_bytes(b"x"),
        "weights-value.safetensors is not one of its files; remove it if you put it there",
    ),
    "no record": (lambda p: (p / "checkpoint.json").unlink(), "checkpoint.json is missing"),
    "an empty record": (write_record(b""), "checkpoint.json is not JSON (Expecting value"),
    "a record cut short": (write_record(b'{"step": 2,'), "checkpoint.json is not JSON ("),
    "a record that is not text": (write_record(b"\xff\xfe{}"), "checkpoint.json is not UTF-8 text (byte 0)"),
    "a record without end": (write_record(b"[" * 200_000), "checkpoint.json is not JSON ("),
    "a record of something else": (write_record(b"[1]"), "checkpoint.json holds a list, where keys and values were"),
    "a record without hashes": (
        rewrite_record(lambda r: r.pop("sha256")),
        "checkpoint.json has no 'sha256' of type dict",
    ),
    "a changed record": (
        rewrite_record(lambda r: r["identity"].update(seed=3), sealed=False),
        "checkpoint.json is not what was written: its own sha256 is another",
    ),
    "a step that is not a number": (rewrite_record(lambda r: r.update(step=True)), "has no 'step' of type int"),
    "the record of another step": (rewrite_record(lambda r: r.update(step=1)), "its record is of step 1"),
    "a record that names no state": (
        rewrite_record(lambda r: (r["sha256"].pop("state.pt"), r["bytes"].pop("state.pt"))),
        "checkpoint.json does not name state.pt and each other file",
    ),
    "a record that leads elsewhere": (
        rewrite_record(name_outside),
        "names '../../secret', which is not a file of a checkpoint",
    ),
    "weights that are none": (
        replace_file("weights-policy.safetensors", b"12345678{}"),
        "weights-policy.safetensors is not a safetensors file (",
    ),
    "a state that is none": (
        replace_file("state.pt", b"PK, but no archive"),
        "state.pt is not a file of torch, or holds more",
    ),
    "a state that runs code": (
        replace_file("state.pt", pickle.dumps(Path("x"))),
        "state.pt is not a file of torch, or holds more than numbers, text and tensors (",
    ),
    "a state of something else": (
        replace_file("state.pt", pickled([1])),
        "state.pt holds a list, where keys and values",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning_that_names_it(store, damage):
    store.save(1, modules(1.0), {})
    do, what = DAMAGES[damage]
    do(saved(store, 2, 2.0))
    said: list[str] = []
    assert store.load_latest(warn=said.append).step == 1
    assert len(said) == 1
    assert said[0].startswith(f"The checkpoint {store.folder / 'checkpoint-00000002'} is damaged: ")
    assert what in said[0]
    assert "weights_only=False" not in said[0], "torch's own advice would run the code in the file"
    assert said[0].endswith("Trying the checkpoint before it.")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_that_is_asked_for_by_name_is_an_error(store, damage):
    do, what = DAMAGES[damage]
    do(saved(store, 2))
    with pytest.raises(CheckpointError, match=re.escape(what)):
        store.load(2)


def test_files_of_the_system_do_no_harm(store):
    (saved(store, 1) / ".DS_Store").write_bytes(b"x")
    assert store.load_latest(warn=pytest.fail).step == 1


def test_a_damaged_one_counts_for_nothing_and_goes_when_the_next_is_written(store):
    for step in (1, 2, 3):
        saved(store, step)
    flip_a_byte(store.folder / "checkpoint-00000003" / "state.pt")
    resumed = CheckpointManager(store.folder, keep=2, identity=store.identity)
    assert resumed.load_latest(warn=lambda _: None).step == 2
    assert steps(resumed) == [2, 3], "the run may end without another one, and somebody may want to look"
    resumed.save(3, modules(5.0), {})
    assert names(resumed) == ["checkpoint-00000002", "checkpoint-00000003-2"]
    assert resumed.load_latest(warn=pytest.fail).step == 3


def test_a_damaged_one_that_was_asked_for_is_not_counted_either(store):
    for step in (1, 2):
        saved(store, step)
    flip_a_byte(store.folder / "checkpoint-00000002" / "state.pt")
    with pytest.raises(CheckpointError, match="is damaged"):
        store.load(2)
    saved(store, 3)
    assert steps(store) == [1, 3]


def test_one_that_can_not_be_read_is_not_taken_for_damaged(store, monkeypatch):
    for step in (1, 2):
        saved(store, step)

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(checkpoint_folder, "sha256", refuse)
    with pytest.raises(StorageError, match=r"00000002/state\.pt: Permission denied"):
        store.load_latest(warn=pytest.fail)


def test_a_folder_that_can_not_be_looked_into_is_not_taken_for_empty(store, monkeypatch):
    saved(store, 1)
    refusal = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(store.folder))
    monkeypatch.setattr(os, "listdir", lambda path: (_ for _ in ()).throw(refusal))
    with pytest.raises(StorageError, match=r"/run: Permission denied"):
        store.load_latest()


def test_names_that_are_not_ours_are_left_alone(store):
    saved(store, 1)
    for name in ("checkpoint-best", "checkpoint-00000009 (copy)", "checkpoint-7"):
        (store.folder / name).mkdir()
    for step in (2, 3, 4):
        saved(store, step)
    assert steps(store) == [3, 4]
    assert store.load_latest(warn=pytest.fail).step == 4
    assert (store.folder / "checkpoint-best").is_dir()


def test_the_warning_names_the_file_and_is_logged_where_nobody_listens(store, caplog):
    store.save(1, modules(1.0), {})
    flip_a_byte(saved(store, 2) / "state.pt")
    store.load_latest()
    assert "state.pt is not what was written" in caplog.text


def test_when_all_are_damaged_the_run_does_not_quietly_begin_anew(store):
    for step in (1, 2):
        flip_a_byte(saved(store, step) / "state.pt")
    with pytest.raises(CheckpointError, match=r"2 checkpoints .*damaged"):
        store.load_latest(warn=lambda _: None)


def test_a_checkpoint_of_a_run_with_other_settings_is_refused_and_says_which(store):
    store.save(1, modules(), {})
    other = CheckpointManager(store.folder, identity={"seed": 2, "learning_rate": 1e-3})
    with pytest.raises(CheckpointError, match=r"seed was 1 and is 2"):
        other.load_latest()


def test_settings_that_json_writes_differently_are_still_the_same(tmp_path):
    identity = {"betas": (0.9, 0.999), "epochs": 3.0}
    CheckpointManager(tmp_path, identity=identity).save(1, modules(), {})
    assert CheckpointManager(tmp_path, identity=identity).load_latest().step == 1


def test_what_a_killed_process_left_is_no_checkpoint_and_is_cleared_away(store):
    store.save(1, modules(1.0), {})
    left = store.folder / ".checkpoint-00000002.0badcafe.tmp"
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
