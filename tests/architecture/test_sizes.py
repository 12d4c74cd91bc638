"""One idea to a file, one step to a function, one noun to a thing: what departs from these has a reason that is written down."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rlhf.config.engines import ENGINE_KINDS
from rlhf.config.environments.environment_table import ENVIRONMENT_KINDS
from rlhf.config.judges import JUDGE_TYPES
from rlhf.config.methods import METHODS, MODULES
from rlhf.config.rewards import REWARD_KINDS
from rlhf.config.schema import stage_classes
from tests.fixtures.source import FILES, ROOT, module_of, name_of, tree_of

MAX_FILE_LINES = 500
MAX_TEST_FILE_LINES = 600
MAX_FUNCTION_LINES = 120
"""Without the docstring: a formula and its sources are no reason to split a function."""

MAX_FILES_OF_ONE_NAME = 3
"""A name on more files says too little in a list of open files or in a trace."""

LARGE_FILES: dict[str, str] = {}
"""Path inside src/rlhf -> why it stays whole."""
LARGE_TEST_FILES: dict[str, int] = {
    "faults/test_data_files.py": 880,
    "faults/test_rewards.py": 690,
    "unit/pipeline/report/test_page.py": 680,
}
"""Path inside tests -> the lines it may have until it is split; a bound is only ever lowered."""
LONG_FUNCTIONS: dict[str, str] = {
    "store/migrations/versions/0001_the_first_tables.py:upgrade": "a list of tables, made by alembic",
}
"""path:function -> why it stays whole."""
KEYS_CALLED_FOUND = {"data/inspect.py:found_at": "a key of `rlhf data check --json`, which asdict writes"}
"""path:name -> why it stays."""


def functions_of(file: Path) -> Iterator[tuple[str, int]]:
    """Each function's name and its lines without the docstring."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                assert first.end_lineno is not None
                lines -= first.end_lineno - first.lineno + 1
            yield f"{name_of(file)}:{node.name}", lines


def test_a_file_holds_one_idea():
    lines = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    too_long = {name: count for name, count in lines.items() if count > MAX_FILE_LINES and name not in LARGE_FILES}
    assert not too_long, f"{too_long}: split each, or give LARGE_FILES the reason"
    small = [name for name in LARGE_FILES if lines.get(name, 0) <= MAX_FILE_LINES]
    assert not small, f"{small} are small again, or gone: take them off LARGE_FILES"


def test_a_function_can_be_read_in_one_go():
    lines = dict(sorted(named for file in FILES for named in functions_of(file)))  # of one name, the longest
    too_long = {
        name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES and name not in LONG_FUNCTIONS
    }
    assert not too_long, f"{too_long}: split each, or give LONG_FUNCTIONS the reason"
    short = [name for name in LONG_FUNCTIONS if lines.get(name, 0) <= MAX_FUNCTION_LINES]
    assert not short, f"{short} are short again, or gone: take them off LONG_FUNCTIONS"


def test_a_test_file_has_one_subject():
    files = {file.relative_to(ROOT / "tests").as_posix(): file for file in (ROOT / "tests").rglob("*.py")}
    lines = {name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in files.items()}
    too_long = {name: count for name, count in lines.items() if count > LARGE_TEST_FILES.get(name, MAX_TEST_FILE_LINES)}
    assert not too_long, f"{too_long}: split each by subject, as tests/unit/pipeline/validate is"
    small = [name for name in LARGE_TEST_FILES if lines.get(name, 0) <= MAX_TEST_FILE_LINES]
    assert not small, f"{small} are small again, or gone: take them off LARGE_TEST_FILES"


def test_a_file_name_stands_for_few_files():
    names = Counter(file.name for file in FILES if not file.name.startswith("__"))
    frequent = {name: count for name, count in names.items() if count > MAX_FILES_OF_ONE_NAME}
    assert not frequent, f"{frequent}: give the files names of their own, as `training/row_order.py` has"


