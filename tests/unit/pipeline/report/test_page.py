"""The report: whole from a whole run folder, honest from a broken one, harmless whatever a completion says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest
import yaml
from markupsafe import Markup

from rlhf.evaluation.intervals import mean_interval
from rlhf.evaluation.records import KL
from rlhf.formatting import percentage
from rlhf.pipeline.lock import locked
from rlhf.pipeline.report import plots, write_report
from rlhf.pipeline.report.page import render
from rlhf.pipeline.report.plots import Panel
from rlhf.pipeline.report.run_data import StageRecord, read_run, sorted_points
from rlhf.pipeline.report.views import stage_curves
from rlhf.pipeline.report.words import codes, headline
from rlhf.training.log import TrainingLogger
from tests.fixtures.run_folder import AFTER, made_up_evaluation, write_run

VOID = {"meta", "link", "br", "hr", "img", "input"}
ATTACK = '<script>alert("x")</script><img src=x onerror=alert(1)>{{ 7 * 7 }} &amp; "quoted"'


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "healthy", num_prompts=120)


@pytest.fixture(scope="module")
def hacked(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "hacked", kind="hacked", num_prompts=120)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Healthy, without training curves: fast to draw."""
    return write_run(tmp_path_factory.mktemp("runs") / "plain", num_prompts=120, curves=False)


