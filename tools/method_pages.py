"""Writes what can be generated of docs/methods and recipes/methods; prose between the marks stays as it is.

    python tools/method_pages.py            write
    python tools/method_pages.py --check    say what is out of date, and change nothing

Sources: METHODS (src/rlhf/config/methods), the settings classes with their docstrings, where defaults come from (sources of
each method and its family), recipes/quickstart.yaml for the stages that all recipes share, and
tools/method_settings.yaml for the numbers of the embedded world.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlhf.config.method_options import described_options, source_of
from rlhf.config.methods import FAMILIES, METHODS, Method, page_of, recipe_of
from rlhf.config.methods.policy_family import STEPS
from rlhf.config.policy import RLConfig
from rlhf.config.schema import describe_setting, settings_class
from rlhf.data.message_text import counted
from rlhf.errors import DataError
from rlhf.files import write_text

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "tools" / "method_settings.yaml"
INDEX = ROOT / "docs" / "methods" / "README.md"
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
HEAD = ("world", "sft", "preferences", "reward")
"""Stages of the quickstart that recipes share, letter for letter; a recipe has those that it needs."""
WIDTH = 130


def block(name: str, content: str) -> str:
    """Generated text with its marks."""
    return f"<!-- {name}: written by tools/method_pages.py -->\n{content.rstrip()}\n<!-- {name}: end -->"


def with_block(text: str, name: str, content: str, *, source: str) -> str:
    """The text with what stands between the marks of that name replaced."""
    replaced, count = re.subn(
        rf"<!-- {name}: written by tools/method_pages.py -->\n.*?<!-- {name}: end -->",
        lambda _: block(name, content),
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{source} has {count} blocks marked {name!r}; there should be one.")
    return replaced


# --- pages --------------------------------------------------------------------------------------------------------------


def facts(name: str, method: Method) -> str:
    """Who published it, which stage it is, where it is computed."""
    module, _, function = method.computed_by.partition(":")
    path = f"src/rlhf/{module.replace('.', '/')}.py"
    paper = method.citation
    if method.arxiv:
        paper = f"[{method.published}](https://arxiv.org/abs/{method.arxiv})"
    settings = ", ".join(f"{key}: {_plain(value)}" for key, value in {"kind": method.kind, **method.settings}.items())
    return "\n".join(
        [
            f"{method.about}",
            "",
            "| | |",
            "|---|---|",
            f"| paper | {paper} |",
            f"| stage | `{settings}` |",
            f"| computed by | [`{function}`](../../{path}) in `{path}` |",
            f"| recipe | [`{recipe_of(name)}`](../../{recipe_of(name)}): `rlhf run {recipe_of(name)}` |",
        ]
    )


def options(name: str, method: Method) -> str:
    """Each option with its default and where that comes from, what the recipe sets it to, and what it does."""
    chosen = _flat(own_stage(name))
    lines = ["| setting | default | where that is from | in the recipe | |", "|---|---|---|---|---|"]
    for setting in described_options(method):
        default, source = setting.default, source_of(method, setting)
        if setting.name in method.settings:  # it makes the method; the class's own default is another method's
            default = f"**{default}**"
            usual = describe_setting(settings_class(method.kind), setting.name).default
            if usual not in ("required", setting.default):
                default += f"; `kind: {method.kind}` alone has {usual}"
        here = chosen.get(setting.name, "")
        meaning = setting.told.replace("|", "\\|").replace("See GRPO.", "See [GRPO](grpo.md).")
        if (
            setting.name == "loss" and "loss" in method.settings
        ):  # what each of them is stands on the page of the default one
            meaning = f"What makes it this method. {replace(setting, meaning='').told.strip()}"
        lines.append(f"| `{setting.name}` | {default} | {source} | {here} | {meaning} |")
    if set(STEPS) <= set(method.options):
        lines += ["", *textwrap.wrap(steps_to_a_rollout(method, chosen), 144)]
    lines += ["", f"All others are those of every stage of the kind: `rlhf config schema {method.kind}`."]
    return "\n".join(lines)


def steps_to_a_rollout(method: Method, chosen: Mapping[str, str]) -> str:
    """How many steps learn from one rollout, by default and in the recipe: with one, nothing that bounds ratios acts."""
    fields = settings_class(method.kind).model_fields
    defaults = {key: fields[key].default for key in ("group_size", *STEPS)}
    here = {key: int(chosen.get(key, default)) for key, default in defaults.items()}
    default, ours = (counted(RLConfig(**sizes).steps_per_rollout, "step") for sizes in (defaults, here))
    return (
        f"A rollout is {default} by default and {ours} in the recipe, which made the row in [the learning table](../results/methods.md). "
        "In the first step of a rollout every ratio is 1, and nothing is clipped or weighed."
    )


def page_text(name: str) -> str:
    """The page of a method as it is written.

    Raises:
        DataError: There is none.
    """
    path = ROOT / page_of(name)
    if not path.is_file():
        family = [other for other, method in METHODS.items() if method.family == METHODS[name].family and other != name]
        example = next((page_of(other) for other in family if (ROOT / page_of(other)).is_file()), page_of("dpo"))
        raise DataError(
            f"The method {name!r} has no page {page_of(name)}. Write it: copy {example}, change its title and prose, and run "
            "`python tools/method_pages.py`, which fills in what stands between the marks. See docs/extending.md."
        )
    return path.read_text(encoding="utf-8")


def rendered_page(name: str, text: str) -> str:
    """A page with its blocks as they should be."""
    text = with_block(text, "facts", facts(name, METHODS[name]), source=page_of(name))
    return with_block(text, "options", options(name, METHODS[name]), source=page_of(name))


def rendered_index(text: str) -> str:
    """The index: methods by family."""
    lines = []
    for family, words in FAMILIES.items():
        lines += [f"### {words}", "", "| method | what it does | published | recipe |", "|---|---|---|---|"]
        for name, method in METHODS.items():
            if method.family == family:
                paper = method.published
                if method.arxiv:
                    paper = f"[{paper}](https://arxiv.org/abs/{method.arxiv})"
                recipe = f"[yaml](../../{recipe_of(name)})"
                lines.append(f"| [{name}]({name}.md) | {method.about} | {paper} | {recipe} |")
        lines.append("")
    return with_block(text, "methods", "\n".join(lines), source="docs/methods/README.md")


# --- recipes ------------------------------------------------------------------------------------------------------------


@functools.cache
def all_settings() -> dict[str, Any]:
    """tools/method_settings.yaml, every value as the text that was written: 1e-3 stays 1e-3."""
    return yaml.load(SETTINGS.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}


def own_stage(name: str) -> dict[str, Any]:
    """The method's own stage in its recipe, values as they are written."""
    if name in method_stages(name):
        return method_stages(name)[name]
    stage: dict[str, Any] = yaml.load(rendered_recipe(name), Loader=yaml.BaseLoader)["stages"][name]
    return stage


