"""Recipes and overrides that are wrong: what the user reads, with file, line, key and what to do. Nothing runs, nothing hangs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest
import yaml

from rlhf import RLHFConfig, cli
from rlhf.config.foreign_keys import REMARKS, THEIRS, VALUES
from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.config.schema import stage_classes
from rlhf.config.stages import FILE_STAGES, MODEL_STAGES
from rlhf.errors import ConfigError
from tests.fixtures.settings import config_classes

RECIPE = """\
name: mine
seed: 3
stages:
  sft: {kind: sft, model: base, data: rows.jsonl}
  judge: {kind: reward, model: 'stage:sft', data: pairs.jsonl}
  ppo: {kind: ppo, model: 'stage:sft', prompts: prompts.jsonl, reward: 'stage:judge'}
"""
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)


def refusal(path: Path, content: str | bytes = RECIPE, overrides: tuple[str, ...] = ()) -> str:
    """What the user reads."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def test_the_recipe_itself_is_fine(path):
    path.write_text(RECIPE)
    assert list(load_recipe(path).stages) == ["sft", "judge", "ppo"]


# ---- files that hold no recipe

UNREADABLE: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "a tab at the start of a line": (
        RECIPE.replace("  judge", "\tjudge"),
        ("run.yaml line 5, column 1", "'\\t'", "YAML wants spaces, not tabs; line 5 begins with a tab"),
    ),
    "a tab after spaces": (RECIPE.replace("  judge", "  \tjudge"), ("run.yaml line 5", "spaces, not tabs; line 5")),
    "a tab within a section": (
        "name: a\nstages:\n  sft:\n    kind: sft\n\tmodel: b\n",
        ("run.yaml line 5, column 1", "spaces, not tabs; line 5"),
    ),
    "brackets left open": (RECIPE.replace("rows.jsonl}", "rows.jsonl"), ("run.yaml line 5", "is not valid YAML")),
    "a colon too many": (
        RECIPE.replace("seed: 3", "seed: a: 3"),
        ("line 2, column 8", "mapping values are not allowed"),
    ),
    "a quote left open": (RECIPE.replace("'stage:sft'", "'stage:sft", 1), ("run.yaml line 6", "is not valid YAML")),
    "a key twice": (RECIPE + "name: again\n", ("line 7, column 1", "the key 'name' appears twice")),
    "two documents": (RECIPE + "---\n" + RECIPE, ("line 7", "single document", "another document")),
    "an unknown alias": (RECIPE + "x: *nobody\n", ("line 7, column 4", "undefined alias 'nobody'")),
    "an alias in itself": (RECIPE + "x: &x [*x]\n", ("line 7", "inside what it names", "never end")),
    "a billion laughs": (LAUGHS + RECIPE, ("line 5, column 5", "stands for more than 100,000 values")),
    "a Python object": (
        RECIPE + "x: !!python/object/apply:os.system ['exit 1']\n",
        ("line 7, column 4", "python/object/apply:os.system"),
    ),
    "a wrong tag": (RECIPE + "x: !!bool maybe\n", ("line 7, column 4", "'maybe' can't be read as bool")),
    "a list as a key": (RECIPE + "? [a]\n: 1\n", ("line 7", "unhashable key")),
    "a hundred thousand brackets": (RECIPE + "x: " + "[" * 100_000, ("run.yaml is nested too deeply",)),
    "two million characters": ("#" * 2_000_000, ("has 2,000,000 characters", "at most 1,000,000", "a file of data?")),
    "UTF-16": (RECIPE.encode("utf-16"), ("it is in UTF-16", "Save it as UTF-8")),
    "Latin-1": (RECIPE.replace("rows", "règle").encode("latin-1"), ("line 4", "byte 0xe8 is not UTF-8")),
    "an image": (b"\x89PNG\r\n\x1a\n\x00\x00", ("line 1", "byte 0x89 is not UTF-8")),
    "zeros": (b"name: a\x00\x00", ("is not text", "character 8 is U+0000")),
    "nothing": ("", ("run.yaml is empty", "`name:` and `stages:`")),
    "comments": ("# later\n", ("run.yaml is empty",)),
    "a list": ("- name: a\n", ("holds a list", "keys and values")),
    "a sentence": ("please train\n", ("holds a str", "keys and values")),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_holds_no_recipe_is_refused_at_once(name, path):
    content, phrases = UNREADABLE[name]
    start = time.process_time()
    message = refusal(path, content)
    assert time.process_time() - start < 5
    for phrase in (str(path), *phrases):
        assert phrase in message, f"{phrase!r} is not in: {message}"
    assert "\n" not in message