def report_of(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(healthy):
    return report_of(healthy)


@pytest.fixture(scope="module")
def hacked_page(hacked):
    return report_of(hacked)


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run"))


class Page(HTMLParser):
    """Fails on tags that do not match; collects text, attributes and headings."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> in the wrong place"

    def handle_data(self, data):
        self.text += data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", Page(html).text)


def test_the_template_asks_for_nothing_that_a_whole_run_does_not_have(healthy):
    render(read_run(healthy), strict=True)


def test_the_page_is_well_formed_and_has_one_title_and_one_main(page):
    actual = Page(page)
    assert len(actual.of("title")) == len(actual.of("main")) == len(actual.of("h1")) == 1
    ids = [attributes["id"] for _, attributes in actual.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id appears twice"
    targets = [attributes["href"] for attributes in actual.of("a")]
    assert {target.removeprefix("#") for target in targets} <= set(ids)


@pytest.mark.parametrize("which", ["page", "hacked_page"])
def test_nothing_is_fetched_and_nothing_runs(which, request):
    html = request.getfixturevalue(which)
    actual = Page(html)
    assert not re.search(r"https?:|//[a-z]|url\((?!#)|@import|javascript:", html)
    assert {tag for tag, _ in actual.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form"})
    assert not [name for _, attributes in actual.tags for name in attributes if name.startswith("on")]
    assert any("default-src 'none'" in (a.get("content") or "") for a in actual.of("meta"))


def test_the_size_stays_that_of_a_mail_attachment(page):
    assert len(page.encode()) < 600_000


def test_every_plot_says_in_words_what_it_shows(page):
    drawings = Page(page).of("svg")
    assert len(drawings) > 15
    for plot in drawings:
        assert plot["role"] == "img"
        assert len(plot["aria-label"] or "") > 20


def test_plots_take_the_colors_of_the_page(page):
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "var(--c1)" in drawings
    assert not re.search(r"#[0-9a-f]{6}", drawings), "a fixed color would vanish in dark mode"


def test_the_verdict_stands_first_in_words_with_its_interval(page, healthy):
    rate = json.loads((healthy / "evaluation" / "evaluation.json").read_text())["win_rate"]
    text = text_of(page)
    assert "The model became better" in text
    for value in (rate["rate"], rate["low"], rate["high"]):
        assert f"{100 * value:.1f}\u202f%".replace("\u202f", " ") in text.replace("\u202f", " ")
    assert f"judged better {rate['wins']} times" in text
    assert text.index("The model became better") < text.index("What changed")


def test_a_gamed_reward_is_called_so_and_alarms_are_shown(hacked_page):
    text = text_of(hacked_page)
    assert "The reward was gamed" in text
    assert "The model became better" not in text
    assert "KL to the reference is 9.4 nats per sequence and rising" in text


def test_all_parts_of_the_run_are_on_the_page(page, healthy):
    text = text_of(page)
    for stage in ("world", "sft", "pairs", "reward", "ppo", "evaluation"):
        assert stage in text
    manifest = json.loads((healthy / "manifest.json").read_text())
    for artifact in manifest["artifacts"].values():
        assert artifact["key"] in text
        assert all(parent in text for parent in artifact["parents"].values())
    assert (healthy / "recipe.yaml").read_text().splitlines()[0] in text
    assert "2.13.0+cpu" in text
    assert "AMD EPYC 7B13" in text
    assert page.count('class="sample"') == 12 + 4
    assert "rollout/logprob_gap" in text, "a metric without a panel of its own is still listed"
    assert "Missing:" not in text


def test_what_a_completion_says_can_not_become_part_of_the_page(plain, tmp_path):
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    sample = document["samples"][0]
    sample["prompt"] = sample["before"]["text"] = sample["prompt_id"] = ATTACK
    sample["after"]["text"] = "</article></main><h1>mine</h1>"
    document["changes"][f"gold/{ATTACK}"] = document["changes"]["gold"]
    document["hacking"]["sentence"] = document["settings"]["judge"] = ATTACK
    path.write_text(json.dumps(document))
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1, "stage": ATTACK, "event": "alarm", "message": ATTACK}) + "\n")
        file.write(json.dumps({"stage": "ppo", "event": "metrics", "step": 1, "metrics": {ATTACK: 1.0}}) + "\n")
    html = report_of(folder)
    actual = Page(html)
    assert {tag for tag, _ in actual.tags}.isdisjoint({"script", "img"})
    assert len(actual.of("h1")) == 1
    assert ATTACK in actual.text
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("recipe.yaml", "recipe.yaml: there is no such file"),
        ("manifest.json", "lineage: there is no such file"),
        ("summary.json", "summary.json: there is no such file"),
        ("events.jsonl", "events.jsonl: there is no such file"),
        ("evaluation/evaluation.json", "no stage of this run wrote an evaluation"),
    ],
)
def test_a_missing_file_is_said_to_be_missing(plain, tmp_path, file, says):
    folder = copied(plain, tmp_path)
    (folder / file).unlink()
    text = text_of(report_of(folder))
    assert "Missing:" in text
    assert says in text


@pytest.mark.parametrize("file", ["manifest.json", "summary.json", "recipe.yaml", "evaluation/evaluation.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"", b"\xff\xfe\x00"])
def test_a_damaged_file_does_not_take_the_report_with_it(plain, tmp_path, file, content):
    folder = copied(plain, tmp_path)
    (folder / file).write_bytes(content)
    html = report_of(folder)
    Page(html)
    assert "The model became better" in html or file.startswith("evaluation")


@pytest.mark.parametrize("part", ["win_rate", "changes", "kl", "reward_model", "curve", "hacking", "samples", "proxy"])
@pytest.mark.parametrize("instead", [3, "x", [1], {"x": [None]}])
def test_a_part_of_another_shape_costs_its_own_section_and_no_more(plain, tmp_path, monkeypatch, caplog, part, instead):
    for name in ("line_panel", "calibration_panel", "sureness_panel"):
        monkeypatch.setattr(f"rlhf.pipeline.report.views.{name}", lambda *a, **k: Panel("", Markup("<svg></svg>")))
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: instead}))
    html = report_of(folder)
    Page(html)
    broken = set(re.findall(r'<section id="(\w+)">\s*<h2>[^<]*</h2>\s*<p class="missing">.*?can&#39;t be shown', html))
    assert broken.isdisjoint({"stages", "curves", "alarms", "lineage", "recipe"})
    assert broken == {re.search(r"section '(\w+)'", record.getMessage())[1] for record in caplog.records}
    assert {"sft", "ppo"} <= set(re.findall(r'<th scope="row">(\w+)', html))


def test_an_empty_folder_gives_a_report_that_says_so(tmp_path):
    text = text_of(report_of(tmp_path))
    assert "Whether this run improved the model was not measured" in text
    assert text.count("Missing:") >= 8


def test_a_run_without_an_evaluation_says_what_it_did(tmp_path):
    (tmp_path / "recipe.yaml").write_text("name: judge\nstages: {judge: {kind: reward}}\n")
    log = TrainingLogger(tmp_path, stage="judge")
    log.metrics(2, {"eval/accuracy": 0.7}, event="eval")
    log.metrics(4, {"eval/accuracy": 0.8125}, event="eval")
    stage = {"kind": "reward", "seconds": 2.0, "headline": "300 pairs, 4 steps, held-out accuracy 0.812 [0.760, 0.860]"}
    (tmp_path / "summary.json").write_text(json.dumps({"stages": {"judge": stage}}))
    text = text_of(report_of(tmp_path))
    assert "Done, without a comparison of policies" in text
    assert "judge: 300 pairs, 4 steps, held-out accuracy 0.812 [0.760, 0.860]." in text
    assert re.search(r"Reward model's accuracy\s*81\.2\s%\s*on held-out rows, at the end of judge", text)
    assert re.search(r"Right in 81\.2\s% of its held-out rows when the training of judge ended", text)
    assert "was not measured" not in text


def test_a_run_that_asks_for_no_comparison_misses_none_and_says_so_in_one_sentence(tmp_path):
    (tmp_path / "recipe.yaml").write_text("name: sft\nstages: {sft: {kind: sft}}\n")
    stage = {"kind": "sft", "seconds": 2.0, "headline": "300 rows, 4 steps"}
    (tmp_path / "summary.json").write_text(json.dumps({"stages": {"sft": stage}}))
    TrainingLogger(tmp_path, stage="sft").metrics(1, {"loss/train": 2.0})
    (tmp_path / "manifest.json").write_text(json.dumps({"artifacts": {}}))
    html = report_of(tmp_path)
    text = text_of(html)
    assert text.count("so win rate, judge's score and distance were not measured") == 1
    assert "a stage of kind <code>evaluate</code>" in html
    for tile in (
        "Win rate over the baseline",
        "Judge's score",
        "Distance from the baseline",
        "Reward model's accuracy",
    ):
        assert tile not in text
    missing = text.count("Missing:")
    for section in ("changes", "samples", "hacking", "reward"):
        assert f'id="{section}"' not in html
        assert f'href="#{section}"' not in html
    (tmp_path / "recipe.yaml").write_text("name: sft\nstages: {sft: {kind: sft}, end: {kind: evaluate}}\n")
    text = text_of(report_of(tmp_path))
    assert re.search(r"Win rate over the baseline\s*not measured", text), "it was asked for, and is not there"
    assert text.count("Missing:") == missing + 4


def test_the_comparison_is_introduced_by_a_whole_sentence(page, healthy):
    settings = json.loads((healthy / "evaluation" / "evaluation.json").read_text())["settings"]
    assert f"Answers of {settings['policy']} against those of {settings['baseline']} on 120 prompts" in text_of(page)


def test_the_table_of_times_says_that_a_sampler_beside_is_in_no_line(tmp_path):
    spent = {"cpu_seconds": 0.02, "wall_seconds": 7.1, "share": 0.02, "count": 4, "tokens_per_second": None}
    profile = {"steps": 4, "threads": 1, "activities": {"forward": spent}}
    (tmp_path / "grpo").mkdir()
    remark = "CPU seconds are not included."
    (tmp_path / "grpo" / "profile.json").write_text(json.dumps(profile))
    assert remark not in text_of(report_of(tmp_path))
    profile["activities"]["sampler wait"] = spent
    (tmp_path / "grpo" / "profile.json").write_text(json.dumps(profile))
    assert remark in text_of(report_of(tmp_path))


def test_words_in_backticks_are_set_as_code_and_nothing_else_becomes_markup():
    assert codes("A `b<c>` & <i>d</i>, `e") == "A <code>b&lt;c&gt;</code> &amp; &lt;i&gt;d&lt;/i&gt;, `e"


def test_ratios_of_the_policy_and_of_its_sampler_are_told_apart():
    curves = {
        "grpo/ratio_mean": {1: 1.0, 2: 1.1},
        "importance/ratio_mean": {1: 0.9, 2: 0.8},
        "loss/train": {1: 1.0, 2: 0.9},
    }
    panels = {panel.title: panel for panel in stage_curves(StageRecord("g1", "grpo", curves=curves)).panels}
    assert panels["Probability ratio"].legend == [("ratio, grpo", "--c1"), ("ratio, importance", "--c2")]
    assert "ratio, importance" in panels["Probability ratio"].svg
    alone = stage_curves(StageRecord("g1", "grpo", curves={"grpo/ratio_mean": curves["grpo/ratio_mean"]}))
    assert alone.panels[0].legend == []
    assert "ratio, grpo" not in alone.panels[0].svg


def test_the_accuracy_of_a_preference_stage_is_not_called_a_reward_models(tmp_path):
    (tmp_path / "recipe.yaml").write_text("name: kto\nstages: {kto: {kind: kto}}\n")
    log = TrainingLogger(tmp_path, stage="kto")
    log.metrics(2, {"eval/accuracy": 0.7}, event="eval")
    log.metrics(4, {"eval/accuracy": 0.8125}, event="eval")
    (tmp_path / "summary.json").write_text(json.dumps({"stages": {"kto": {"kind": "kto", "seconds": 2.0}}}))
    html = report_of(tmp_path)
    assert read_run(tmp_path).stages["kto"].curves["eval/accuracy"] == {2: 0.7, 4: 0.8125}
    assert "Reward model's accuracy" not in text_of(html)
    assert "share of pairs" not in html, "kto learns from single completions"
    assert "share correct" in html


def test_a_half_written_log_line_is_left_out_and_counted(plain, tmp_path):
    folder = copied(plain, tmp_path)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"time": 3, "stage": "ppo", "ev')
    assert "1 line of events.jsonl: not readable" in text_of(report_of(folder))


@pytest.mark.parametrize(
    ("rate", "title", "tone"),
    [
        ({"rate": 0.6, "low": 0.55, "high": 0.65}, "The model became better", "good"),
        ({"rate": 0.52, "low": 0.47, "high": 0.57}, "No difference could be shown", "unknown"),
        ({"rate": 0.4, "low": 0.35, "high": 0.45}, "The model became worse", "bad"),
        ({"rate": None, "low": None, "high": None}, "The win rate could not be measured", "unknown"),
    ],
)
def test_the_verdict_says_what_the_interval_allows(plain, tmp_path, rate, title, tone):
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    document["win_rate"] |= {**rate, "reason": "2 of 9 values are not finite"}
    path.write_text(json.dumps(document))
    top = headline(read_run(folder))
    assert (top.title, top.tone) == (title, tone)
    if rate["rate"] is None:
        assert "2 of 9 values are not finite" in top.sentences[0]


@pytest.mark.parametrize(
    ("verdict", "win", "title", "tone"),
    [
        ("reward_hacking", (0.55, 0.65), "Better than before, but past its best", "mixed"),
        ("reward_hacking", (0.45, 0.55), "The reward was gamed, and no difference could be shown", "bad"),
        ("reward_hacking", (0.2, 0.3), "The reward was gamed, and the model became worse", "bad"),
        ("collapse", (0.2, 0.3), "Training broke down, and the model became worse", "bad"),
        ("undecided", (0.55, 0.65), "The model became better", "good"),
    ],
)
def test_a_gamed_reward_is_never_plain_success(plain, tmp_path, verdict, win, title, tone):
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    document["win_rate"] |= {"low": win[0], "high": win[1]}
    document["hacking"] = {"verdict": verdict, "sentence": "As it is."}
    path.write_text(json.dumps(document))
    top = headline(read_run(folder))
    assert (top.title, top.tone) == (title, tone)
    assert "As it is." in top.sentences


def test_the_report_of_two_policies_says_so_where_the_other_one_was_gamed(plain, tmp_path):
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    document["win_rate"] |= {"low": 0.55, "high": 0.65}
    document["hacking"] = {"verdict": "none", "sentence": "All is well."}
    gamed = {**document, "hacking": {"verdict": "reward_hacking", "sentence": "It was gamed."}}
    path.write_text(json.dumps(document))
    recipe = folder / "recipe.yaml"
    tree = yaml.safe_load(recipe.read_text())
    stages = list(tree["stages"].items())
    tree["stages"] = dict([*stages[:-1], ("other_evaluation", stages[-1][1]), stages[-1]])
    recipe.write_text(yaml.safe_dump(tree, sort_keys=False))
    shutil.copytree(folder / "evaluation", folder / "other_evaluation")
    (folder / "other_evaluation" / "evaluation.json").write_text(json.dumps(gamed))
    top = headline(read_run(folder))
    assert top.tone == "mixed"
    assert top.title == (
        "Better than before, but past its best (other_evaluation); the model became better (evaluation)"
    )
    assert [(stage.name, verdict.tone) for stage, verdict in top.verdicts] == [
        ("other_evaluation", "mixed"),
        ("evaluation", "good"),
    ]
    text = text_of(report_of(folder))
    for sentence in ("All is well.", "It was gamed."):
        assert text.count(sentence) == 2, "in the verdict on its own evaluation, and beside its own curves"


def test_of_several_evaluations_each_names_its_policy_baseline_and_judge_and_keeps_what_is_its_own(plain, tmp_path):
    folder = copied(plain, tmp_path)
    document = json.loads((folder / "evaluation" / "evaluation.json").read_text())
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    evaluate = recipe["stages"].pop("evaluation")
    judges = {
        "first": "rlhf.evaluation.judges:world_judge",
        "second": {"kind": "learned", "source": "stage:reward"},
    }
    shutil.rmtree(folder / "evaluation")
    for number, (name, judge) in enumerate(judges.items()):
        recipe["stages"][name] = {**evaluate, "judge": judge}
        named = {"policy": f"policy-{name}", "baseline": f"baseline-{name}", "judge": f"judge-{name}"}
        own = {**document, "settings": document["settings"] | named}
        own["samples"] = [{**document["samples"][0], "prompt": f"Asked in {name}?"}]
        own["win_rate"] = {**document["win_rate"], "wins": 80 + number}
        (folder / name).mkdir()
        (folder / name / "evaluation.json").write_text(json.dumps(own))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    text = text_of(report_of(folder))
    for name in judges:
        for role in ("policy", "baseline", "judge"):
            assert text.count(f"{role}-{name}") >= 3, "in the verdict, in the table, above the changes"
        assert f"Asked in {name}?" in text
    assert text.count("which is what stage ppo trained against") >= 2
    second = text.index("by judge-second, which is what stage ppo trained against")
    assert text.index("by judge-first, which no policy was trained against") < second
    assert "Win rate over the baseline" not in text, "a tile would have to be of one of them"
    tones = {stage.name: verdict.tone for stage, verdict in headline(read_run(folder)).verdicts}
    assert tones == {"first": "good", "second": "mixed"}


def test_printed_shares_add_up(plain, tmp_path):
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    document["win_rate"] |= {"wins": 40, "losses": 40, "ties": 40}
    path.write_text(json.dumps(document))
    text = text_of(report_of(folder)).replace("\u202f", " ")
    assert "better 40 (34 %)" in text
    assert "equal 40 (33 %)" in text
    assert "worse 40 (33 %)" in text


@pytest.mark.parametrize("which", ["page", "hacked_page"])
def test_there_is_one_minus_sign(which, request):
    assert "\N{MINUS SIGN}" not in request.getfixturevalue(which)


def test_a_failed_stage_stands_in_the_verdict(plain, tmp_path):
    folder = copied(plain, tmp_path)
    shutil.rmtree(folder / "evaluation")
    with (folder / "events.jsonl").open("a") as file:
        for event in ("stage_start", "stage_failed"):
            message = {"message": "The loss is nan at step 3."} if event == "stage_failed" else {}
            file.write(json.dumps({"time": 5, "stage": "ppo", "event": event, **message}) + "\n")
    text = text_of(report_of(folder))
    assert "This run did not finish" in text
    assert "The stage ppo failed: The loss is nan at step 3." in text


def test_parts_that_were_not_measured_are_named_with_their_reason(plain, tmp_path):
    folder = copied(plain, tmp_path)
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    document |= {"reward_model": None, "proxy": None, "curve": None, "hacking": None}
    document["missing"] = {"reward_model": "there are no held-out pairs", "curve": "DPO has no rollouts"}
    nothing = {"value": None, "low": None, "high": None, "n": 0, "confidence": 0.95, "reason": "greedy samples"}
    document["kl"] = {"k1": nothing, "k3": nothing, "per_token": nothing}
    path.write_text(json.dumps(document))
    text = text_of(report_of(folder))
    for reason in ("there are no held-out pairs", "DPO has no rollouts", "greedy samples"):
        assert reason in text


def write_events(folder: Path, *events: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return folder


def metrics(step, value):
    return {"stage": "sft", "event": "metrics", "step": step, "metrics": {"loss/train": value}}


def test_a_resumed_stage_goes_on_and_a_changed_one_starts_anew(tmp_path):
    def start(key):
        return {"time": 1.0, "stage": "sft", "event": "stage_start", "key": key}

    resumed = write_events(tmp_path / "a", start("k"), metrics(1, 3.0), metrics(2, 9.0), start("k"), metrics(2, 2.0))
    assert read_run(resumed).stages["sft"].curves == {"loss/train": {1: 3.0, 2: 2.0}}
    changed = write_events(
        tmp_path / "b", start("k"), metrics(1, 3.0), metrics(2, 9.0), start("other"), metrics(1, 1.0)
    )
    assert read_run(changed).stages["sft"].curves == {"loss/train": {1: 1.0}}


def test_values_that_are_not_numbers_are_left_out_of_curves(tmp_path):
    folder = write_events(tmp_path, metrics(1, 3.0), metrics(2, None), metrics(3, 1.0))
    assert read_run(folder).stages["sft"].curves == {"loss/train": {1: 3.0, 3: 1.0}}


def test_a_long_curve_is_thinned_by_means():
    steps, values = sorted_points({step: float(step % 2) for step in range(10_000)}, limit=300)
    assert len(steps) <= 300
    assert steps == sorted(steps)
    assert all(0.4 < value < 0.6 for value in values)


def without_time(html):
    return re.sub(r"Made \d{4}.*? UTC", "", html)


def test_the_report_of_the_same_folder_is_the_same(plain):
    assert without_time(report_of(plain)) == without_time(report_of(plain))


def test_a_plot_is_drawn_again_only_where_its_data_changed(healthy, tmp_path, monkeypatch):
    run, drawn = copied(healthy, tmp_path), []
    (run / "report.html").unlink(missing_ok=True)
    draw = plots._figure
    monkeypatch.setattr(plots, "_figure", lambda: drawn.append(1) or draw())
    first = without_time(write_report(run).read_text())
    count = len(drawn)
    assert without_time(write_report(run).read_text()) == first
    assert len(drawn) == count > 10
    log = run / "events.jsonl"
    lines = log.read_text().splitlines()
    last = max(n for n, line in enumerate(lines) if '"loss/train"' in line)
    event = json.loads(lines[last])
    event["metrics"]["loss/train"] = 99.0
    lines[last] = json.dumps(event)
    log.write_text("\n".join(lines) + "\n")
    changed = without_time(write_report(run).read_text())
    assert len(drawn) == count + 1
    assert changed != first


@pytest.mark.parametrize(
    ("judge", "prompts", "title", "words"),
    [
        (
            {"kind": "learned", "source": "stage:reward"}, "stage:world/test_prompts.jsonl",
            "Better by the reward it was trained against",
            ["The judge is the reward that stage ppo trained against", "which is what stage ppo trained against. The 95"],
        ),
        (
            "rlhf.evaluation.judges:world_judge", "stage:world/prompts.jsonl",
            "Better on its training prompts",
            ["120 prompts that stage ppo learned from", "The prompts are those that stage ppo learned from"],
        ),
    ],
)  # fmt: skip
def test_a_success_measured_with_what_training_saw_is_told_as_that(plain, tmp_path, judge, prompts, title, words):
    run = copied(plain, tmp_path)
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["stages"]["evaluation"] |= {"judge": judge, "prompts": prompts}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    text = text_of(report_of(run))
    top = headline(read_run(run))
    assert (top.title, top.tone) == (title, "mixed")
    assert title in text
    for phrase in words:
        assert phrase in text
    assert "which no training stage saw" not in text
    assert "never saw the judge" not in text


def test_an_independent_evaluation_is_told_as_that(plain):
    text = text_of(report_of(plain))
    assert "120 prompts of a file that no stage learned from" in text
    assert "which no policy was trained against. The 95" in text


def test_without_a_recipe_nothing_is_claimed_of_judge_and_prompts(plain, tmp_path):
    run = copied(plain, tmp_path)
    (run / "recipe.yaml").unlink()
    text = text_of(report_of(run))
    assert "Asked the same 120 prompts, ppo was judged better" in text
    assert "learned from" not in text
    assert "trained against" not in text
    assert "The model became better" in text


def test_counts_of_one_and_zeros_read_well(plain, tmp_path):
    run = copied(plain, tmp_path)
    path = run / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    document["win_rate"] |= {"wins": 118, "losses": 1, "ties": 1}
    path.write_text(json.dumps(document))
    assert "judged better 118 times, worse once and equal once" in text_of(report_of(run))
    kl = replace(KL.missing("not asked"), k1=mean_interval([-0.0011, 0.0007]))
    evaluation = made_up_evaluation(Random(0), AFTER, kind="healthy", num_prompts=30)
    assert "KL estimate 0.00 nats/sequence" in replace(evaluation, kl=kl).headline()


@pytest.mark.parametrize(("won", "of"), [(397, 400), (381, 400), (1, 400), (2, 3)])
def test_a_share_is_rounded_on_the_page_as_on_the_console(won, of):
    assert percentage(won / of) == f"{float(f'{won / of:.3f}') * 100:.1f}\u202f%"


# While a run runs, and after it failed --------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from rlhf.pipeline.report import plots
from rlhf.pipeline.lock import locked
with locked(Path(sys.argv[1])):
    print("have it", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_runs_is_said_to_run_and_how_far_it_is(plain, tmp_path):
    folder = copied(plain, tmp_path)
    shutil.rmtree(folder / "evaluation")
    log = TrainingLogger(folder).for_stage("ppo")
    log.write("stage_start", kind="ppo", key="another")
    for step in (1, 2, 33):
        log.metrics(step, {"loss/policy": 1.0})
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "have it\n"
        text = text_of(report_of(folder))
        child.stdin.close()
    assert "still running" in text
    assert "The stage ppo is running, step 33." in text
    assert "never finished" not in text
    assert "did not finish" in text_of(report_of(folder)), "nobody works there any more"
    with locked(folder):
        assert not read_run(folder).running, "whoever writes the page at the end of a run has the lock itself"


def test_a_new_attempt_clears_what_the_one_before_failed_with(plain, tmp_path):
    folder = copied(plain, tmp_path)
    log = TrainingLogger(folder).for_stage("ppo")
    log.write("stage_failed", message="The cow ate the reward.")
    assert read_run(folder).stages["ppo"].status == "failed"
    log.write("stage_start", kind="ppo", key="key-ppo")
    assert read_run(folder).stages["ppo"].headline == ""
    log.write("stage_end", seconds=3.0, message="50 rollouts")
    stage = read_run(folder).stages["ppo"]
    assert (stage.status, stage.headline) == ("done", "50 rollouts")
    log.write("stage_start", kind="ppo", key="key-ppo")
    log.write("stage_interrupted", message="Stopped by SIGTERM.")
    assert "The stage ppo was stopped: Stopped by SIGTERM." in headline(read_run(folder)).sentences


def test_the_hacking_section_names_the_judge_and_not_the_note_of_its_first_plot(page):
    text = Page(page).text
    assert re.search(r"scored afterwards\s+by ", text)
    assert text.count("different scales") == 1