OF_ONE_THING = set(
    # models and what is scored: settings, losses, models, trainers, scorers
    "functions kl lengths neftune pair_losses policy preference process_reward regularizers reward reward_model rewards search steps "
    "value "
    # a kind of stage or a method in rooms that its declaration does not name
    "calculator contexts evaluate gate offline pass_at_k sft "
    # settings or a command, and what they are of
    "assets comparison curriculum guards guidelines held_out hub_results judges memory people plan registry run runs threads "
    # the same part in two places: the two worlds, a message and its display, a folder written and read, a room's contract
    "alarms build events inputs layouts results saved scorer sources tokenizer types weights".split()
)
"""File names that several rooms have for what belongs together, beyond what declarations say (``modules_of_declarations``). A new one is
a decision: two different things get two names."""


def modules_of_declarations() -> Iterator[set[str]]:
    """Of each kind of stage, method, reward, judge, engine and environment: where it is declared, and the modules it names by text."""
    for stage in stage_classes().values():
        yield {stage.__module__, f"rlhf.pipeline.stages.{stage.runs}", stage.trainer}
    for name, method in METHODS.items():
        formulas = (*method.pair_losses.values(), *getattr(method.stage, "policy_losses", {}).values())
        functions = (method.computed_by, *(formula.function for formula in formulas))
        stage = stage_classes()[method.kind]
        declared = f"rlhf.config.methods.{MODULES.get(name, name)}"
        yield {declared, stage.trainer, f"rlhf.pipeline.stages.{stage.runs}", *(f"rlhf.{each}" for each in functions)}
    for kind in (*REWARD_KINDS, *JUDGE_TYPES, *ENGINE_KINDS, *ENVIRONMENT_KINDS):
        yield {kind.__module__, kind.builds}


def declared_together() -> set[str]:
    """File names all of whose files one declaration names."""
    modules = defaultdict(set)
    for file in FILES:
        modules[file.stem].add(module_of(file))
    together = set()
    for named in modules_of_declarations():
        of_one = {text.partition(":")[0] for text in named}
        together |= {stem for stem in {module.rpartition(".")[2] for module in of_one} if modules[stem] <= of_one}
    return together


def test_a_file_name_does_not_stand_for_two_things():
    names = Counter(file.stem for file in FILES if not file.name.startswith("__"))
    shared = {name for name, count in names.items() if count > 1} - declared_together()
    assert shared == OF_ONE_THING, (
        f"{sorted(shared ^ OF_ONE_THING)}: two things get two names; what belongs together is listed, and only that"
    )


def identifiers_of(file: Path) -> set[str]:
    """Names of variables, arguments, attributes, functions and classes of a file."""
    fields = (getattr(node, field, None) for node in ast.walk(tree_of(file)) for field in ("id", "arg", "attr", "name"))
    return {name for name in fields if isinstance(name, str)}


def test_a_name_says_what_it_holds():
    """``found`` says that something was looked for; ``rows``, ``errors`` or ``path`` say what it is."""
    called_found = {
        f"{name_of(file)}:{name}" for file in FILES for name in identifiers_of(file) if "found" in name.split("_")
    }
    unnamed = sorted(called_found - KEYS_CALLED_FOUND.keys())
    assert not unnamed, f"{unnamed}: name each by what it holds, or give KEYS_CALLED_FOUND the reason"
    gone = sorted(KEYS_CALLED_FOUND.keys() - called_found)
    assert not gone, f"{gone} are gone: take them off KEYS_CALLED_FOUND"


def test_a_docstring_says_more_than_where_to_look():
    """A method that overrides one needs none (``@override``); any other says what it does."""
    empty = [
        f"{name_of(file)}:{node.name}"
        for file in FILES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and re.fullmatch(
            r"(See|As) (``[\w.]+``( and ``[\w.]+``)?|above|below)\.?",
            (ast.get_docstring(node) or "").partition("\n\n")[0],
        )
    ]
    assert not empty, (
        f"{empty}: say in a line what it does, or mark what it overrides with @override and leave the docstring out"
    )