def test_a_byte_order_mark_and_carriage_returns_are_no_fault(path):
    path.write_bytes(b"\xef\xbb\xbf" + RECIPE.replace("\n", "\r\n").encode())
    assert load_recipe(path).name == "mine"


def test_a_path_that_is_no_recipe_is_answered_with_those_that_are(tmp_path):
    (tmp_path / "quickstart.yaml").write_text(RECIPE)
    with pytest.raises(ConfigError, match=r"quikstart\.yaml.*'quickstart\.yaml'"):
        load_recipe(tmp_path / "quikstart.yaml")
    with pytest.raises(ConfigError, match=r"folder.*quickstart\.yaml"):
        load_recipe(tmp_path)


# ---- recipes with a mistake

MISTAKES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a misspelled key": (
        "seed: 3",
        "sede: 3",
        ("sede: unknown key. Did you mean 'seed'?",),
    ),
    "a misspelled key of a stage": (
        "data: rows.jsonl",
        "data: rows.jsonl, epoch: 3",
        ("stages.sft.epoch: unknown key. Did you mean 'epochs'?",),
    ),
    "a misspelled kind": (
        "kind: ppo",
        "kind: ppoo",
        ("stages.ppo.kind: unknown kind 'ppoo'. Did you mean 'ppo'?", "grpo"),
    ),
    "no kind": ("kind: ppo, ", "", ("stages.ppo.kind: missing `kind`, which says what the section is.",)),
    "a negative seed": ("seed: 3", "seed: -1", ("seed: should be greater than or equal to 0 (got -1)",)),
    "on for a seed": (
        "seed: 3",
        "seed: on",
        ("seed: should be a number, and not true or false", "yes, no, on and off"),
    ),
    "true for a rate": (
        "model: base,",
        "model: base, learning_rate: true,",
        ("stages.sft.learning_rate: should be a number, and not true or false", "(got True)"),
    ),
    "true in a list of numbers": (
        "model: base,",
        "model: base, betas: [0.9, true],",
        ("stages.sft.betas.1: should be a number, and not true or false",),
    ),
    "more passes than anybody waits for": (
        "model: base,",
        "model: base, epochs: 1e300,",
        ("stages.sft.epochs: should be less than or equal to 1000000 (got 1e+300)",),
    ),
    "a number of 65 bits": ("seed: 3", "seed: 18446744073709551616", ("seed: should be a number of at most 64 bits",)),
    "a number without end": (
        "seed: 3",
        f"seed: {'9' * 100_000}",
        ("seed: should be a number of at most 64 bits", "999..."),
    ),
    "a hexadecimal number without end": (
        "model: base,",
        f"model: base, batch_size: 0x{'f' * 100_000},",
        ("stages.sft.batch_size: should be a number of at most 64 bits", "fff..."),
    ),
    "a name that is too long": (
        "name: mine",
        f"name: {'a' * 300}",
        ("name: a name has at most 200 characters", "has 300"),
    ),
    "a stage's name that is too long": (
        "  ppo:",
        f"  {'p' * 300}:",
        ("stage 'ppp", "at most 200 characters", "has 300"),
    ),
    "a path that no file can have": (
        "data: rows.jsonl",
        f"data: [a.jsonl, {'d' * 252}.jsonl]",
        ("stages.sft.data.1: a file's name has at most 255 bytes; this one has 258",),
    ),
    "a folder's name that is too long in bytes": (
        "seed: 3",
        f"output_dir: runs/{'ü' * 200}",
        ("output_dir: a file's name has at most 255 bytes; this one has 400",),
    ),
    "a seed in words": ("seed: 3", "seed: three", ("seed: should be a valid integer", "(got 'three')")),
    "an unknown stage": (
        "reward: 'stage:judge'",
        "reward: 'stage:juge'",
        ("stages.ppo.reward.0.source names stage:juge, but there is no such stage. Did you mean 'judge'?",),
    ),
    "a stage that names itself": (
        "kind: reward, model: 'stage:sft'",
        "kind: reward, model: 'stage:judge'",
        ("stages.judge.model names stage:judge, which is this stage itself",),
    ),
    "stages that name each other": (
        "model: base",
        "model: 'stage:judge'",
        ("stages.sft.model names stage:judge, which does not come before it: write `judge` above `sft`.",),
    ),
    "a reference with a space": (
        "reward: 'stage:judge'",
        "reward: 'stage: judge'",
        ("is 'stage: judge', which names no stage; write stage:NAME or stage:NAME/FILE.",),
    ),
    "on for a name": (
        "name: mine",
        "name: on",
        ("name: should be a valid string (got True)", "on, off, yes and no", "quotes"),
    ),
    "a number for a name": ("name: mine", "name: 7", ("name: should be a valid string (got 7)", "number", "quotes")),
    "a path for a name": ("name: mine", "name: ../mine", ("name: a name holds letters", "(got '../mine')")),
    "a line break in a name": ("name: mine", 'name: "mine\\n"', ("name: a name holds letters", "(got 'mine\\n')")),
    "on for a key": ("seed: 3", "on: 3", ("the key True is not text", "write it in quotes")),
    "nothing for a key": ("seed: 3", "~: 3", ("the key None is not text",)),
    "a number for a stage": ("  ppo:", "  1:", ("stages.1: should be a valid string (got 1)",)),
    "a very long value": (
        "model: base,",
        f"model: base, schedule: {'x' * 5000},",
        ("stages.sft.schedule: should be 'cosine', 'linear' or 'constant' (got 'xxx", "xxx...)"),
    ),
    "not a number": (
        "model: base,",
        "model: base, learning_rate: .nan,",
        ("stages.sft.learning_rate: should be a finite number (got nan)",),
    ),
    "an unknown variable": (
        "rows.jsonl",
        "'${MY_DTA}/rows.jsonl'",
        (
            "stages.sft.data uses ${MY_DTA}",
            "no variable MY_DTA",
            "set it or write the value",
            "Did you mean 'MY_DATA'?",
        ),
    ),
    "a variable with a dash": (
        "rows.jsonl",
        "'${MY-DATA}/rows.jsonl'",
        ("stages.sft.data: ${MY-DATA} names no variable",),
    ),
    "no stages": (RECIPE[RECIPE.index("stages") :], "stages: {}\n", ("stages: there are no stages",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_its_place(name, path, monkeypatch):
    monkeypatch.setenv("MY_DATA", "/data")
    before, after, phrases = MISTAKES[name]
    assert before in RECIPE
    first, *lines = refusal(path, RECIPE.replace(before, after, 1)).splitlines()
    assert first == f"{path} is not valid:"
    assert len(lines) == 1, f"one mistake, several complaints: {lines}"
    for phrase in phrases:
        assert phrase in lines[0], f"{phrase!r} is not in: {lines[0]}"


def test_all_mistakes_come_together_references_and_variables_too(path, monkeypatch):
    monkeypatch.delenv("NOBODY", raising=False)
    content = (
        RECIPE.replace("seed: 3", "seed: -1")
        .replace("data: rows.jsonl", "data: '${NOBODY}/rows.jsonl', lr: 1")
        .replace("reward: 'stage:judge'", "reward: 'stage:juge', clip_low: 2")
    )
    _first, *lines = refusal(path, content).splitlines()
    assert sorted(line.strip().split(" ")[0].rstrip(":") for line in lines) == [
        "seed", "stages.ppo.clip_low", "stages.ppo.reward", "stages.sft.data", "stages.sft.lr",
    ]  # fmt: skip


def test_numbers_that_nobody_means_come_together_with_all_else(path):
    given = {
        "seed": "yes", "stages.sft.epochs": "1e300", "stages.sft.learning_rate": "on", "stages.sft.batch_size": "0x" + "f" * 100_000,
        "stages.judge.max_steps": "9" * 5000, "name": "a" * 300, "stages.ppo.lr": "1",
    }  # fmt: skip
    _first, *lines = refusal(path, overrides=tuple(f"{key}={value}" for key, value in given.items())).splitlines()
    assert sorted(line.strip().partition(":")[0] for line in lines) == sorted(given)
    assert all(len(line) < 500 for line in lines), "a number of 100,000 digits is not printed"


@pytest.mark.parametrize("cls", config_classes(), ids=lambda cls: cls.__name__)
def test_true_is_no_number_in_any_setting(cls):
    for name, field in cls.model_fields.items():
        kinds = set(leaves(field.annotation))
        if bool in kinds or not {int, float} & kinds:
            continue
        said = []
        for given in (True, [True, True]):  # the second where a list of numbers is wanted
            with pytest.raises(ConfigError) as caught:
                cls.of({name: given})
            said.append(str(caught.value))
        assert re.search(rf"\n  {name}(\.0)?: .*should be a number, and not true or false", "\n".join(said))


def leaves(annotation):
    """The plain types in a type."""
    inner = typing.get_args(annotation)
    return [leaf for item in inner for leaf in leaves(item)] if inner else [annotation]


# ---- what YAML 1.1 would have taken for something else


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("012", 12),
        ("1_000", 1000),
        ("1e-5", 1e-5),
        ("+1E3", 1000.0),
        ("0x1F", 31),
        ("-0b11", -3),
        ("0o17", 15),
        ("12:30", "12:30"),
        ("1:30.5", "1:30.5"),
        ("2026-01-31", "2026-01-31"),
        ("1.5", 1.5),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("~", None),
    ],
)
def test_numbers_are_what_they_look_like_and_dates_and_times_are_text(text, value):
    from rlhf.config.base import apply_overrides

    actual = apply_overrides({}, [f"a={text}"])["a"]
    assert (actual, type(actual)) == (value, type(value))


