"""`rlhf compare` as a function: two models in, a record and a page out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf.config.comparison import CompareConfig
from rlhf.evaluation.comparison import Comparison, compare_completions
from rlhf.evaluation.comparison_change import ChangeSince, change_since, read_comparison
from rlhf.files import make_folder, write_json, write_text
from rlhf.formatting import percentage, percentage_points
from rlhf.pipeline.compared_models import Answers, Side, answers_of, find_side
from rlhf.pipeline.comparison_export import export_comparison
from rlhf.pipeline.judge_independence import JudgeIndependence, check_independent, judge_independence
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.certificate import certificate_problem
from rlhf.rewards.pairwise.human_votes import read_votes
from rlhf.rewards.pairwise.verdict_cache import FILE as VERDICTS
from rlhf.rewards.pairwise.votes import PairwiseJudge
from rlhf.version import __version__

RECORD = "comparison.json"
PAGE = "comparison.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """What was found."""

    comparison: Comparison
    a: Side
    b: Side
    independence: JudgeIndependence
    change: ChangeSince | None
    settings: CompareConfig
    num_samples: int
    certificate_problem: str | None = None
    """Why the judge's verdicts are not to be relied on yet."""

    @property
    def sentence(self) -> str:
        """The verdict."""
        return self.comparison.sentence(self.a.name, self.b.name)

    def notes(self) -> list[str]:
        """What a reader must know in addition."""
        problem = [] if self.certificate_problem is None else [self.certificate_problem]
        notes = [*problem, *self.independence.shared, *self.comparison.notes()]
        if self.change is not None:
            difference = self.change.difference
            notes.append(
                f"Since the earlier comparison: {percentage_points(difference.value)} "
                f"[{percentage_points(difference.low)}, {percentage_points(difference.high)}] on the same prompts."
                if difference.measured
                else f"Nothing can be said of the change: {difference.reason}."
            )
        return [*notes, *self.independence.notes]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.comparison.to_dict(),
            "sentence": self.sentence,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "sampling": self.settings.sampling.model_dump(),
            "samples_per_prompt": self.num_samples,
            "seed": self.settings.seed,
            "independence": self.independence.to_dict(),
            "certificate_problem": self.certificate_problem,
            "allow_shared_judge": self.settings.allow_shared_judge,
            "change": None if self.change is None else self.change.to_dict(),
            "version": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def page(self) -> str:
        """The record as Markdown."""
        compared = self.comparison
        rows = [
            ("win rate", compared.win_rate), ("win rate at equal length", compared.length.rate if compared.length is not None else None),
            ("corrected by labels", compared.correction.rate.estimate if compared.correction and compared.correction.rate else None),
            ("the first place won", compared.position.first_rate if compared.position is not None else None),
            ("same verdict in both orders", compared.position.consistent if compared.position is not None else None),
            *((f"the first place won, by {name}", each.first_rate) for name, each in compared.member_positions.items()),
            ("the longer one won", compared.longer_won),
        ]  # fmt: skip
        lines = [
            f"# {self.a.name} against {self.b.name}",
            "",
            self.sentence,
            "",
            "| | value | interval | prompts |",
            "|---|---|---|---|",
        ]
        for name, estimate in rows:
            if estimate is not None and estimate.measured:
                ends = f"{percentage(estimate.low)} to {percentage(estimate.high)}"
                lines.append(f"| {name} | {percentage(estimate.value)} | {ends} | {estimate.n:,} |")
            elif estimate is not None:
                lines.append(f"| {name} | not measured: {estimate.reason} | | |")
        lines += [
            "",
            f"Won {compared.wins:,}, tied {compared.ties:,} ({compared.identical:,} of equal texts), lost {compared.losses:,}, "
            f"without a verdict {compared.missing_pairs:,}.",
            f"Judge: {compared.judge['name']} (`{compared.judge['hash']}`); {compared.asked:,} verdicts, {compared.unparsed:,} unparsed, "
            f"{compared.cost:.4f} dollars.",
            "",
            *(f"- {note}" for note in self.notes()),
        ]
        return "\n".join(lines) + "\n"


def compare_models(
    config: CompareConfig,
    folder: Path | str,
    *,
    judge: PairwiseJudge | None = None,
    kept_in: Path | None = None,
    runs: Path | None = Path("runs"),
    progress: Any = None,
) -> ModelComparison:
    """Sample from both models, ask the judge, and write ``comparison.json``, ``comparison.md`` and ``inspect_log.json``.

    What was sampled and judged stays in the folder: after a kill the same call goes on where it was.

    Args:
        config: What to compare, and how.
        folder: Written to.
        judge: Of pairs, in place of the one that the settings name.
        kept_in: Where samples and verdicts are kept, for several comparisons to share; ``folder`` by default.
        runs: Where the origin of copied models is looked for.
        progress: Called as ``progress(whose, by=how_many)`` for completions that are done.

    Raises:
        ConfigError: The judge shares what it should not, or there are no prompts.
        ModelError: There is no such model.
        DataError: The sides did not answer the same prompts.
        RewardError: The judge does not answer.
    """
    folder, started = Path(folder), datetime.now(UTC)
    sides = (find_side(config.a, registry=config.registry), find_side(config.b, registry=config.registry))
    independence = judge_independence(config.judge, sides, runs=runs, prompts=config.prompts)
    check_independent(independence, allowed=config.allow_shared_judge)
    problem = certificate_problem(config.judge)  # before anything is asked: a damaged certificate is an error
    earlier = read_comparison(config.earlier) if config.earlier is not None else None
    labels = read_votes(config.labels) if config.labels is not None else None
    make_folder(folder)
    kept = kept_in or folder
    judge = judge or build_judge(config.judge, cache=kept / VERDICTS)
    a, b = answers_of(config, sides, kept, progress=progress)
    comparison = compare_completions(
        **_flat(a, b), judge=judge, confidence=config.confidence, labels=labels, any_time=config.any_time
    )
    compared = ModelComparison(
        comparison=comparison, a=sides[0], b=sides[1], independence=independence, change=None, settings=config,
        num_samples=len(a.samples[0]), certificate_problem=problem,
    )  # fmt: skip
    if earlier is not None:
        compared = replace(compared, change=change_since(earlier, compared.to_dict(), confidence=config.confidence))
    record = compared.to_dict()
    write_json(folder / RECORD, record)
    write_text(folder / PAGE, compared.page())
    export_comparison(folder, record, a, b, dataset=str(config.prompts or sides[0].path), started=started)
    return compared


def _flat(a: Answers, b: Answers) -> dict[str, Any]:
    """Arguments of ``compare_completions``: a pair for each sample."""
    places = [place for place, samples in enumerate(a.samples) for _ in samples]
    mine: Sequence[Any] = [sample for samples in a.samples for sample in samples]
    theirs: Sequence[Any] = [sample for samples in b.samples for sample in samples]
    names = dict.fromkeys(name for columns in a.columns for name in columns)
    return {
        "prompts": [a.prompts[place] for place in places],
        "a": [sample.text for sample in mine],
        "b": [sample.text for sample in theirs],
        "ended_a": [sample.ended for sample in mine],
        "ended_b": [sample.ended for sample in theirs],
        "columns": {name: [a.columns[place].get(name) for place in places] for name in names},
    }
