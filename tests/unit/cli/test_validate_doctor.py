"""`rlhf validate` and `rlhf doctor` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlhf.pipeline.doctor import findings

RECIPE = """\
name: mine
output_dir: {output}
stages:
  sft: {{kind: sft, model: embedded, data: {data}, learning_rate: 1e-3, batch_size: 2}}
"""


@pytest.fixture
def recipe(tmp_path):
    rows = [{"prompt": f"Question: {n}?\nAnswer:", "completion": " Yes."} for n in range(6)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(output=tmp_path / "runs", data=data), encoding="utf-8")
    return path


def test_a_good_recipe_exits_with_0(call, recipe):
    code, out, err = call("validate", recipe)
    assert (code, err) == (0, "")
    assert out == f"sft: 6 rows, 9 steps, 3 passes\n{recipe}: nothing wrong found (1 stage)\n"


def test_a_mistake_exits_as_the_run_would(call, recipe):
    code, out, _ = call("validate", recipe, "stages.sft.data=rows.json", "--quick")
    assert code == 3
    assert out.splitlines()[:2] == ["sft:", "  error    data: There is no file or folder rows.json."]
    assert call("validate", recipe, "stages.sft.model=./absent", "--quick")[0] == 4
    assert call("validate", recipe, "stages.sft.dtaa=x", "--quick")[0] == 2


def test_machines_get_json(call, recipe):
    code, out, _ = call("validate", recipe, "stages.sft.eval_every=2", "--quick", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["errors"], document["warnings"], document["problems"][0]["key"]) == (0, 1, "eval_every")


def test_what_is_no_recipe_is_one_clear_line(call, tmp_path):
    code, out, err = call("validate", tmp_path / "absent.yaml")
    assert (code, out) == (2, "")
    assert "There is no file" in err
    (tmp_path / "tabs.yaml").write_text("name: x\nstages:\n\tsft: {}\n", encoding="utf-8")
    code, _, err = call("validate", tmp_path / "tabs.yaml")
    assert code == 2
    assert "line 3" in err


def test_the_doctor_says_what_it_found_and_exits_by_it(call, tmp_path, monkeypatch):
    code, out, _ = call("doctor", tmp_path, "--quick", "--json")
    assert code == 0
    assert json.loads(out)["safe"] is True
    monkeypatch.setattr(findings, "LEAST_DISK", 1 << 60)
    code, out, _ = call("doctor", tmp_path, "--quick")
    assert code == 1
    assert any(line.startswith("unsafe  disk here") for line in out.splitlines())


VALIDATE = """
import sys
from rlhf.cli import main
from rlhf.pipeline.doctor import probes
probes.may_have_gpu = lambda: False
sys.argv = ["rlhf", "validate", sys.argv[1]]
try:
    main()
finally:
    print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


def test_rows_that_are_still_to_be_made_need_no_torch_to_validate(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: mine\n"
        "stages:\n"
        "  world: {kind: world}\n"
        "  sft: {kind: sft, model: embedded, data: 'stage:world/sft.jsonl', learning_rate: 1e-3}\n",
        encoding="utf-8",
    )
    ran = subprocess.run([sys.executable, "-c", VALIDATE, str(recipe)], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "[]", ran.stderr