# ---- names from elsewhere


@pytest.mark.parametrize(
    ("stage", "key", "ours"),
    [
        ("sft", "lr", "learning_rate"),
        ("sft", "rows_per_step", "batch_size"),
        ("ppo", "batch_size", "prompts_per_rollout"),
        ("ppo", "mini_batch_size", "minibatch_size"),
        ("sft", "per_device_train_batch_size", "batch_size"),
        ("ppo", "gradient_accumulation_steps", "minibatch_size"),
        ("sft", "gradient_checkpointing", "model.gradient_checkpointing"),
        ("sft", "peft_config", "model.lora"),
        ("ppo", "ref_model", "reference"),
        ("sft", "completion_only_loss", "train_on"),
        ("sft", "fp16", "autocast"),
        ("ppo", "mask_truncated_completions", "missing_eos_penalty"),
        ("sft", "num_train_epochs", "epochs"),
        ("sft", "beta2", "betas"),
        ("sft", "max_seq_length", "max_length"),
        ("ppo", "kl_coef", "kl.coef"),
        ("ppo", "num_generations", "group_size"),
        ("ppo", "temperature", "sampling.temperature"),
        ("ppo", "lam", "gae_lambda"),
        ("ppo", "sequences_per_step", "minibatch_size"),
        ("ppo", "overlap", "async_rollouts"),
        ("judge", "center_rewards_coefficient", "center_coef"),
        ("ppo", "reward_clip_range", "clip_score"),
    ],
)
def test_a_key_of_another_library_is_answered_with_ours(stage, key, ours, path):
    message = refusal(path, overrides=(f"stages.{stage}.{key}=1",))
    assert f"stages.{stage}.{key}: " in message
    assert f"'{ours}'" in message


