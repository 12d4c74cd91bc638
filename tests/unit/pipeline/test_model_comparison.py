"""`rlhf compare`: two models in, one verdict, a record and a page out."""

from __future__ import annotations

import json
import shutil

import pytest

from rlhf.config.comparison import CompareConfig
from rlhf.errors import ConfigError, DataError, ModelError
from rlhf.pipeline.compared_models import find_side
from rlhf.pipeline.judge_independence import check_independent, judge_independence
from rlhf.pipeline.model_comparison import compare_models
from rlhf.registry.registry import Registry
from tests.fixtures.cheap_stages import install, pipeline_of
from tests.fixtures.tiny import build_llama, build_tokenizer
from tests.unit.rewards.pairwise.endpoint import judging, longer
from tests.unit.rewards.servers import serving


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two tiny models and prompts."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer()
    for seed, name in enumerate(("one", "two")):
        build_llama(vocab_size=len(tokenizer), seed=seed).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    rows = [{"prompt": f"What does cow {i} eat?"} for i in range(6)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def settings(models, **more):
    return CompareConfig.of(
        {
            "a": str(models / "one"), "b": str(models / "two"), "prompts": str(models / "prompts.jsonl"), "judge": "longer",
            "sampling": {"max_new_tokens": 6}, **more,
        }
    )  # fmt: skip


def answers(path, rows):
    path.write_text("".join(json.dumps({"prompt": p, "completion": c, **more}) + "\n" for p, c, more in rows))
    return str(path)


def test_two_models_are_compared_and_the_record_says_all(models, tmp_path):
    compared = compare_models(settings(models, samples_per_prompt=2), tmp_path)
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record["win_rate"]["n"] == 6
    assert record["wins"] + record["ties"] + record["losses"] == 12
    assert record["sentence"] == compared.sentence
    assert set(record["per_prompt"]["win_rate"])
    assert len(record["per_prompt"]["win_rate"]) == 6
    assert record["a"]["content"] != record["b"]["content"]
    assert (record["samples_per_prompt"], record["seed"]) == (2, 0)
    assert compared.sentence in (tmp_path / "comparison.md").read_text()


def test_a_second_start_samples_nothing_and_another_seed_does(models, tmp_path, monkeypatch):
    first = compare_models(settings(models), tmp_path).to_dict()
    from rlhf.rollout.local import LocalEngine

    def fails(*args, **kwargs):
        raise AssertionError("sampled again")

    monkeypatch.setattr(LocalEngine, "generate", fails)
    again = compare_models(settings(models), tmp_path).to_dict()
    assert {**again, "time": ""} == {**first, "time": ""}
    with pytest.raises(AssertionError):
        compare_models(settings(models, seed=1), tmp_path)


def test_an_endpoint_is_asked_about_both_orders_once_and_never_again(models, tmp_path):
    with serving(judging(longer), path="/v1") as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m"}
        compared = compare_models(settings(models, judge=judge), tmp_path)
        asked = len(service.asked)
        assert asked == compared.comparison.asked > 0
        compare_models(settings(models, judge=judge), tmp_path)
        assert len(service.asked) == asked
    assert (tmp_path / "verdicts.jsonl").read_bytes().count(b"\n") == asked
    same = compare_models(settings(models), tmp_path / "by_rule")
    assert compared.comparison.win_rate == same.comparison.win_rate


def test_files_of_completions_need_no_model(tmp_path):
    cut = {"finish_reason": "length"}
    a = answers(tmp_path / "a.jsonl", [("p", "aaa", {}), ("q", "a", cut), ("p", "aaaa", {}), ("q", "a", {})])
    b = answers(tmp_path / "b.jsonl", [("q", "bb", {}), ("p", "b", {}), ("q", "bb", {}), ("p", "b", {})])
    compared = compare_models(CompareConfig.of({"a": a, "b": b, "judge": "longer"}), tmp_path / "out")
    assert compared.num_samples == 2
    assert sorted(compared.comparison.per_prompt.values()) == [0.0, 1.0]
    assert any("is a file" in note for note in compared.independence.notes)


def test_a_file_against_a_model_asks_the_model_the_file_s_prompts(models, tmp_path):
    a = answers(tmp_path / "a.jsonl", [("What?", "x" * 200, {}), ("Who?", "x" * 200, {})])
    compared = compare_models(settings(models, a=a, prompts=None), tmp_path / "out")
    assert compared.comparison.wins == 2


def test_sides_that_do_not_match_are_refused(models, tmp_path):
    a = answers(tmp_path / "a.jsonl", [("p", "a", {}), ("q", "a", {})])
    b = answers(tmp_path / "b.jsonl", [("p", "b", {})])
    twice = answers(tmp_path / "c.jsonl", [("p", "a", {}), ("q", "a", {}), ("q", "b", {})])
    for other, error, match in ((b, DataError, "1 prompt"), (twice, DataError, "same number")):
        with pytest.raises(error, match=match):
            compare_models(CompareConfig.of({"a": a, "b": other, "judge": "longer"}), tmp_path / "out")
    with pytest.raises(ConfigError, match="prompts"):
        compare_models(settings(models, prompts=None), tmp_path / "out")
    with pytest.raises(ConfigError, match="a and b"):
        settings(models, b=str(models / "one"))


def test_names_of_models(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stage = tmp_path / "runs" / "x" / "ppo"
    shutil.copytree(models / "one", stage / "model")
    assert find_side("runs/x/ppo", registry="registry").path == "runs/x/ppo/model"
    with pytest.raises(ModelError, match="ppo"):
        find_side("runs/x", registry="registry")
    Registry("registry").promote(models / "two")
    side = find_side("champion", registry="registry")
    assert side.content == find_side(str(models / "two"), registry="registry").content
    with pytest.raises(ModelError, match="challenger"):
        find_side("challenger", registry="registry")


def test_another_judge_voids_an_earlier_record(models, tmp_path):  # trap 24
    compare_models(settings(models), tmp_path / "old")
    earlier = str(tmp_path / "old" / "comparison.json")
    same = compare_models(settings(models, earlier=earlier), tmp_path / "new")
    assert same.change.difference.value == 0.0
    assert any("Since the earlier" in note for note in same.notes())
    other = compare_models(settings(models, earlier=earlier, judge="shorter"), tmp_path / "other")
    assert not other.change.difference.measured
    assert any("void" in note for note in other.notes())
    with pytest.raises(DataError, match="prompts"):
        compare_models(settings(models, earlier=str(models / "prompts.jsonl")), tmp_path / "new")


# Whether the judge is independent (trap 8) ---------------------------------------------------------


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A run that has been: sft, reward and ppo against the reward."""
    install(monkeypatch)
    (tmp_path / "asked.jsonl").write_text('{"prompt": "Say 1"}\n')
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    pipeline_of(tmp_path, ppo__prompts=str(tmp_path / "asked.jsonl"), reward__data=str(tmp_path / "pairs.jsonl")).run(
        until="ppo"
    )
    return looks_like_models(tmp_path / "runs" / "loop")


def looks_like_models(run):
    """Cheap stages leave weights and nothing beside them."""
    for folder in run.glob("*/model"):
        (folder / "config.json").write_text("{}")
    return run


def independence(judge, *sides, runs=None):
    from rlhf.config.judges import read_judge

    return judge_independence(read_judge(judge), [find_side(str(side), registry="none") for side in sides], runs=runs)


def test_the_reward_that_a_policy_was_trained_against_is_no_judge_of_it(old):
    actual = independence({"type": "reward_model", "path": str(old / "reward" / "model")}, old / "ppo", old / "sft")
    assert any("trained against" in text for text in actual.shared)
    with pytest.raises(ConfigError, match="allow_shared_judge"):
        check_independent(actual, allowed=False)
    check_independent(actual, allowed=True)
    jury = {"type": "jury", "members": ["longer", {"type": "reward_model", "path": str(old / "reward" / "model")}]}
    assert independence(jury, old / "ppo").shared, "nor as a member of a jury"


def test_a_copy_of_it_is_found_by_its_weights(old, tmp_path):
    copy = shutil.copytree(old / "reward" / "model", tmp_path / "elsewhere")
    actual = independence({"type": "reward_model", "path": str(copy)}, old / "ppo", runs=old.parent)
    assert any("trained against" in text for text in actual.shared)


def test_a_model_that_the_policy_was_made_from_is_no_judge_of_it(old):
    actual = independence({"type": "local", "path": str(old / "sft" / "model")}, old / "ppo")
    assert any("made from" in text for text in actual.shared)
    assert any("made from" in text for text in independence({"type": "local", "path": "embedded"}, old / "ppo").shared)


def test_a_base_model_in_common_is_said_and_not_refused(old, tmp_path):
    rows = tmp_path / "others.jsonl"
    rows.write_text('{"prompt": "z", "chosen": "c", "rejected": "d"}\n')
    other = pipeline_of(tmp_path / "second", reward__data=str(rows), reward__model="embedded")
    other.run(until="reward")
    looks_like_models(tmp_path / "second" / "runs" / "loop")
    judge = {"type": "reward_model", "path": str(tmp_path / "second" / "runs" / "loop" / "reward" / "model")}
    actual = independence(judge, old / "ppo")
    assert not actual.shared
    assert any("embedded" in note for note in actual.notes)
    check_independent(actual, allowed=False)


def test_compare_refuses_before_it_samples(models, old, tmp_path):
    config = CompareConfig.of(
        {
            "a": str(old / "ppo"), "b": str(old / "sft"), "prompts": str(models / "prompts.jsonl"),
            "judge": {"type": "reward_model", "path": str(old / "reward" / "model")},
        }
    )  # fmt: skip
    with pytest.raises(ConfigError, match="allow_shared_judge"):
        compare_models(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The command ---------------------------------------------------------------------------------------


def rlhf_compare(*args):
    from typer.testing import CliRunner

    from rlhf import cli

    return CliRunner().invoke(cli.app, ["compare", *map(str, args)])


def test_the_command_prints_one_verdict_and_takes_a_judge_as_a_file_or_as_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = answers(tmp_path / "a.jsonl", [(f"p{i}", "aaaa", {}) for i in range(30)])
    b = answers(tmp_path / "b.jsonl", [(f"p{i}", "b", {}) for i in range(30)])
    (tmp_path / "judge.yaml").write_text("type: function\nfunction: longer\n")
    by_file = rlhf_compare(a, b, "--judge", "judge.yaml", "-o", "out")
    assert by_file.exit_code == 0, by_file.output
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (record["verdict"], record["win_rate"]["value"]) == ("better", 1.0)
    by_settings = rlhf_compare(a, b, "judge.type=function", "judge.function=shorter", "--json")
    document = json.loads(by_settings.output)
    assert document["verdict"] == "worse"
    assert "per_prompt" not in document
    changed = rlhf_compare(a, b, "--judge", "judge.yaml", "judge.tie_band=5", "--json")
    assert json.loads(changed.output)["verdict"] == "not yet known"
    assert len(list((tmp_path / "runs" / "compare").iterdir())) == 1


def test_the_command_says_what_a_judge_cost_and_how_often_the_longer_one_won(tmp_path):
    a = answers(tmp_path / "a.jsonl", [(f"p{i}", "aa", {}) for i in range(10)])
    b = answers(tmp_path / "b.jsonl", [(f"p{i}", "bbbb", {}) for i in range(10)])
    with serving(judging(longer), path="/v1") as service:
        judge = ["judge.type=endpoint", f"judge.url={service.url}", "judge.model=m"]
        result = rlhf_compare(
            a, b, *judge, "judge.input_price=1000", "judge.output_price=10000", "-o", tmp_path / "out"
        )
    assert "4.0000 dollars" in result.output, "20 answers at 100 / 1,000 + 10 / 100"
    assert "The longer completion won: 100.0" in result.output


def test_without_a_judge_the_command_says_what_one_may_be():
    assert "judge.yaml" in str(rlhf_compare("a", "b").exception)


@pytest.mark.parametrize(
    ("args", "key"), [((), "judge"), (("--judge", "longer", "sampels=3"), "sampels"), (("judge.type=x",), "type")]
)
def test_wrong_settings_of_the_command_name_their_key(tmp_path, args, key):
    result = rlhf_compare("a", "b", *args)
    assert isinstance(result.exception, ConfigError)
    assert key in str(result.exception)
