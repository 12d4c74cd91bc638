"""The registry: versions, aliases, promotion in one step, rollback, and nothing lost at a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from rlhf.errors import ConfigError, DataError, ModelError, StorageError
from rlhf.registry import registry as registry_module
from rlhf.registry.history import FILE, read_history
from rlhf.registry.registry import Registry, content_of


def model(folder, weights="w1"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)
    return folder


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "registry")


def test_an_alias_is_a_model_folder_for_any_program(registry, tmp_path):
    version = registry.promote(model(tmp_path / "a"), reason="first")
    assert version.number == 1
    assert (registry.folder / "champion" / "model.safetensors").read_text() == "w1"
    assert registry.path("champion").resolve() == (registry.folder / "champion").resolve()
    assert registry.path(1) == registry.path("0001")


def test_a_version_is_a_copy_that_later_training_does_not_touch(registry, tmp_path):
    source = model(tmp_path / "a")
    registry.promote(source)
    (source / "model.safetensors").write_text("other")
    assert (registry.path() / "model.safetensors").read_text() == "w1"
    registry.verify(1)


def test_the_same_model_is_one_version_under_several_aliases(registry, tmp_path):
    registry.promote(model(tmp_path / "a"), alias="challenger")
    registry.promote(model(tmp_path / "b"), alias="champion")
    assert len(registry.versions()) == 1
    assert registry.aliases() == {"challenger": 1, "champion": 1}


def test_the_history_says_what_why_and_on_what_evidence(registry, tmp_path):
    evidence = tmp_path / "gate.json"
    evidence.write_text("{}")
    registry.promote(model(tmp_path / "a"), reason="won", evidence=evidence)
    registry.refuse(model(tmp_path / "b", "w2"), reason="lost", evidence=evidence)
    registry.promote(model(tmp_path / "c", "w3"))
    events = registry.history("champion")
    assert [(e.action, e.previous, e.version) for e in events] == [
        ("promote", None, 1),
        ("refuse", 1, 1),
        ("promote", 1, 2),
    ]
    assert events[0].evidence["file"] == str(evidence)
    assert events[1].candidate.endswith("/b")
    assert len(registry.versions()) == 2, "a refused model is not kept"


def test_rollback_goes_back_step_by_step(registry, tmp_path):
    for number in (1, 2, 3):
        registry.promote(model(tmp_path / str(number), f"w{number}"))
    assert registry.rollback(reason="worse").number == 2
    assert registry.rollback().number == 1
    with pytest.raises(ModelError, match="roll back"):
        registry.rollback()
    registry.promote(tmp_path / "3")
    assert registry.current().number == 3
    assert registry.rollback().number == 1, "what it named before"
    assert registry.rollback(to=2).number == 2
    assert (registry.folder / "champion" / "model.safetensors").read_text() == "w2"


def test_a_damaged_version_is_named_and_nothing_is_rolled_back_to_it(registry, tmp_path):
    registry.promote(model(tmp_path / "a"))
    registry.promote(model(tmp_path / "b", "w2"))
    (registry.path(1) / "model.safetensors").write_text("flipped")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        registry.rollback()
    assert registry.current().number == 2
    (registry.path(1) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="missing"):
        registry.verify(1)


def test_promoting_a_damaged_version_again_from_its_source_mends_the_alias(registry, tmp_path):
    source = model(tmp_path / "a")
    registry.promote(source)
    (registry.path() / "model.safetensors").write_text("flipped")
    assert registry.promote(source).number == 2
    registry.verify(registry.current().number)
    assert (registry.folder / "champion" / "model.safetensors").read_text() == "w1"
    assert registry.promote(source).number == 2, "the whole one is taken from now on"


def test_a_version_whose_record_is_damaged_leaves_the_others_usable(registry, tmp_path):
    registry.promote(model(tmp_path / "a"))
    registry.promote(model(tmp_path / "b", "w2"))
    (registry.path(1).parent / "version.json").write_text('{"number": 1')
    assert [version.number for version in registry.versions()] == [2]
    assert registry.damaged().keys() == {1}
    with pytest.raises(ModelError, match=r"0001.version\.json"):
        registry.rollback()
    assert registry.current().number == 2
    assert registry.promote(tmp_path / "a").number == 3
    shutil.rmtree(registry.path(3).parent)
    assert registry.damaged().keys() == {1, 3}, "what an alias names and is gone"


def test_a_number_of_the_history_never_names_another_model(registry, tmp_path):
    registry.promote(model(tmp_path / "a"))
    registry.promote(model(tmp_path / "b", "w2"))
    shutil.rmtree(registry.path(2).parent)
    assert registry.promote(model(tmp_path / "c", "w3")).number == 3


def test_what_is_not_there_is_answered_with_what_is(registry, tmp_path):
    registry.promote(model(tmp_path / "a"))
    with pytest.raises(ModelError, match="champion"):
        registry.path("champoin")
    with pytest.raises(ModelError, match="0001"):
        registry.path(7)
    with pytest.raises(ModelError, match="config"):
        registry.promote(tmp_path)
    for alias in ("versions", "../x", "1", ""):
        with pytest.raises(ConfigError, match="alias"):
            registry.promote(tmp_path / "a", alias=alias)


def test_an_adapter_still_finds_its_base(registry, tmp_path):
    base = model(tmp_path / "run" / "sft" / "model")
    adapter = tmp_path / "run" / "dpo" / "model"
    adapter.mkdir(parents=True)
    relative = os.path.relpath(base, adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": relative, "r": 4}))
    (adapter / "adapter_model.safetensors").write_text("a")
    registry.promote(adapter)
    document = json.loads((registry.path() / "adapter_config.json").read_text())
    assert document == {"base_model_name_or_path": str(base), "r": 4}
    registry.verify(1)


def test_a_torn_last_line_is_no_event_and_the_next_one_is_whole(registry, tmp_path):
    registry.promote(model(tmp_path / "a"))
    with (registry.folder / FILE).open("a") as file:
        file.write('{"time": "now", "acti')
    assert len(registry.history()) == 1
    registry.promote(model(tmp_path / "b", "w2"))
    assert [event.version for event in registry.history()] == [1, 2]
    (registry.folder / FILE).write_text("not json\n")
    with pytest.raises(DataError, match=f"{FILE}:1"):
        registry.history()


@pytest.mark.parametrize("call", ["rename", "replace", "symlink"])
def test_a_failure_at_any_step_leaves_the_old_or_the_new_champion(registry, tmp_path, monkeypatch, call):
    registry.promote(model(tmp_path / "a"))
    second = model(tmp_path / "b", "w2")
    real = getattr(os, call)

    def fails(*args, **kwargs):
        raise OSError(5, "cut off")

    monkeypatch.setattr(registry_module.os, call, fails)
    with pytest.raises(StorageError, match="registry"):
        registry.promote(second)
    monkeypatch.setattr(registry_module.os, call, real)
    text = (registry.folder / "champion" / "model.safetensors").read_text()
    assert text in ("w1", "w2")
    decided = registry.current().number
    registry.refuse(second, alias="challenger")  # the next use finishes what the history says
    assert (registry.folder / "champion").resolve() == registry.path(decided).resolve()
    assert not list(registry.folder.rglob(".*.tmp"))


PROMOTER = """
import sys
from rlhf.registry.registry import Registry, content_of
registry = Registry(sys.argv[1])
print("ready", flush=True)
for number in range(10_000):
    registry.promote(sys.argv[2 + number % 2], reason=str(number))