@pytest.mark.parametrize(
    ("kind", "key", "ours"),
    [
        ("distill", "beta", "'divergence_beta' or 'kl.coef'"),
        ("distill", "lmbda", "'on_policy_frac'"),
        ("orpo", "beta", "'odds_coef'"),
        ("simpo", "simpo_gamma", "'target_margin'"),
        ("simpo", "gamma", "'target_margin'"),
        ("simpo", "gamma_beta_ratio", "'target_margin'"),
        ("cpo", "cpo_alpha", "'sft_coef'"),
        ("dpo", "use_weighting", "'weight_by_policy'"),
        ("dpo", "f_divergence_type", "'divergence'"),
        ("dpo", "f_alpha_divergence_coef", "'divergence_alpha'"),
        ("best_of_n", "n", "'num_samples'"),
    ],
)
def test_a_methods_key_of_another_library_is_answered_with_ours(kind, key, ours):
    with pytest.raises(ConfigError, match=rf"x\.{key}: .*{ours}\?"):
        RecipeConfig.of({"name": "r", "stages": {"x": {"kind": kind, key: 1}}})


@pytest.mark.parametrize(
    ("kind", "key", "value", "said"),
    [
        ("dpo", "loss", "sigmoid_norm", "that is `length_normalized: true` here"),
        ("dpo", "loss", "exo_pair", "that is `loss: exo, label_smoothing: 0.1` here"),
        ("dpo", "loss", "nca_pair", "that is `loss: nca` here"),
        ("dpo", "loss", "sppo_hard", "that is `loss: sppo` here"),
        ("kto", "loss", "apo_zero_unpaired", "that is `reference_point: zero` here"),
        ("dpo", "loss", "simpo", "the method 'simpo' is `kind: simpo`"),
        ("dpo", "loss", "slic", "the method 'slic' is `kind: dpo, loss: hinge`"),
    ],
)
def test_a_value_of_another_library_is_answered_with_ours(kind, key, value, said):
    with pytest.raises(ConfigError, match=rf"x\.{key}: .*\(got '{value}'\); {re.escape(said)}"):
        RecipeConfig.of({"name": "r", "stages": {"x": {"kind": kind, key: value}}})


