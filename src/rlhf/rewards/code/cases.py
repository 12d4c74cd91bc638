"""Splits a row's tests into a program's input and its expected output, which never enters the sandbox."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_TESTS = 200


@dataclass(frozen=True, slots=True)
class Case:
    """One test."""

    asked: Mapping[str, str]
    """The input of the sandbox: ``setup`` and ``value``, an expression; or ``stdin``."""
    wanted: Any
    """The value, or what standard output should hold."""

    def passed(self, end: str, said: str) -> bool:
        """Whether a test that ended so and said that has passed."""
        if end != "done":
            return False
        if "stdin" in self.asked:
            return _lines(said) == _lines(self.wanted)
        try:
            return bool(ast.literal_eval(said) == self.wanted)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return False


class TestsError(ValueError):
    """A row's tests can't be read; completes "its column 'tests' ..."."""

    __test__ = False  # it is not a class of tests


def cases_of(tests: Any) -> list[Case]:
    """The tests that a row holds.

    Args:
        tests: Python source with ``assert`` statements, each a test, and whatever they need before them; a list of such
            sources; or a list of ``{"input": ..., "output": ...}``, standard input and what standard output should hold.

    Raises:
        TestsError: It is something else, holds no test or too many.
    """
    cases = [case for part in ([tests] if isinstance(tests, str | Mapping) else _items(tests)) for case in _cases(part)]
    if not cases:
        raise TestsError("holds no test; write assert statements, or a list of {'input': ..., 'output': ...}")
    if len(cases) > MOST_TESTS:
        raise TestsError(f"holds {len(cases)} tests; at most {MOST_TESTS} are run, so leave some out")
    return cases


def _items(tests: Any) -> Sequence[Any]:
    if isinstance(tests, list | tuple):
        return tests
    raise TestsError(f"holds {_kind(tests)}; wanted Python source, or a list of sources or input/output pairs")


def _cases(part: Any) -> list[Case]:
    if isinstance(part, Mapping):
        if set(part) != {"input", "output"} or not all(isinstance(text, str) for text in part.values()):
            raise TestsError(
                f"holds a test with {', '.join(map(str, part)) or 'nothing'}; wanted the texts input, output"
            )
        return [Case({"stdin": part["input"]}, part["output"])]
    if not isinstance(part, str):
        raise TestsError(f"holds a test that is {_kind(part)}; wanted Python source, or input and output")
    try:
        body = ast.parse(part).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise TestsError(f"holds a test that is not valid Python ({err})") from err
    if not body:
        return []
    if not any(isinstance(statement, ast.Assert) for statement in body):
        return [Case({"setup": part, "value": "True"}, True)]  # a check that calls itself: it passes unless it raises
    cases: list[Case] = []
    setup: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Assert):
            value, wanted = _question(statement.test)
            cases.append(Case({"setup": "\n".join(setup), "value": value}, wanted))
        else:
            setup.append(ast.unparse(statement))
    return cases


def _question(test: ast.expr) -> tuple[str, Any]:
    """An expression to evaluate inside, and the value that it should have.

    ``f(2) == 4`` evaluates ``f(2)`` and expects 4. A test without a literal on one side is evaluated as a whole and should be true.
    """
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        left, right = test.left, test.comparators[0]
        for asked, known in ((left, right), (right, left)):
            try:
                wanted = ast.literal_eval(known)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(test.ops[0], ast.Eq):
                return ast.unparse(asked), wanted
            if wanted is None:
                return ast.unparse(asked), None
    return f"bool({ast.unparse(test)})", True


def _lines(text: str) -> list[str]:
    """Lines without the white space at their ends, and without empty ones at the end of all."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
