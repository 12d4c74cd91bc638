"""`rlhf run` with its options, `rlhf runs` and `rlhf lineage`, as a user types them."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import yaml

from rlhf.errors import DataError, ModelError, RunBusyError
from rlhf.files import write_json
from rlhf.pipeline.archive import previous_of
from rlhf.pipeline.lock import locked
from tests.fixtures.cheap_stages import install, loop_tree


@pytest.fixture
def done(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return install(monkeypatch)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(yaml.safe_dump(loop_tree(tmp_path), sort_keys=False), encoding="utf-8")
    return path


def test_a_dry_run_says_what_a_run_would_do_and_does_nothing(call, done, recipe, tmp_path):
    code, out, _ = call("run", recipe, "--dry-run")
    assert code == 0
    assert [line.split()[1:3] for line in out.splitlines()[1:] if not line.startswith("! ")] == [
        [name, "new"] for name in ("world", "sft", "pairs", "reward", "ppo", "alone", "evaluation")
    ]
    assert not (tmp_path / "runs").exists()
    call("run", recipe)
    done.clear()
    _, out, _ = call("run", recipe, "stages.reward.epochs=4", "--dry-run")
    lines = [line.partition("  ")[2] for line in out.splitlines()]
    assert "reward       done again: epochs was 1.0, is 4.0" in lines
    assert "ppo          done again: stage reward is done again" in lines
    assert "alone        kept" in lines
    assert done == []


def test_options_reach_the_run(call, done, recipe):
    call("run", recipe, "--until", "pairs")
    assert done == ["world", "sft", "pairs"]
    call("run", recipe, "--from", "sft", "--until", "pairs")
    assert done == ["world", "sft", "pairs", "sft", "pairs"]
    call("run", recipe, "--until", "world", "--force")
    assert done[-1:] == ["world"]
    code, _, err = call("run", recipe, "--from", "rewrd")
    assert code == 2
    assert err.startswith("error: No stage of this recipe is called 'rewrd'. Did you mean 'reward'")


def test_a_second_run_says_that_there_is_nothing_to_do(call, done, recipe):
    call("run", recipe)
    _, out, _ = call("run", recipe)
    assert "Nothing to do: all 7 stages are as the recipe asks." in out
    assert "report.html" in out


def test_runs_are_listed_shown_and_compared(call, done, recipe, tmp_path):
    runs = ("--runs", tmp_path / "runs")
    call("run", recipe)
    call("run", recipe, "name=other", "stages.sft.epochs=9", "--until", "sft")
    code, out, _ = call("runs", "list", *runs)
    assert code == 0
    assert "loop" in out
    assert "7/7" in out
    assert "2/7" in out
    assert [run["name"] for run in json.loads(call("runs", "list", *runs, "--json")[1])] == ["loop", "other"]
    _, out, _ = call("runs", "show", "other", *runs)
    assert "finished" in out
    assert "not begun" in out
    assert json.loads(call("runs", "show", "other", *runs, "--json")[1])["num_finished"] == 2
    _, out, _ = call("runs", "compare", "loop", "other", *runs)
    assert "stages.sft.epochs" in out
    assert "9.0" in out
    assert json.loads(call("runs", "compare", "loop", "other", *runs, "--json")[1])["runs"] == ["loop", "other"]
    code, _, err = call("runs", "show", "othr", *runs)
    assert code == 2
    assert "Did you mean 'other'?" in err


def test_pruning_wants_a_yes(call, done, recipe, tmp_path):
    runs = ("--runs", tmp_path / "runs")
    assert call("runs", "prune", *runs)[0] == 2
    call("run", recipe)
    assert call("runs", "prune", *runs)[1] == "Nothing to delete.\n"
    call("run", recipe, "stages.alone.epochs=9")
    [aside] = previous_of(tmp_path / "runs" / "loop")
    for words in ((), ("--dry-run",), ("--dry-run", "--yes")):
        code, out, _ = call("runs", "prune", *runs, *words)
        assert code == 0
        assert str(aside.folder) in out
        assert "would be freed; --yes deletes it" in out
    assert aside.folder.exists()
    _, out, _ = call("runs", "prune", "loop", *runs, "--yes")
    assert "Deleted 1, " in out
    assert " freed." in out
    assert not aside.folder.exists()
    code, _, err = call("runs", "prune", *runs, "--whole", "--yes")
    assert code == 2
    assert "wants their names" in err
    call("runs", "prune", "loop", *runs, "--whole", "--yes")
    assert not (tmp_path / "runs" / "loop").exists()


def test_a_weight_file_is_traced_and_a_changed_one_sets_the_exit_code(call, done, recipe, tmp_path):
    call("run", recipe)
    weights = tmp_path / "runs" / "loop" / "ppo" / "model" / "model.safetensors"
    code, out, _ = call("lineage", weights)
    assert code == 0
    assert str(tmp_path / "sft.jsonl") in out
    assert json.loads(call("lineage", weights, "--json")[1])["what"] == "file"
    weights.write_text("other bits")
    code, out, _ = call("lineage", weights)
    assert code == 1
    assert "CHANGED since" in out.splitlines()[0]
    code, _, err = call("lineage", tmp_path / "absent")
    assert code == 2
    assert err.startswith("error: There is no file or folder")


def test_a_report_is_written_for_a_run_by_name_and_never_into_anything_else(call, done, recipe, tmp_path, monkeypatch):
    call("run", recipe)
    monkeypatch.chdir(tmp_path)
    for words in (("loop",), (tmp_path / "runs" / "loop",), ("loop", "--runs", tmp_path / "runs")):
        code, out, _ = call("report", *words)
        assert code == 0
        assert out.strip().endswith("runs/loop/report.html")
    code, _, err = call("report", "lop")
    assert code == 2
    assert "There is no run 'lop' in runs. Did you mean 'loop'?" in err
    assert call("report", tmp_path / "runs" / "nothere")[0] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"loop.yaml", "sft.jsonl", "runs"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"loop"}


def test_generate_from_a_run_folder_names_its_models_newest_policy_first(call, tmp_path):
    for stage, kind, day in (("sft", "sft", 1), ("ppo", "ppo", 2), ("reward", "reward", 3)):
        write_json(tmp_path / "runs" / "mine" / stage / "model" / "config.json", {})
        write_json(tmp_path / "runs" / "mine" / stage / "artifact.json", {"kind": kind, "finished": f"2026-01-0{day}"})
    run = tmp_path / "runs" / "mine"
    code, _, err = call("generate", run)
    assert code == ModelError.exit_code
    assert "is the folder of a run and no model" in err
    assert [err.index(f"{run / name}/model ({name})") for name in ("ppo", "sft", "reward")] == sorted(
        err.index(f"{run / name}/model ({name})") for name in ("ppo", "sft", "reward")
    )


def test_a_failed_run_says_where_and_why_in_the_list(call, monkeypatch, recipe, tmp_path):
    def breaks(stage, at):
        raise DataError("Row 3 of pairs.jsonl\nis empty.")

    monkeypatch.setenv("COLUMNS", "200")
    install(monkeypatch, reward=breaks)
    assert call("run", recipe)[0] == DataError.exit_code
    runs = ("--runs", tmp_path / "runs")
    assert "failed in reward: Row 3 of pairs.jsonl is empty." in call("runs", "list", *runs)[1]
    assert "Row 3 of pairs.jsonl is empty." in call("runs", "show", "loop", *runs)[1]
    install(monkeypatch)
    call("run", recipe)
    assert "failed" not in call("runs", "list", *runs)[1]


def test_a_long_error_takes_one_line_of_the_list(call, monkeypatch, recipe, tmp_path):
    def breaks(stage, at):
        raise DataError("A word. " * 100)

    install(monkeypatch, reward=breaks)
    call("run", recipe)
    monkeypatch.setenv("COLUMNS", "100")
    runs = ("--runs", tmp_path / "runs")
    head, line = call("runs", "list", *runs)[1].splitlines()
    assert head.split()[0] == "run"
    assert line.startswith("loop  3/7")
    assert "…" in line
    _, heads, world, *_ = call("runs", "show", "loop", *runs)[1].splitlines()
    assert heads.split() == ["stage", "kind", "status", "key", "time", "outcome"]
    assert world.index("finished") == heads.index("status")


def test_other_data_under_the_same_name_shows_in_a_comparison(call, done, recipe, tmp_path):
    call("run", recipe, "--until", "sft")
    (tmp_path / "sft.jsonl").write_text('{"prompt": "a", "completion": "other"}\n')
    call("run", recipe, "--until", "sft", f"output_dir={tmp_path / 'b'}")
    _, out, _ = call("runs", "compare", tmp_path / "runs" / "loop", tmp_path / "b" / "loop")
    [line] = [line for line in out.splitlines() if line.startswith("stages.sft.data")]
    assert "other content" in line


def test_samples_depend_on_the_printed_id_and_not_on_the_file(call, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "What is"}\n{"prompt": "Who are"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "Who are"}\n{"prompt": "What is"}\n')
    options = ("--max-new-tokens", 4, "--samples", 2, "--device", "cpu")
    one, two = (
        call("generate", "embedded", tmp_path / name, *options)[1].splitlines() for name in ("a.jsonl", "b.jsonl")
    )
    assert sorted(one) == sorted(two)
    assert len(set(one)) == 4


def test_prompts_that_are_typed_are_said_to_skip_the_chat_template(call, tmp_path, monkeypatch):
    (tmp_path / "typed.jsonl").write_text('{"prompt": "What is"}\n')
    options = ("--max-new-tokens", 1, "--device", "cpu")
    assert "chat template" not in call("generate", "embedded", tmp_path / "typed.jsonl", *options)[2]
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is\n"))
    code, out, err = call("generate", "embedded", *options)
    assert (code, json.loads(out)["prompt"]) == (0, "What is")
    assert "chat template" in err


def test_a_comparison_begins_with_the_results_and_keeps_the_last_step_for_all(call, done, recipe, tmp_path):
    runs = ("--runs", tmp_path / "runs")
    call("run", recipe)
    call("run", recipe, "name=other", "stages.sft.epochs=9")
    for name, rate in (("loop", 0.5), ("other", 0.75)):
        path = tmp_path / "runs" / name / "summary.json"
        actual = json.loads(path.read_text()) | {"win_rate": rate, "gold_before": rate}
        actual["stages"]["reward"]["metrics"] |= {"eval/accuracy": rate, "learning_rate": rate}
        path.write_text(json.dumps(actual))
    _, out, _ = call("runs", "compare", "loop", "other", *runs)
    assert out.index("win rate") < out.index("stages.sft.epochs")
    assert "judge's mean score before" in out
    assert "reward: eval/accuracy" in out
    assert "learning_rate" not in out
    assert "more numbers with --all." in out
    assert "reward: learning_rate" in call("runs", "compare", "loop", "other", *runs, "--all")[1]
    assert "judge's mean score before = 0.5" in call("runs", "show", "loop", *runs)[1]


def test_pruning_a_run_in_use_by_name_is_an_error(call, done, recipe, tmp_path):
    call("run", recipe)
    runs = ("--runs", tmp_path / "runs")
    with locked(tmp_path / "runs" / "loop"):
        code, out, err = call("runs", "prune", "loop", *runs, "--whole", "--yes")
        assert code == RunBusyError.exit_code
        assert "loop: in use by a live process; left alone" in out
        assert "Nothing to delete" not in out
        assert err.startswith("error: Nothing was deleted. Prune loop when no process works there any more.")
        assert call("runs", "prune", *runs)[0] == 0, "who prunes whatever can be pruned gets no error"


def test_one_stage_is_no_stages(call, done, tmp_path):
    (tmp_path / "sft.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    _, out, _ = call("sft", "model=embedded", f"data={tmp_path / 'sft.jsonl'}", "-o", tmp_path / "one", "--dry-run")
    assert "1 stage into" in out


HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "datasets",
    "scipy",
    "pandas",
    "huggingface_hub",
    "asyncio",
)
SETTINGS = ("rlhf.config.base", "rlhf.config.stage_inputs")
"""Classes of settings, of which a record needs none."""
LOOK = f"""
import json, sys
from rlhf.cli import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["rlhf", *words]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    found.append([words, code or 0, sorted({ {*HEAVY, *SETTINGS}!r} & sys.modules.keys())])
print("", json.dumps(found), sep="\\n")
"""


def test_who_only_looks_at_a_run_waits_for_no_torch(call, done, recipe, tmp_path):
    """Each of these reads some files of JSON; an import of torch and transformers is ten times that."""
    call("run", recipe)
    folder, runs, gone = tmp_path / "runs" / "loop", ["--runs", str(tmp_path / "runs")], str(tmp_path / "no-model")
    looks = [
        ["runs", "list", *runs],
        ["runs", "show", "loop", *runs],
        ["runs", "compare", "loop", "loop", *runs],
        ["report", "loop", *runs],
        ["lineage", str(folder / "sft"), *runs],
    ]
    refused = [
        ["generate", gone],
        ["sft", f"model={gone}", f"data={recipe}", "-o", str(tmp_path / "out")],
        ["feedback", "prioritize", "--reward", gone, "--store", str(tmp_path / "store.db")],
    ]
    ran = subprocess.run([sys.executable, "-c", LOOK, json.dumps(looks + refused)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout.splitlines()[-1])
    assert [code == 0 for _, code, _ in document] == [True] * len(looks) + [False] * len(refused), ran.stderr
    assert ran.stderr.count("no model folder") == len(refused)
    for words, code, heavy in document:
        allowed = set(SETTINGS) if code else set()
        assert not set(heavy) - allowed, f"rlhf {' '.join(words)} loads {heavy}"