def test_what_stands_for_their_values_is_valid():
    needed = {"model": "m", "data": "d"}
    for value, ours in VALUES.items():
        kind = "kto" if value == "apo_zero_unpaired" else "dpo"
        settings = yaml.safe_load("{" + ours + "}")
        RecipeConfig.of({"name": "r", "stages": {"x": {"kind": kind, **needed, **settings}}})


def test_trls_loss_type_is_a_method_where_no_key_stands_for_it():
    with pytest.raises(ConfigError, match=r"loss_type: .*TRL"):
        RecipeConfig.of({"name": "r", "stages": {"x": {"kind": "cpo", "loss_type": "simpo"}}})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("gradient_accumulation_steps", "Did you mean 'batch_size'? A step is split into micro-batches"),
        ("packing", "unknown key. Rows are always packed"),
        ("logging_steps", "unknown key. Every step is logged, into events.jsonl"),
        (
            "output_dir",
            "unknown key. It is at the top of a recipe",
        ),
        ("bf16", "Did you mean 'autocast'? As in `autocast: bfloat16`."),
    ],
)
def test_what_is_otherwise_here_is_said_beside_the_key_or_in_its_place(key, words, path):
    message = refusal(path, overrides=(f"stages.sft.{key}=1",))
    assert words in message
    assert message.count("Did you mean") <= 1


def test_every_key_that_is_suggested_exists():
    known = {name for cls in (*config_classes(), RLHFConfig) for name in cls.model_fields}
    suggested = {part for ours in THEIRS.values() for name in ours for part in name.split(".")}
    suggested |= {key for remarks in REMARKS.values() for _, keys in remarks for key in keys}
    assert suggested <= known


def test_every_kind_of_stage_makes_a_model_or_files():
    assert sorted((*MODEL_STAGES, *FILE_STAGES)) == sorted(stage_classes())


# ---- overrides


