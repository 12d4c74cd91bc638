"""Capability suites, asked before and after."""

from __future__ import annotations

import functools
from typing import Any

from rlhf.config.capabilities import CapabilitiesStage
from rlhf.config.suites import SuiteConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.data.message_text import counted
from rlhf.errors import RewardError, RLHFError
from rlhf.evaluation.contamination import MIN_WORDS, Overlap, find_overlaps, too_short
from rlhf.evaluation.intervals import finite_or_none
from rlhf.evaluation.suites.capability import CapabilityReport, CapabilityTester
from rlhf.evaluation.suites.suite import Suite
from rlhf.files import write_json
from rlhf.pipeline.evidence import called
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy
from rlhf.pipeline.validate.training_texts import as_text, training_texts
from rlhf.rollout.engines import build_engine

FILE = "capabilities.json"
MIN_SHOWN = 10
"""Contaminated items that are listed by place; all are counted."""


def run_capabilities(stage: CapabilitiesStage, at: StageContext) -> StageOutcome:
    """Ask both, compare, and look for the suites' texts in what the policy learned from."""
    seed = seed_of(stage.seed)
    sources = [resolved_suite(source, at) for source in stage.suites]
    tester = CapabilityTester(
        sources,
        seed=seed,
        confidence=stage.confidence,
        repeat=stage.repeat,
        build_engine=functools.partial(build_engine, config=stage.engine),
    )
    policy, baseline = load_policy(stage.policy, at, seed=seed), load_policy(stage.baseline, at, seed=seed)
    total = 3 * sum(len(suite.items) for suite in tester.suites)
    with at.naming("suites", RewardError, what="The scorer is"), at.log.progress(at.name, total) as bar:
        report = tester.test(
            baseline, policy, names=(called(stage.baseline.path), called(stage.policy.path)), progress=bar.advance
        )
    contamination = find_contamination(stage, tester.suites, at) if stage.contamination else None
    write_json(
        at.folder / FILE,
        {
            "settings": {
                "policy": called(stage.policy.path),
                "baseline": called(stage.baseline.path),
                "confidence": stage.confidence,
                "seed": seed,
            },
            **report.to_dict(),
            "contamination": contamination,
        },
    )
    for name, overlap in (contamination or {}).get("suites", {}).items():
        first = overlap["items"][0]
        at.log.alarm(
            f"{overlap['num_items']} of {overlap['of']} items of the suite {name} are in what the policy learned from (item {first['item']}: "
            f"{first['place']}): its score says little about new questions."
        )
    for name, each in report.suites.items():
        for pair in each.group_differences:
            if pair.is_shown:
                at.log.alarm(f"{name}: {pair}")
    return StageOutcome(headline(report), summary(report))


def find_contamination(stage: CapabilitiesStage, suites: list[Suite], at: StageContext) -> dict[str, Any]:
    """Items of each suite that share a run of words with training rows, and what could not be read."""
    texts = {f"{suite.name}\0{item.id}": as_text(item.prompt) for suite in suites for item in suite.items}
    unread: list[str] = []
    overlaps: list[Overlap] = []
    try:
        recipe = read_yaml(at.run_dir / "recipe.yaml")
        rows = training_texts(
            recipe, at.name, stage.policy.path or "", run=at.run_dir, runs=at.run_dir.parent, unread=unread
        )
        overlaps = find_overlaps(texts, rows)
    except RLHFError as err:
        unread.append(str(err))
    by_suite: dict[str, Any] = {}
    for overlap in overlaps:
        name, _, item = overlap.item.partition("\0")
        own = by_suite.setdefault(name, {"num_items": 0, "of": 0, "items": []})
        own["num_items"] += 1
        if len(own["items"]) < MIN_SHOWN:
            own["items"].append({"item": item, "place": overlap.source, "words": overlap.words})
    for suite in suites:
        if suite.name in by_suite:
            by_suite[suite.name]["of"] = len(suite.items)
    short: dict[str, list[str]] = {}
    for name, _, item in (each.partition("\0") for each in too_short(texts)):
        short.setdefault(name, []).append(item)
    unread += [_named_short(name, ids) for name, ids in short.items()]
    return {"suites": by_suite, "unread": list(dict.fromkeys(unread)), "too_short": short}


def _named_short(suite: str, ids: list[str]) -> str:
    more = f" and {len(ids) - MIN_SHOWN} more" if len(ids) > MIN_SHOWN else ""
    what = f"{counted(len(ids), 'item')} of fewer than {MIN_WORDS} words"
    return f"{what} in the suite {suite}, which any text may hold by chance ({', '.join(ids[:MIN_SHOWN])}{more})"


def resolved_suite(source: str | SuiteConfig, at: StageContext) -> str | SuiteConfig:
    """A suite with files where it names ``stage:`` inputs."""
    if isinstance(source, str):
        return at.path(source)
    return source if source.data is None else source.updated(data=at.path(source.data))


def headline(report: CapabilityReport) -> str:
    """One line."""
    parts = [
        f"{name} {each.before.value:.3f} -> {each.after.value:.3f} ({each.ruling.decision})"
        for name, each in report.suites.items()
    ]
    return f"{report.decision}: {', '.join(parts)}"


def summary(report: CapabilityReport) -> dict[str, Any]:
    """Flat numbers for ``summary.json``."""
    figures: dict[str, Any] = {"decision": str(report.decision)}
    for name, each in report.suites.items():
        estimates = {"before": each.before, "after": each.after, "gain": each.gain}
        figures |= {f"{name}_{part}": finite_or_none(estimate.value) for part, estimate in estimates.items()}
        figures |= {f"{name}_decision": str(each.ruling.decision)}
    return figures
