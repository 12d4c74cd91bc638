"""What `rlhf evaluate` prints of an evaluation.json."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.cli.evaluate import _default_metrics, _show
from rlhf.errors import ConfigError
from rlhf.files import write_json


def estimate(value, low=None, high=None, **more):
    return {"value": value, "low": low, "high": high, "n": 3, **more}


def shown(capsys, monkeypatch, changes, **part):
    monkeypatch.setenv("COLUMNS", "50")
    _show({"metrics": {"settings": {"baseline": "old"}, "changes": changes, **part}})
    return "".join(capsys.readouterr()).replace("\u202f", " ").replace("\u2212", "-")


def test_numbers_are_whole_in_a_narrow_terminal(capsys, monkeypatch):
    change = {
        "before": estimate(0.641), "after": estimate(0.783), "gain": estimate(0.143, -0.0987, 0.187), "unit": "share",
    }  # fmt: skip
    groups = {"distinct_n": {"a long name of a group of prompts": {
        "value": estimate(0.5, 0.25, 0.75), "difference": estimate(0.125), "p_value": 0.1234, "p_corrected": 0.2468,
    }}}  # fmt: skip
    text = shown(capsys, monkeypatch, {"distinct_n": change}, groups=groups)
    assert "…" not in text
    for number in ("64.1 %", "78.3 %", "+14.3 pp", "-9.9 pp to +18.7 pp", "0.25 to 0.75", "0.247"):
        assert number in text


def test_beside_a_change_without_an_interval_stands_none(capsys, monkeypatch):
    change = {"before": estimate(0.5), "after": estimate(0.9, 0.8123, 0.95), "gain": estimate(0.4), "unit": "share"}
    assert "81.2" not in shown(capsys, monkeypatch, {"rouge": change}), "it would be read as that of the change"
    nothing = estimate(None, reason="it compares the two models already")
    win_rate = {"before": nothing, "after": estimate(0.9, 0.8123, 0.95), "gain": nothing, "unit": "share"}
    assert "81.2" in shown(capsys, monkeypatch, {"win_rate": win_rate})


def test_what_has_no_groups_says_why(capsys, monkeypatch):
    assert "perplexity, no groups: its texts" in shown(
        capsys, monkeypatch, {}, ungrouped={"perplexity": "its texts have no such column"}
    )


def test_without_prompts_only_what_reads_texts_and_pairs_is_measured():
    assert _default_metrics({"policy": "p", "texts": "t"}) == ["perplexity", "bits_per_byte"]
    assert "length" in _default_metrics({"policy": "p", "texts": "t", "prompts": "q"})
    assert "length" in _default_metrics({"policy": "p"}), "the key that is missing is prompts"


def test_every_model_has_a_folder_of_its_own(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = []

    def run(recipe, **_):
        written.append(Path(recipe.output_dir) / recipe.name)
        write_json(written[-1] / "evaluate" / "evaluation.json", {"metrics": {}})

    monkeypatch.setattr("rlhf.cli.evaluate.run_recipe", run)
    for model in ("runs/mine/dpo/model", "runs/mine/sft/model", "embedded"):
        assert call("evaluate", model, "prompts=p.jsonl")[0] == 0
    assert call("evaluate", "embedded", "prompts=p.jsonl", "-o", "out/mine")[0] == 0
    assert len(set(written)) == 4
    assert [folder.parent for folder in written] == [Path("runs")] * 3 + [Path("out")]


def test_what_is_wrong_is_named_as_on_the_command_line(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for settings, expected in (([], "prompts="), (["prompts=p.jsonl", "limt=3"], "limt: unknown key")):
        code, _, err = call("evaluate", "embedded", *settings)
        assert (code, expected in err, "stages" in err) == (ConfigError.exit_code, True, False), err


def test_a_log_for_inspect_is_copied_where_its_viewer_looks(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Where is Rome?"}) + "\n")
    words = ["evaluate", "embedded", f"prompts={prompts}", "metrics=[length]", "sampling.max_new_tokens=2"]
    output = tmp_path / "runs" / "one"
    result = CliRunner().invoke(
        app, [*words, "-o", str(output), "--inspect-log", str(tmp_path / "logs"), "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    (copied,) = (tmp_path / "logs").glob("*.json")
    log = json.loads(copied.read_text())
    assert log["eval"]["task"] == "one/evaluate"
    assert [sample["input"] for sample in log["samples"]] == ["Where is Rome?"]
    both = CliRunner().invoke(app, [*words, "-o", str(output), "--inspect-log", "x.json", "inspect_log=false"])
    assert isinstance(both.exception, ConfigError)
