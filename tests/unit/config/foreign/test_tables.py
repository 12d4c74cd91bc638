"""Tables of other projects' keys: what they point at exists, and what they say can be read."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from rlhf.config.foreign import convert, guide, openrlhf
from rlhf.config.foreign.foreign_files import Source
from rlhf.config.foreign.key_table import TOP, Reason, To
from rlhf.config.foreign.layouts import GUIDE, LAYOUTS, OPENRLHF, TRL
from rlhf.config.foreign_keys import OF_RLHF_CONFIG, OTHERS
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stages import BY_KIND
from rlhf.pipeline.api import RLHFConfig


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from models_in(inner)


def exists(owner: type[BaseModel], dotted: str) -> bool:
    head, _, rest = dotted.partition(".")
    if head not in owner.model_fields:
        return False
    return not rest or any(exists(model, rest) for model in models_in(owner.model_fields[head].annotation))


def test_every_key_of_ours_in_a_table_exists():
    entries = [("others", key, entry) for key, entry in OTHERS.items()]
    for name, layout in LAYOUTS.items():
        entries += [(name, key, entry) for key, actual in layout.everything.items() for entry in actual]
    for source, key, entry in entries:
        for ours in entry.ours if isinstance(entry, To) else ():
            owners = [RecipeConfig] if ours.startswith(TOP) else BY_KIND.values()
            wanted = {"model.path": "model"}.get(ours, ours).removeprefix(TOP)
            if ours in ("path", "kind", "coef"):  # of a section, for errors in it
                continue
            assert any(exists(owner, wanted) for owner in owners), f"{source}: {key} -> {ours}"


def test_every_field_that_stands_for_a_wrong_one_exists():
    assert {ours for entry in OF_RLHF_CONFIG.values() for ours in entry.ours} <= set(RLHFConfig.model_fields)


def test_every_method_of_a_table_is_a_kind_of_stage():
    assert set(TRL.methods) == set(TRL.defaults) <= set(BY_KIND)
    assert set(guide.STAGES.values()) <= set(BY_KIND)
    assert set(openrlhf.PROGRAMS.values()) == set(OPENRLHF.defaults) <= set(BY_KIND)


def test_a_reason_says_what_to_do_and_a_default_is_a_key_of_its_table():
    for layout in LAYOUTS.values():
        for key, entries in layout.everything.items():
            assert all(len(entry) > 10 for entry in entries if isinstance(entry, Reason)), key
        for method, defaults in layout.defaults.items():
            assert not [key for key in defaults if layout.entry(key, method) is None]


@pytest.mark.parametrize(
    ("flag", "plain"),
    [
        ("actor.adam.lr", "actor_learning_rate"),
        ("vllm.num_engines", "vllm_num_engines"),
        ("actor.gradient_checkpointing_enable", "gradient_checkpointing"),
        ("logger.wandb.group", "wandb_group"),
        ("data.input_key", "input_key"),
        ("train_batch_size", "train_batch_size"),
    ],
)
def test_a_flag_with_dots_is_the_flag_with_underscores_that_it_replaced(flag, plain):
    assert OPENRLHF.plain(flag) == plain
    assert plain in openrlhf.FLAGS
    assert set(openrlhf.DOTTED.values()) <= set(openrlhf.FLAGS)


def test_a_key_is_found_with_and_without_its_sections():
    assert GUIDE.entry("training.num_epochs", "sft") is guide.KEYS["num_epochs"]
    assert GUIDE.entry("lora.r", "sft") is guide.KEYS["lora.r"]
    assert isinstance(TRL.entry("gradient_checkpointing_kwargs.use_reentrant", "sft"), Reason)
    assert TRL.entry("model_init_kwargs.torch_dtype", "sft") is TRL.common["torch_dtype"]
    assert TRL.entry("no_such_key", "sft") is None


@pytest.mark.parametrize("value", ["abc", -1, {"a": 1}, [1, 2]], ids=str)
@pytest.mark.parametrize(
    ("name", "method"), [("trl", "grpo"), ("trl", "dpo"), ("openrlhf", "ppo"), ("guide", "reward")]
)
def test_odd_values_of_all_keys_are_answered_and_the_recipe_stays_valid(name, method, value, tmp_path, monkeypatch):
    layout = LAYOUTS[name]
    keys = {key: value for key in layout.entries(method) if "." not in key}
    source = Source(layout, {f"{method}.{key}" if name == "guide" else key: value for key, value in keys.items()})
    source.stages = (method,) if name == "guide" else ()
    monkeypatch.setattr(convert, "read_source", lambda path: source)
    conversion = convert.convert_file(tmp_path / "any", method="" if name == "guide" else method)
    RecipeConfig.of(conversion.tree)
    assert {line.key for line in conversion.lines if not line.is_default} == source.keys.keys()