@pytest.mark.parametrize(
    ("override", "phrases"),
    [
        ("name", ("Override 'name' is not of the form key.subkey=value",)),
        ("=x", ("Override '=x' is not of the form",)),
        ("stages..seed=1", ("Override 'stages..seed=1' is not of the form", "single dots")),
        ("name =x", ("Override 'name =x' is not of the form", "without spaces")),
        ("stages.sft.x=1", ("stages.sft.x: unknown key.",)),
        ("stages.sfft.seed=1", ("stages.sfft: there is no stage 'sfft'", "Did you mean 'sft'?")),
        ("stages.sft.model.path.x=1", ("'path' holds the value 'base', not a section of keys", "path={...}")),
        ("stages.sft.kl.coef=1", ("stages.sft.kl: unknown key",)),
        ("name='a", ("The value of override", "line 1, column 3 is not valid YAML")),
        ("name=[a", ("The value of override 'name=[a' line 1", "expected ',' or ']'")),
        ("name=&x [*x]", ("never end",)),
        ("stages=3", ("stages: should hold keys and values (got 3)",)),
        ("stages.sft=", ("stages.sft: should hold keys and values (got None)",)),
    ],
)
def test_an_override_that_is_wrong_is_named(override, phrases, path):
    message = refusal(path, overrides=(override,))
    assert all(phrase in message for phrase in phrases), message


def test_a_wrong_override_is_not_blamed_on_the_file(path):
    message = refusal(path, overrides=("ppo.kl.coef=0.2",))
    assert message == (
        f"The override 'ppo.kl.coef=0.2' is not valid; {path} is fine without it:\n"
        "  ppo: unknown key. Did you mean 'stages.ppo.kl.coef'?"
    )
    assert "Did you mean 'stages.ppo.kl.coef'?" in refusal(path, overrides=("kl.coef=0.2",))


def test_each_of_several_wrong_overrides_is_named(path):
    first, *lines = refusal(path, overrides=("seed=-1", "threads=2", "stages.ppo.clip_low=2")).splitlines()
    assert first == f"The overrides are not valid; {path} is fine without them:"
    assert len(lines) == 2
    assert any(line.endswith("(got -1) [override seed=-1]") for line in lines)
    assert any(line.endswith("(got 2) [override stages.ppo.clip_low=2]") for line in lines)


def test_mistakes_of_the_file_and_of_the_command_line_are_told_apart(path):
    content = RECIPE.replace("data: rows.jsonl", "data: rows.jsonl, batch_size: 0")
    first, *lines = refusal(path, content, ("seed=-1",)).splitlines()
    assert first == f"{path} with its overrides is not valid:"
    assert [line.strip().partition(":")[0] for line in lines if "[override" in line] == ["seed"]
    assert [line.strip().partition(":")[0] for line in lines if "[override" not in line] == ["stages.sft.batch_size"]


@pytest.mark.parametrize("place", ["2", "-1", "x", "²", "0x0"])
def test_a_place_that_a_list_does_not_have_is_refused(place, path):
    content = RECIPE.replace("data: rows.jsonl", "data: [a.jsonl, b.jsonl]")
    message = refusal(path, content, (f"stages.sft.data.{place}=c.jsonl",))
    assert f"'{place}' is not a place in a list of 2; count from 0" in message


# ---- as the command line says it


@pytest.mark.parametrize("command", [["run"], ["config", "show"]])
@pytest.mark.parametrize("content", [RECIPE.replace("seed", "sede"), "\tname: a\n", LAUGHS])
def test_the_command_line_prints_no_trace_and_starts_nothing(command, content, path, monkeypatch, capsys):
    path.write_text(content)
    earlier = path.parent / "runs" / "mine" / "sft"
    earlier.mkdir(parents=True)
    (earlier / "done").write_text("earlier work")
    monkeypatch.chdir(path.parent)
    monkeypatch.delenv("RLHF_DEBUG", raising=False)
    monkeypatch.setattr(sys, "argv", ["rlhf", *command, str(path)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr()
    assert left.value.code == ConfigError.exit_code == 2
    assert shown.err.startswith("error: ")
    assert path.name in shown.err
    assert "Traceback" not in shown.err + shown.out
    assert sorted(p.name for p in path.parent.rglob("*") if p.is_file()) == ["done", "run.yaml"]


def test_the_installed_command_does_the_same(path):
    path.write_text(RECIPE.replace("kind: ppo", "kind: ppoo"))
    command = [sys.executable, "-m", "rlhf", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Did you mean 'ppo'?" in done.stderr
    assert "Traceback" not in done.stderr
