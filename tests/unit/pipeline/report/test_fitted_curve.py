"""The fitted curve of the judge over KL on the page."""

from __future__ import annotations

import json

from rlhf.pipeline.report import write_report
from tests.fixtures.run_folder import write_run


def test_the_judge_over_kl_has_a_fitted_curve_and_its_peak_where_one_was_reached(tmp_path):
    hacked = write_run(tmp_path / "hacked", kind="hacked", num_prompts=120)
    document = json.loads((hacked / "evaluation" / "evaluation.json").read_text())
    assert document["gold_over_kl"]["max_kl"] > 0
    text = write_report(hacked).read_text(encoding="utf-8")
    assert "fitted to the judge" in text
    document["gold_over_kl"] = "damaged"  # an older or foreign file
    (hacked / "evaluation" / "evaluation.json").write_text(json.dumps(document))
    assert "fitted to the judge" not in write_report(hacked).read_text(encoding="utf-8")