@functools.cache
def head_text(names: tuple[str, ...]) -> str:
    """Those stages of the quickstart with the comments above them, letter for letter."""
    lines = QUICKSTART.read_text(encoding="utf-8").split("stages:\n", 1)[1].splitlines()
    chunks: dict[str, list[str]] = {}
    above: list[str] = []
    current: list[str] | None = None
    for line in lines:
        if stage := re.fullmatch(r"  (\w+):", line):
            current = chunks.setdefault(stage[1], [*above, line])
            above = []
        elif re.match(r"  #", line) or not line:
            above, current = ([*above, line] if line else []), None
        elif current is not None:
            current.append(line)
    return "\n\n".join("\n".join(chunks[name]) for name in names)


def head_of(method: Method, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of the shared stages a method needs."""
    if "head" in settings:
        return tuple(settings["head"])
    if method.family == "supervised":
        return ("world",)
    needs_reward = method.family == "policy" or method.kind in ("online_dpo", "best_of_n")
    return HEAD if needs_reward else HEAD[:3]


def inputs_of(name: str, method: Method) -> dict[str, Any]:
    """Model, data, prompts and reward of the method's own stage."""
    if method.family == "supervised":
        return {"model": "embedded", "data": "stage:world/sft.jsonl", "eval_frac": "0.05"}
    if method.family == "policy" or method.kind in ("online_dpo", "best_of_n"):
        return {"model": "stage:sft", "reward": "stage:reward", "prompts": "stage:world/prompts.jsonl"}
    return {
        "model": "stage:sft",
        "data": "stage:preferences/pairs.jsonl",
        "eval_data": "stage:preferences/test_pairs.jsonl",
    }


def evaluation(name: str, method: Method, policy: str) -> dict[str, Any] | None:
    """The quickstart's evaluation of this policy; None for models that judge, whose held-out pairs are their own stage's."""
    if method.family == "reward":
        return None
    stage = {**quickstart_evaluation(), "policy": f"stage:{policy}"}
    if method.family == "supervised":
        stage["baseline"] = "embedded"
    if method.family != "policy" and method.kind != "online_dpo":
        for key in ("reward_model", "pairs", "rollouts"):
            stage.pop(key)
    else:
        stage["rollouts"] = f"stage:{policy}/rollouts.jsonl"
    return stage


@functools.cache
def quickstart_evaluation() -> dict[str, Any]:
    """The quickstart's last stage, every value as it is written."""
    stage: dict[str, Any] = yaml.load(QUICKSTART.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["stages"][
        "evaluate"
    ]
    return stage


def method_stages(name: str) -> dict[str, dict[str, Any]]:
    """What comes behind the shared head: stages by name, in order."""
    method, settings = METHODS[name], all_settings().get(name, {})
    stages: dict[str, dict[str, Any]] = dict(settings.get("before", {}))
    policy = name
    if name not in HEAD:
        made_by = {key: _plain(value) for key, value in method.settings.items()}
        stages[name] = {"kind": method.kind, **inputs_of(name, method), **made_by, **settings.get("stage", {})}
        stages[name] = {key: value for key, value in stages[name].items() if value != "~"}
    for after, stage in settings.get("after", {}).items():
        stages[after], policy = stage, after
    evaluate = evaluation(name, method, policy)
    if evaluate is not None:
        stages["evaluate"] = evaluate
    return stages


def rendered_recipe(name: str) -> str:
    """The whole recipe as text."""
    method, settings = METHODS[name], all_settings().get(name, {})
    head = head_of(method, settings)
    if name in HEAD:
        head = HEAD[: HEAD.index(name) + 1] if method.family == "reward" else ("world", "sft")
    lines = [
        f"# {method.title}. {method.about}",
        "#",
        f"#     rlhf run {recipe_of(name)}",
        "#",
        f"# The page of the method: {page_of(name)}. Written by tools/method_pages.py from METHODS, recipes/quickstart.yaml and",
        "# tools/method_settings.yaml: change those.",
        f"name: method_{name}",
        f"description: {_quoted(f'{method.title} on the embedded world.')}",
        "seed: 1",
        "threads: 1 # the model is so small that a second thread costs more than it brings",
        "",
        "stages:",
        *([head_text(head)] if head else []),
    ]
    for stage_name, stage in method_stages(name).items():
        if lines[-1] != "stages:":
            lines.append("")
        if stage_name == name and "why" in settings:
            lines += _comment(settings["why"])
        if stage_name == "evaluate":
            lines += _comment(
                "The judge is the world's own table of facts and manners; no training stage of the policy sees it."
            )
        lines.append(f"  {stage_name}:")
        lines += _written(stage, "    ")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    return (f"  # {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH))


def _written(stage: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Settings a line each; sections in one line where they fit."""
    for key, value in stage.items():
        line = f"{indent}{key}: {_flow(value)}"
        if isinstance(value, dict) and len(line) > WIDTH:
            yield f"{indent}{key}:"
            yield from _written(value, indent + "  ")
        else:
            yield line


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    return str(value)


def _flat(stage: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in stage.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": _flow(value)}
        if isinstance(value, dict):
            flat[f"{above}{key}"] = _flow(value)
    return flat


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return f'"{text}"' if re.search(r"[:#]", text) else text


# --- all of it ----------------------------------------------------------------------------------------------------------


def rendered() -> Iterator[tuple[Path, str]]:
    """Every generated file and what it should hold."""
    for name in METHODS:
        yield ROOT / recipe_of(name), rendered_recipe(name)
        page = ROOT / page_of(name)
        yield page, rendered_page(name, page_text(name))
    yield INDEX, rendered_index(INDEX.read_text(encoding="utf-8"))


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Say what is out of date, and change nothing.")
    arguments = parser.parse_args()
    try:
        stale = [
            (path, text) for path, text in rendered() if not path.is_file() or path.read_text(encoding="utf-8") != text
        ]
    except DataError as err:
        raise SystemExit(str(err)) from None
    for path, text in stale:
        print(path.relative_to(ROOT))
        if not arguments.check:
            write_text(path, text)
    if arguments.check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
