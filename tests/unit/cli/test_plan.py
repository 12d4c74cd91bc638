"""`rlhf plan` and `--profile` as a user meets them."""

from __future__ import annotations

import json

import pytest

RECIPE = """\
name: mine
output_dir: {output}
seed: 1
threads: 1
stages:
  sft: {{kind: sft, model: embedded, data: {data}, learning_rate: 1e-3, batch_size: 2, max_steps: 6}}
"""


@pytest.fixture
def recipe(tmp_path):
    rows = [{"prompt": f"Question: {n}?\nAnswer:", "completion": " Yes."} for n in range(8)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(output=tmp_path / "runs", data=data), encoding="utf-8")
    return path


def test_a_plan_says_what_a_stage_will_take_and_what_to_do(call, recipe, tmp_path):
    code, out, err = call("plan", recipe, "--gpu", "h100")
    assert (code, err) == (0, "")
    assert out.startswith("H100: 79.1 GiB, 989,000 GFLOP/s bfloat16, 989,000 GFLOP/s float16, 66,900 GFLOP/s float32")
    for words in (
        "sft (sft): 769,280 weights",
        "weights 2.9 MiB",
        "6 steps",
        "recommended  single",
        "nothing was measured",
    ):
        assert words in out
    assert not (tmp_path / "runs").exists()  # a plan leaves nothing behind


def test_machines_get_json(call, recipe):
    code, out, _ = call("plan", recipe, "--gpu", "L4", "--stage", "sft", "--json")
    assert code == 0
    [stage] = json.loads(out)["stages"]
    assert stage["memory_bytes"] == sum(stage["memory"].values())
    assert stage["memory"]["weights"] == 4 * stage["num_parameters"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--gpu", "h10"], 2, "No GPU is called 'h10'. Did you mean"),
        (["--stage", "ppo"], 2, "'ppo' is not a training stage of mine; these are: sft."),
        (["stages.sft.model=./absent"], 4, "There is no model folder ./absent."),
        (["stages.sft={kind: world}"], 2, "mine has no stage that trains, so there is nothing to plan"),
    ],
)
def test_bad_input_is_one_error(call, recipe, words, code, message):
    actual, out, err = call("plan", recipe, *words)
    assert (actual, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_plan_without_the_assets_says_so_before_it_measures_anything(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_ASSETS", "assets")
    monkeypatch.setattr("rlhf.scale.plan.plan_recipe", lambda *args, **how: pytest.fail("seconds went into planning"))
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "name: mine\nstages:\n  sft: {kind: sft, model: '${RLHF_ASSETS}/m', data: '${RLHF_ASSETS}/rows.jsonl'}\n"
    )
    code, out, err = call("plan", path)
    assert (code, out) == (3, "")
    assert "RLHF_ASSETS is assets, which is not a folder: stages.sft.data, stages.sft.model need files below it." in err
    assert "export RLHF_ASSETS=" in err


def test_a_plan_asks_for_no_assets_that_it_does_not_read(call, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_ASSETS", str(tmp_path / "absent"))
    other = "stages.late={kind: sft, model: embedded, data: '${RLHF_ASSETS}/rows.jsonl'}"
    assert call("plan", recipe, other, "--gpu", "L4", "--stage", "sft")[0] == 0


def test_a_profile_is_printed_written_and_shown_and_changes_no_result(call, recipe, tmp_path):
    code, out, _ = call("run", recipe, "--profile")
    assert code == 0
    assert "processor s" in out
    assert "backward" in out
    folder = tmp_path / "runs" / "mine"
    profile = json.loads((folder / "sft" / "profile.json").read_text())
    assert profile["activities"]["backward"]["count"] == profile["steps"]
    assert (folder / "sft" / "profile_trace.json.gz").stat().st_size > 1000
    assert "Where the time went" in (folder / "report.html").read_text()
    with_profile = json.loads((folder / "sft" / "artifact.json").read_text())
    assert call("run", recipe, "name=other")[0] == 0
    without = json.loads((folder.parent / "other" / "sft" / "artifact.json").read_text())
    assert with_profile["files"] == without["files"]
    assert with_profile["key"] == without["key"]
    assert "Where the time went" not in (folder.parent / "other" / "report.html").read_text()


def test_where_everything_is_kept_nothing_is_measured_and_that_is_said(call, recipe):
    assert call("run", recipe, "--quiet")[0] == 0
    code, out, _ = call("run", recipe, "--profile")
    assert code == 0
    assert "Nothing was trained, so nothing was measured; --force or --from STAGE reruns it." in out