"""


def test_killed_at_any_moment_nothing_is_lost(registry, tmp_path):
    """kill -9 in the middle of promotions: link and history agree after the next use, and every event is whole."""
    models = [model(tmp_path / name, name * 1000) for name in "ab"]
    rng = random.Random(0)
    done = 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", PROMOTER, str(registry.folder), *map(str, models)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        before = read_history(registry.folder)
        assert len(before) >= done
        done = len(before)
        registry.refuse(models[0], alias="other")
        done += 1
        if champion := registry.current():
            assert (registry.folder / "champion").resolve() == registry.path(champion.number).resolve()
            registry.verify(champion.number)
    assert done > 6


def test_it_loads_without_torch():
    code = "import sys; import rlhf.registry.registry; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_files_that_a_decision_was_about_are_promoted(registry, tmp_path, monkeypatch):
    source = model(tmp_path / "a")
    content = content_of(source)
    assert registry.promote(source, content=content).content == content
    (source / "model.safetensors").write_text("other")
    with pytest.raises(ModelError, match="changed"):
        registry.promote(source, content=content)
    copytree = shutil.copytree

    def slow_copy(*args, **kwargs):
        (source / "model.safetensors").write_text("still being written")
        return copytree(*args, **kwargs)

    monkeypatch.setattr(registry_module.shutil, "copytree", slow_copy)
    with pytest.raises(ModelError, match="copied"):
        registry.promote(source)
    assert registry.aliases() == {"champion": 1}
    assert len(registry.versions()) == len(registry.history()) == 1


def test_rollback_goes_back_through_a_model_that_was_champion_twice(registry, tmp_path):
    for number in (1, 2):
        registry.promote(model(tmp_path / str(number), f"w{number}"))
    registry.promote(tmp_path / "1")
    registry.promote(model(tmp_path / "3", "w3"))
    assert [registry.rollback().number for _ in range(3)] == [1, 2, 1]
    with pytest.raises(ModelError, match="roll back"):
        registry.rollback()


def test_a_name_of_odd_digits_is_no_version(registry, tmp_path):
    registry.promote(model(tmp_path / "a"))
    with pytest.raises(ModelError, match="²"):
        registry.path("²")
    (registry.folder / "versions" / "²").mkdir()
    assert [version.number for version in registry.versions()] == [1]


def test_a_link_to_nothing_in_a_model_is_named(registry, tmp_path):
    source = model(tmp_path / "a")
    (source / "tokenizer.json").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        registry.promote(source)
    assert registry.aliases() == {}
