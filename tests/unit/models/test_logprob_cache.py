from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.hooks import RemovableHandle

from rlhf.allocator import CAPACITIES
from rlhf.data.pack import Branch, Group
from rlhf.models import logprob_cache
from rlhf.models.logprob_cache import LogprobCache, cache_folder, cache_key, group_digest
from rlhf.models.reference import AdapterOffReference, ReferenceModel
from tests.fixtures import toy

VALUES = -torch.arange(1.0, 8.0)
CPU = torch.device("cpu")
ignore_conv1d = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # GPT-2's layers lie the other way


@pytest.fixture
def told():
    return []


@pytest.fixture
def cache(tmp_path, told):
    return LogprobCache(tmp_path / "reference", tell=told.append)


def key_of(reference, rows=(b"a", b"b"), *, max_tokens=64, autocast="none"):
    return cache_key(reference, rows, max_tokens=max_tokens, autocast=autocast, device=CPU)


# ---- files


def test_what_was_kept_is_read_bit_for_bit_and_nothing_is_said(cache, told):
    assert cache.read("k", num_scored=7) is None
    cache.keep("k", VALUES)
    assert torch.equal(cache.read("k", num_scored=7), VALUES)
    assert told == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # one bit of one number
        lambda data: b"a photograph of somebody's cat",
    ],
)
def test_a_damaged_file_costs_one_line_and_is_replaced(cache, told, damage):
    cache.keep("k", VALUES)
    path = cache.path("k")
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("k", num_scored=7) is None
    assert len(told) == 1
    assert str(path) in told[0]
    assert "file is replaced" in told[0]
    assert "\n" not in told[0]
    cache.keep("k", VALUES)
    assert torch.equal(cache.read("k", num_scored=7), VALUES)


def test_a_file_of_another_key_is_not_taken_for_this_one(cache, told):
    cache.keep("other", VALUES)
    cache.path("other").rename(cache.path("k"))
    assert cache.read("k", num_scored=7) is None
    assert "it belongs to other rows" in told[0]


def test_numbers_for_fewer_tokens_than_the_rows_have_are_not_used(cache, told):
    cache.keep("k", VALUES)
    assert cache.read("k", num_scored=8) is None
    assert len(told) == 1


