"""Alarms on the page: what was said, what was done, the samples behind it, and where it happened on the curves."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.guards import GuardsConfig
from rlhf.config.hacking import HackingConfig
from rlhf.formatting import signed_number
from rlhf.pipeline.report import write_report
from rlhf.pipeline.report.alarms import GUARDS, MAX_SAMPLES, SHOWN, alarm_views
from rlhf.pipeline.report.page import SECTIONS, render
from rlhf.pipeline.report.run_data import read_run
from rlhf.training.log import TrainingLogger
from rlhf.training.monitoring.guards import Guards

SAMPLE = {"prompt": "Where is Cuba?", "completion": "Canada Canada Canada.", "score": 2.5, "kl": 34.5, "length": 12}
ATTACK = "</details></main><script>alert(1)</script>"


def log_of(folder: Path) -> TrainingLogger:
    folder.mkdir(parents=True, exist_ok=True)
    return TrainingLogger(folder).for_stage("ppo")


def page(folder: Path) -> str:
    return render(read_run(folder), strict=True)


def alarms_of(html: str) -> str:
    return re.search(r'<section id="alarms">.*?</section>', html, re.DOTALL)[0]  # type: ignore[index]


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_what_a_guard_writes_is_what_the_page_shows(tmp_path):
    log = log_of(tmp_path / "run")
    guards = Guards(GuardsConfig(kl="stop"), name="ppo")
    for step, kl in [(1, 2.0), (9, 31.0)]:
        log.metrics(step, {"ppo/ref_kl": kl})
        for alarm in guards.check(step, {"ppo/ref_kl": kl}):
            log.alarm(alarm.message, step=step, samples=[SAMPLE], **alarm.fields())
    html = page(tmp_path / "run")
    text = words(alarms_of(html))
    for part in ("ppo, step 9 · KL", "stopped", "KL to the reference is 31 nats per sequence", "limit of 15"):
        assert part in text
    for part in (
        "The sample that raised it",
        "Where is Cuba?",
        "Canada Canada Canada.",
        "score +2.50",
        "KL 34.50 nats",
    ):
        assert part in text
    assert "12 tokens" in text
    assert re.search(r"Alarms</dt><dd>1<small>KL: <a href=\"#alarms\">show it</a>", html)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"action": "warn"}, "continued"),
        ({"action": "stop"}, "stopped"),
        (
            {"action": "restore", "restored_to": 40, "learning_rate_scale": 0.25, "raised_at": 57},
            "went back to step 40, learning rate halved (now 0.25 of the recipe's)",
        ),
        ({"action": "restore"}, "went back, learning rate halved"),
        ({"action": "left out"}, "left out"),
    ],
)
def test_what_was_done_about_an_alarm_stands_beside_it(tmp_path, fields, says):
    log_of(tmp_path).alarm("Too far.", step=40, guard="kl", **fields)
    (alarm,) = alarm_views(read_run(tmp_path))
    assert alarm.done == says
    assert alarm.step == fields.get("raised_at", 40)
    assert says in unescape(words(alarms_of(page(tmp_path))))


def test_an_alarm_that_no_guard_raised_is_shown_too(tmp_path):
    log_of(tmp_path).alarm("checkpoint-80 is damaged; checkpoint-60 is used.")
    text = words(alarms_of(page(tmp_path)))
    assert "checkpoint-80 is damaged" in text
    assert "raised it" not in text


def test_every_guard_has_a_name_that_people_use():
    assert GUARDS.keys() >= GuardsConfig().of_each().keys() | HackingConfig().of_each().keys()


def test_an_alarm_of_a_detector_shows_the_judge_beside_the_reward_and_stands_on_their_curve(tmp_path):
    log = log_of(tmp_path)
    for step in range(1, 4):
        log.metrics(step, {"hacking/proxy_mean": 0.1 * step, "hacking/judge_mean": -0.1 * step})
    log.alarm(
        "The held-out judge falls.", step=2, guard="judge_slope", metric="hacking/judge_slope_t", value=-5.0, limit=-4.0,
        action="penalize", samples=[{**SAMPLE, "score": 1.5, "judge": -0.5}], false_alarms="0 of 100 runs",
    )  # fmt: skip
    html = page(tmp_path)
    text = words(alarms_of(html))
    assert "held-out judge falls" in text
    assert "lower rewards" in text
    assert f"judge {signed_number(-0.5)}" in text
    assert "Reward and held-out judge" in html
    assert "▼ alarm at step 2" in words(html)


def test_long_samples_are_folded_and_short_ones_are_not(tmp_path):
    log = log_of(tmp_path)
    log.alarm("Short.", step=1, samples=[SAMPLE])
    log.alarm("Long.", step=2, samples=[{**SAMPLE, "completion": "word " * 200}])
    matches = re.findall(r"<details( open)?><summary>The sample", alarms_of(page(tmp_path)))
    assert matches == [" open", ""]


def test_neither_a_long_text_nor_many_samples_nor_many_alarms_swell_the_page(tmp_path):
    log = log_of(tmp_path)
    for step in range(60):
        samples = [{**SAMPLE, "prompt": "p" * 9_000, "completion": "c" * 9_000}] * 50
        log.alarm(f"Alarm {step}.", step=step, samples=samples)
    html = alarms_of(page(tmp_path))
    assert html.count("(7,500 characters more)") == 60 * MAX_SAMPLES * 2
    assert f"{60 - SHOWN} more alarms" in html
    assert "Alarm 59." in html, "folded, not lost"


@pytest.mark.parametrize("place", ["prompt", "completion", "id", "message", "guard", "stage", "metric"])
def test_what_an_alarm_quotes_can_not_become_part_of_the_page(tmp_path, place):
    event: dict[str, Any] = {"stage": "ppo", "event": "alarm", "step": 1, "message": "m", "samples": [dict(SAMPLE)]}
    (event if place in ("message", "guard", "stage", "metric") else event["samples"][0])[place] = ATTACK
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    html = page(tmp_path)
    assert "<script" not in html
    assert html.count("</main>") == 1
    assert "&lt;script&gt;" in html or place == "metric"


@pytest.mark.parametrize(
    "samples",
    [
        3,
        "x",
        None,
        {},
        [1, None, "x"],
        [{}],
        [{"prompt": 3, "score": "high", "kl": None}],
        [{"completion": [1, {"role": 2}]}],
    ],
)
def test_samples_of_any_shape_cost_nothing_else(tmp_path, samples):
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"stage": "ppo", "event": "alarm", "step": "nine", "message": "Told anyway.", "samples": samples})
        + "\n"
    )
    assert "Told anyway." in alarms_of(page(tmp_path))


def test_a_number_that_was_none_is_said_to_be_none(tmp_path):
    log_of(tmp_path).alarm(
        "m", step=1, samples=[{"prompt": "p", "completion": "", "score": float("nan"), "id": "a.jsonl:7"}]
    )
    text = words(alarms_of(page(tmp_path)))
    for part in ("score: not a number", "(empty)", "id: a.jsonl:7"):
        assert part in text


def test_a_conversation_is_shown_turn_by_turn(tmp_path):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    log_of(tmp_path).alarm("m", step=1, samples=[{"prompt": turns, "completion": "x"}])
    assert "user: Hi\nassistant: Hello" in alarms_of(page(tmp_path))


def test_a_line_separator_in_a_text_ends_no_line_of_the_log(tmp_path):
    log_of(tmp_path).alarm("before\u2028after", step=1, samples=[{**SAMPLE, "completion": "one\u2028two\u0085three"}])
    run = read_run(tmp_path)
    assert not [name for name in run.missing if "not readable" in name]
    assert alarm_views(run)[0].witnesses[0].completion == "one\u2028two\u0085three"


def test_alarms_are_marked_on_the_curve_that_they_are_about_and_on_no_other(tmp_path):
    log = log_of(tmp_path)
    for step in range(1, 21):
        log.metrics(step, {"ppo/ref_kl": float(step), "ppo/length_mean": 12.0, "ppo/repetition": 0.1})
    for step in (8, 15):
        log.alarm("Too far.", step=step, guard="kl", metric="ppo/ref_kl", action="warn")
    html = page(tmp_path)
    figures = {
        title: figure
        for figure in re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
        for title in re.findall(r"<figcaption><b>(.*?)</b>", figure)
    }
    marked = {title for title, figure in figures.items() if "var(--bad)" in figure}
    assert {"Distance from the reference", "Completion length", "Repetition"} <= figures.keys()
    assert marked == {"Distance from the reference"}
    assert "▼ alarms at step 8, 15" in figures["Distance from the reference"]


def test_the_contents_call_each_section_what_its_heading_calls_it(tmp_path):
    log_of(tmp_path).alarm("m", step=1)
    html = page(tmp_path)
    contents = dict(re.findall(r'<a href="#(\w+)">([^<]+)</a>', html[html.index("<nav") : html.index("</nav>")]))
    headings = dict(re.findall(r'<section id="(\w+)"[^>]*>\s*<h2>([^<]+)</h2>', html))
    # some sections are only there where a run has something to show in them
    assert list(contents) == [section.name for section in SECTIONS[1:] if section.name in headings]
    assert {"samples", "curves", "alarms", "stages", "lineage"} <= contents.keys()
    assert contents == {name: headings[name] for name in contents}


def test_a_run_without_alarms_says_so(tmp_path):
    log_of(tmp_path).metrics(1, {"loss/train": 1.0})
    write_report(tmp_path)
    assert "No alarm was raised." in (tmp_path / "report.html").read_text(encoding="utf-8")
