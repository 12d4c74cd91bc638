"""`rlhf generate`. Heavy imports happen inside the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlhf.cli.options import DeviceOption
from rlhf.errors import ConfigError
from rlhf.models.sources import check_there
from rlhf.pipeline.models import named_model

if TYPE_CHECKING:
    from rlhf.config.search import SearchConfig
    from rlhf.data.contracts import Prompt
    from rlhf.models.policy import PolicyModel
    from rlhf.rollout.local import LocalEngine


AS_WRITTEN = (
    "note: prompts from standard input are used as written, and this model has a chat template. For answers in a conversation give a file "
    'of rows such as {"prompt": [{"role": "user", "content": "..."}]}.'
)


def generate(
    model: Annotated[
        str, typer.Argument(help="Model folder, stage of a run or hub name; `embedded` for the built-in one.")
    ],
    prompts: Annotated[
        str | None,
        typer.Argument(
            help="A data file with prompts; without it, one prompt a line from standard input, used as written, without a chat template."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Completions for each prompt.", min=1)] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Longest completion in tokens.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Use only this many prompts.", min=1)] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Look for each completion instead of drawing it: a YAML file with a `search` section, or the section itself, such as "
            "'{strategy: {kind: best_of_n, num_samples: 8}, reward: FOLDER}'. See docs/search.md.",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="With --search: file of finished prompts with their traces; a rerun goes on from it."),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="With a --search whose strategy is refine: file for preference rows, what a draft became over the draft."
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="Have a small model guess several tokens, which the model then checks at once: its folder, stage of a run or hub name, or "
            "`prompt_lookup`. Greedy completions and the distribution of samples do not change. See docs/speculative.md.",
        ),
    ] = None,
    draft_tokens: Annotated[int, typer.Option(help="With --draft: most tokens guessed at once.", min=1)] = 4,
    keeps: Annotated[
        Literal["samples", "distribution"],
        typer.Option(
            help="With --draft: what is as without it; for `samples`, of the same seed, fewer guesses are right."
        ),
    ] = "distribution",
    compiled: Annotated[bool, typer.Option(help="Decode in C, where a compiler is there (docs/compiled.md).")] = False,
    device: DeviceOption = "auto",
) -> None:
    """`rlhf generate`, whose help is in ``COMMANDS``."""
    config = _search_section(search, keep, samples)
    _check_search(config, pairs, temperature)
    model = named_model(model)  # a run holds several, and which one is meant makes the difference
    check_there(model)
    from rlhf.config.policy import SamplingConfig
    from rlhf.data.datasets import GRPODataset
    from rlhf.models.device import placed_on
    from rlhf.models.policy import PolicyModel

    with placed_on(device):
        policy = PolicyModel.from_pretrained(model)
        engine = _engine(policy, draft, draft_tokens=draft_tokens, keeps=keeps, compiled=compiled)
    source: Any = prompts if prompts is not None else [line.rstrip("\n") for line in sys.stdin if line.strip()]
    rows = list(GRPODataset(source, policy.tokenizer, limit=limit))
    if prompts is None and getattr(policy.tokenizer, "chat_template", None):
        print(AS_WRITTEN, file=sys.stderr)
    sampling = SamplingConfig(max_new_tokens=max_new_tokens, temperature=temperature)
    rows = [replace(row, id=name) for row, name in zip(rows, _names(rows), strict=True)]  # samples are drawn by the id
    if config is not None:
        for row in _searched(config, rows, engine, sampling, seed, keep, pairs):
            print(json.dumps({**row, "model": model}, ensure_ascii=False))
        _tell_drafts(engine)
        return
    groups = engine.generate(rows, num_samples=samples, sampling=sampling, seed=seed, rollout_index=0)
    for prompt, group in zip(rows, groups, strict=True):
        for completion in group:
            row = {
                "id": prompt.id,
                "prompt": prompt.messages or prompt.text,
                "completion": completion.text,
                "model": model,
                "sampling": {
                    **sampling.model_dump(mode="json", exclude_defaults=True),
                    "seed": seed,
                    "sample": completion.sample,
                },
                "finish_reason": completion.finish_reason,
                "logprob": round(sum(completion.logprobs), 4),
            }
            print(json.dumps(row, ensure_ascii=False))
    _tell_drafts(engine)


def _engine(policy: PolicyModel, draft: str | None, *, compiled: bool, **how: Any) -> LocalEngine:
    """The local engine, with a draft where one is named; ``how`` as for ``SpeculativeDecoder``."""
    from rlhf.rollout.local import LocalEngine
    from rlhf.rollout.speculative_decoder import PROMPT_LOOKUP, SpeculativeDecoder

    if draft is None:
        return LocalEngine(policy, compiled=compiled)
    if draft != PROMPT_LOOKUP:
        draft = named_model(draft)
        check_there(draft)
    return SpeculativeDecoder(policy, draft, compiled=compiled, **how).engine


def _tell_drafts(engine: LocalEngine) -> None:
    """On standard error: how often drafts were right."""
    from rlhf.formatting import percentage, rounded

    figures = engine.figures
    if engine.speculate is not None and figures:
        accepted = percentage(figures.get("rollout/draft_accept_frac", 0.0))
        gained = rounded(figures["rollout/tokens_per_forward"])
        print(
            f"draft: {accepted} of the drafted tokens accepted, {gained} tokens for each pass of the model",
            file=sys.stderr,
        )


def _search_section(text: str | None, keep: Path | None, samples: int) -> SearchConfig | None:
    """The settings of ``--search``: of a file, with or without the key ``search`` around them, or written out."""
    if text is None:
        if keep is not None:
            raise ConfigError("--keep is a file of a search's results; give --search too.")
        return None
    if samples > 1:
        raise ConfigError(
            "A search answers each prompt once; leave --samples out, and set the strategy's own number of samples."
        )
    from rlhf.config.search import WANTED, SearchConfig
    from rlhf.config.yaml_text import parse_yaml, read_yaml

    is_file = text.endswith((".yaml", ".yml"))
    tree = read_yaml(Path(text), wanted=WANTED) if is_file else parse_yaml(text, "--search")
    if isinstance(tree, str):
        tree = {"strategy": tree}
    if isinstance(tree, dict) and set(tree) == {"search"}:
        tree = tree["search"]
    if not isinstance(tree, dict):
        raise ConfigError(f"--search holds a {type(tree).__name__}; expected settings, such as {{strategy: greedy}}.")
    return SearchConfig.of(tree, source=text if is_file else "--search")


def _check_search(config: SearchConfig | None, pairs: Path | None, temperature: float) -> None:
    """Refuse what makes no sense before a model is loaded."""
    if pairs is not None and (config is None or not config.strategy.judges_revisions):
        raise ConfigError("--pairs is a file of kept revisions; give --search a strategy that keeps some: refine.")
    if config is None:
        return
    from rlhf.config.policy import SamplingConfig
    from rlhf.config.search import why_no_search

    if why := why_no_search(config, SamplingConfig(temperature=temperature), num_samples=1):
        raise ConfigError(f"{why[0].upper()}{why[1:]}.")


def _searched(
    config: SearchConfig,
    rows: Sequence[Prompt],
    engine: LocalEngine,
    sampling: Any,
    seed: int,
    keep: Path | None,
    pairs: Path | None,
) -> Iterator[dict[str, Any]]:
    from rlhf.search.configured_search import build_search, search_with

    scorer, helpers = build_search(config, [config.strategy], engine.policy, engine)
    run = search_with(
        config,
        config.strategy,
        rows,
        engine=engine,
        scorer=scorer,
        helpers=helpers,
        sampling=sampling,
        seed=seed,
        file=keep,
    )
    results = {result.prompt_id: result for result in run.results}
    if pairs is not None:
        from rlhf.files import write_jsonl
        from rlhf.search.refined_pairs import refined_pairs, refinement_lineage

        assert scorer is not None
        assert helpers.critic is not None
        lineage = refinement_lineage(engine, scorer, helpers.critic, strategy=config.strategy.title, seed=seed)
        answered = [(prompt, results[prompt.id]) for prompt in rows if prompt.id in results]
        write_jsonl(pairs, refined_pairs(answered, lineage))
    for prompt in rows:
        result = results.get(prompt.id)
        completion = result.completion if result is not None else None
        yield {
            "id": prompt.id,
            "prompt": prompt.messages or prompt.text,
            "completion": completion.text if completion is not None else None,
            "finish_reason": completion.finish_reason if completion is not None else None,
            "logprob": round(sum(completion.logprobs), 4) if completion is not None else None,
            "sampling": {**sampling.model_dump(mode="json", exclude_defaults=True), "seed": seed},
            "search": {
                "strategy": config.strategy.title,
                "score": result.score if result is not None else None,
                "stopped_by": result.stopped_by if result is not None else "seconds",
                "details": dict(result.details) if result is not None else {},
                "cost": result.cost.to_dict() if result is not None else None,
            },
        }


def _names(prompts: Sequence[Prompt]) -> list[str]:
    """The ids that the rows bring; of others a name by the prompt's text, which is the same in any file and on any line."""
    from rlhf.data.expand import prompt_names

    by_text = prompt_names(prompt.messages or prompt.text for prompt in prompts)
    return [
        name if prompt.columns.get("id") in (None, "") else prompt.id
        for name, prompt in zip(by_text, prompts, strict=True)
    ]