def test_a_full_disk_costs_one_line_and_leaves_nothing_behind(cache, told, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(logprob_cache, "save_file", full)
    cache.keep("k", VALUES)
    assert len(told) == 1
    assert "not cached for later runs" in told[0]
    assert "no room left" in told[0]
    assert list(cache.folder.iterdir()) == []


def test_a_folder_that_can_not_be_made_costs_one_line(tmp_path, told):
    (tmp_path / "file").write_text("in the way")
    cache = LogprobCache(tmp_path / "file" / "reference", tell=told.append)
    assert cache.read("k", num_scored=7) is None
    cache.keep("k", VALUES)
    assert [line.partition(":")[0] for line in told][
        -1
    ] == "The reference log-probabilities are not cached for later runs"


def test_numbers_that_are_not_finite_are_not_kept(cache):
    cache.keep("k", torch.tensor([-1.0, float("nan")]))
    assert not cache.path("k").exists()


def test_the_longest_unused_file_goes_first(tmp_path, told):
    cache = LogprobCache(tmp_path, tell=told.append)
    for name, age in (("a", 30), ("b", 20), ("c", 10)):
        cache.keep(name, VALUES)
        os.utime(cache.path(name), (time.time() - age, time.time() - age))
    size = cache.path("a").stat().st_size
    assert cache.read("a", num_scored=7) is not None  # used now, so b is the oldest
    LogprobCache(tmp_path, tell=told.append, limit_bytes=3 * size).keep("d", VALUES)
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == ["a", "c", "d"]


def test_what_is_larger_than_the_limit_is_not_kept_and_pushes_nothing_out(tmp_path, told):
    LogprobCache(tmp_path, tell=told.append).keep("small", VALUES)
    LogprobCache(tmp_path, tell=told.append, limit_bytes=100).keep("large", torch.zeros(26))
    assert [path.stem for path in tmp_path.glob("*.safetensors")] == ["small"]
    assert "104 bytes" in told[0]


def test_what_killed_processes_left_half_written_goes_and_what_is_being_written_stays(cache):
    cache.folder.mkdir()
    old, new = cache.folder / ".k.safetensors.12345678.tmp", cache.folder / ".k.safetensors.9abcdef0.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.keep("k", VALUES)
    assert not old.exists()
    assert new.exists()


def test_two_who_write_one_key_at_once_leave_one_whole_file(cache, monkeypatch):
    """The second begins and ends while the first is writing."""
    write = logprob_cache.save_file

    def interrupted(*args, **kwargs):
        monkeypatch.setattr(logprob_cache, "save_file", write)
        cache.keep("k", VALUES)
        write(*args, **kwargs)

    monkeypatch.setattr(logprob_cache, "save_file", interrupted)
    cache.keep("k", VALUES)
    assert torch.equal(cache.read("k", num_scored=7), VALUES)
    assert [path.name for path in cache.folder.iterdir()] == ["k.safetensors"]


# ---- where


def test_how_many_kernels_are_kept_does_not_change_the_key(monkeypatch):
    policy = toy.build_policy()
    keys = []
    for name, value in (
        (CAPACITIES[0], "7"),
        (CAPACITIES[0], "8"),
        (CAPACITIES[1], "9"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2"),
    ):
        monkeypatch.setenv(name, value)
        keys.append(key_of(policy))
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_path_in_the_recipe_comes_before_the_environment_and_that_before_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RLHF_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder(True) == tmp_path / ".cache" / "rlhf" / "reference"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(True) == tmp_path / "xdg" / "rlhf" / "reference"
    monkeypatch.setenv("RLHF_CACHE", "~/ours")
    assert cache_folder(True) == tmp_path / "ours" / "reference"
    assert cache_folder("~/mine") == tmp_path / "mine"
    assert cache_folder(False) is None
    monkeypatch.setenv("RLHF_CACHE", "off")
    assert cache_folder(True) is None
    assert cache_folder("mine").name == "mine"


# ---- keys


def test_the_same_model_has_the_same_key_in_another_object():
    assert key_of(toy.build_policy()) == key_of(toy.build_policy()) == key_of(ReferenceModel(toy.build_policy()))


def test_whatever_could_change_the_bits_changes_the_key(monkeypatch):
    keys = [key_of(toy.build_policy()), key_of(toy.build_policy(seed=1))]
    keys.append(key_of(toy.build_policy(dtype=torch.float64)))
    keys += [key_of(toy.build_policy(), rows) for rows in ((b"b", b"a"), (b"a",))]
    keys += [key_of(toy.build_policy(), max_tokens=65), key_of(toy.build_policy(), autocast="bfloat16")]
    other = toy.build_policy()
    other.model.config.scale_attn_weights = False  # the same weights, another function
    keys.append(key_of(other))
    padded = toy.build_policy()
    padded.choose_path(toy.pairs(2))
    keys.append(key_of(padded))
    monkeypatch.setattr(logprob_cache, "_code_of_ours", lambda: "another version")
    keys.append(key_of(toy.build_policy()))
    monkeypatch.undo()
    for made in ("by one compiler", "by another"):
        monkeypatch.setattr(logprob_cache, "is_in_c", lambda: True)
        monkeypatch.setattr(logprob_cache, "toolchain", lambda made=made: made)
        keys.append(key_of(toy.build_policy()))
        monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    keys.append(key_of(toy.build_policy()))
    monkeypatch.undo()
    for value in (1.0, 2.0):  # no weight, but what positions and masks are made of
        buffered = toy.build_policy()
        buffered.model.register_buffer("angles", torch.tensor(value))
        keys.append(key_of(buffered))
    compiled = toy.build_policy()
    compiled.model.compile()
    keys.append(key_of(compiled))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    keys.append(key_of(toy.build_policy()))
    monkeypatch.undo()
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    keys.append(key_of(toy.build_policy()))
    monkeypatch.undo()
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    keys.append(key_of(toy.build_policy()))
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__version__", "0.0.0")
    keys.append(key_of(toy.build_policy()))
    assert len(set(keys)) == len(keys)


def patch_forward(linear):
    forward = linear.forward
    linear.forward = lambda given: 2 * forward(given)


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize(
    "alter",
    [
        lambda linear: linear.register_forward_hook(lambda module, given, output: 2 * output),
        lambda linear: linear.register_forward_pre_hook(lambda module, given: (2 * given[0],)),
        patch_forward,
        lambda linear: register_parametrization(linear, "weight", Doubled()),
        lambda linear: register_module_forward_hook(lambda module, given, output: None),
        lambda linear: register_module_forward_pre_hook(lambda module, given: None),
    ],
    ids=["hook", "pre-hook", "forward", "weight", "hook of all", "pre-hook of all"],
)
def test_a_model_that_something_outside_alters_is_asked_each_time(alter):
    policy = toy.build_policy()
    assert key_of(policy) is not None
    linear = next(module for module in policy.model.modules() if isinstance(module, torch.nn.Linear))
    handle = alter(linear)
    try:
        assert key_of(policy) is None
    finally:
        if isinstance(handle, RemovableHandle):  # those of all modules would outlive this test
            handle.remove()


@pytest.mark.slow
def test_the_new_switches_of_precision_are_a_fact_and_no_error():
    """Once one was set torch refuses to say what the old one is."""
    program = textwrap.dedent(
        """
        import torch
        from rlhf.models.logprob_cache import _facts_of_machine
        before = _facts_of_machine(torch.device("cpu"))
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        assert before["precision"] != _facts_of_machine(torch.device("cpu"))["precision"]
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@ignore_conv1d
def test_an_adapter_counts_unless_it_is_switched_off():
    one, other = toy.build_policy(lora=True), toy.build_policy(lora=True)
    with torch.no_grad():
        for name, value in other.model.named_parameters():
            if "lora_A" in name:
                value.add_(1.0)
    assert key_of(one) != key_of(other)
    assert key_of(AdapterOffReference(one)) == key_of(AdapterOffReference(other))


def test_a_reference_that_moves_or_that_we_know_nothing_of_has_no_key():
    class Theirs:
        def logprobs(self, batch, *, temperature=1.0):
            return -batch.score_token.float()

        def fingerprint(self):
            return "abc"

    assert key_of(Theirs()) is None
    assert key_of(ReferenceModel(toy.build_policy(), decay=0.9)) is None


def test_a_row_is_its_tokens_its_cuts_and_its_marks():
    rows = [
        Group([1, 2], [Branch([5, 6]), Branch([7])]),
        Group([1], [Branch([2, 5, 6]), Branch([7])]),
        Group([1, 2], [Branch([5]), Branch([6, 7])]),
        Group([1, 2], [Branch([7]), Branch([5, 6])]),
        Group([1, 2], [Branch([5, 6], [False, True]), Branch([7])]),
    ]
    assert len({group_digest(row) for row in rows}) == len(rows)
    named = Group((1, 2), (Branch((5, 6), (True, True)), Branch([7])), {"id": "named", "margin": 2.0})
    assert group_digest(named) == group_digest(rows[0])
