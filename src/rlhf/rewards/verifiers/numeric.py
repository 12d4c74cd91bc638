r"""The answer is the right number.

Number formats are strict, because ambiguous ones would be scored at random: "1,5" and "1.234,56" are not
numbers here, nor are ranges of digits such as 3:30 or 1.2.3. A percent sign, a currency or a word next to it is a unit and
is ignored: 50% is 50.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rlhf.rewards.verifiers.answers import BadReferenceError, Verdict, marked

LONGEST = 100
"""Characters of a number; more is not read."""
LONGEST_ANSWER = 2000
"""Characters of an answer, or of a text's end, in which numbers are looked for."""
LARGEST_EXPONENT = 300

_RUN = re.compile(r"(?<![\w.,:/])(?:[-+])?(?:\d[\d.,:/]*|\.\d[\d.,:/]*)(?:[eE][-+]?\d+)?")
"""A sign and whatever hangs together around digits: read as a whole or not at all."""
_PLAIN = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d{1,3}(?:,\d{3})+|\d*)(?P<part>\.\d+)?(?:[eE](?P<exponent>[-+]?\d+))?")
_MIXED = re.compile(r"(?<![\w.,:/])([-+]?\d{1,40}) {1,2}(\d{1,40}/\d{1,40})(?![\w/:])")
_LATEX_FRACTION = re.compile(r"(?:(\d{1,40}) ?)?\\[dt]?frac ?\{ ?([-+]?\d{1,40}) ?\} ?\{ ?(\d{1,40}) ?\}")
_POWER = re.compile(r"\s?(?:×|x|\\times|\\cdot|\*)\s?10\s?(?:\^|\*\*)\s?\{?([-+]?\d+)\}?")
_REWRITES = (("−", "-"), ("–", "-"), ("{,}", ","), ("\\,", ""), ("\\!", ""), ("\u202f", ","), ("\\$", ""), ("\\%", ""))
_CURRENCY = re.compile(r"[$€£¥₹]\s?")
_SIGN_THEN_CURRENCY = re.compile(r"([-+])[$€£¥₹]\s?")


def verify(text: str, reference: Any, *, where: Sequence[str], tolerance: float, relative_tolerance: float) -> Verdict:
    """1 where the completion's number is the reference's.

    Args:
        text: The completion.
        reference: A number, or a text that holds one as a completion would, such as GSM8K's whole solutions.
        where: Marks at which an answer is looked for, in order; ``last_number`` is not a mark, but what to do without.
        tolerance: How far off it may be.
        relative_tolerance: The same, times the reference.

    Raises:
        BadReferenceError: The reference holds no number.
    """
    wanted = _wanted(reference)
    number, formatted = _answer(text, where)
    if number is None:
        return Verdict(0.0, False)
    allowed = max(Fraction(tolerance), Fraction(relative_tolerance) * abs(wanted))
    return Verdict(float(abs(number - wanted) <= allowed), formatted)


def _wanted(reference: Any) -> Fraction:
    if isinstance(reference, int | float) and not isinstance(reference, bool):
        reference = repr(reference)
    if isinstance(reference, str):
        number, _ = _answer(reference, ("hashes", "boxed", "phrase"))
        number = number if number is not None else only_number(reference)
        if number is not None:
            return number
    raise BadReferenceError(
        f"holds {str(reference)[-60:]!r}, which is not a number; wanted one, or a solution with '#### 42'"
    )


def _answer(text: str, where: Sequence[str]) -> tuple[Fraction | None, bool]:
    """The number at the first mark that there is, and whether it was a mark."""
    answer = marked(text, [name for name in where if name != "last_number"])
    if answer is not None:
        return only_number(answer), only_number(answer) is not None
    if "last_number" in where:
        numbers = numbers_in(text[-LONGEST_ANSWER:])
        return (numbers[-1] if numbers else None), False
    return None, False


def only_number(text: str) -> Fraction | None:
    """The number of a marked answer: the only one there, or the one behind the last ``=``."""
    if len(text) > LONGEST_ANSWER:
        return None
    for part in (text, text.rpartition("=")[2]):
        numbers = numbers_in(part)
        if len(numbers) == 1:
            return numbers[0]
    return None


def numbers_in(text: str) -> list[Fraction | None]:
    """Each number of a text, None for what looks like one and is not."""
    for old, new in _REWRITES:
        text = text.replace(old, new)
    text = _LATEX_FRACTION.sub(_spelled_fraction, text)
    text = _CURRENCY.sub("", _SIGN_THEN_CURRENCY.sub(r"\1", text))
    text = _POWER.sub(r"e\1", text)
    text = _MIXED.sub(_spelled_sum, text)
    return [_number(run.group()) for run in _RUN.finditer(text)]


def _spelled_fraction(spelled: re.Match[str]) -> str:
    r"""``\frac{1}{2}`` as " 1/2", ``3\frac{1}{2}`` as "3 1/2"."""
    return f"{spelled[1] or ''} {spelled[2]}/{spelled[3]} "


def _spelled_sum(spelled: re.Match[str]) -> str:
    """ "3 1/2" as "7/2"."""
    over, under = spelled[2].split("/")
    if len(spelled.group()) > LONGEST or int(under) == 0:
        return spelled.group()
    sign = -1 if spelled[1].startswith("-") else 1
    return f"{int(spelled[1]) * int(under) + sign * int(over)}/{under}"


def _number(run: str) -> Fraction | None:
    run = run.rstrip(".,:/")
    if len(run) > LONGEST:
        return None
    over, slash, under = run.partition("/")
    if slash:
        top, bottom = _plain_number(over), _plain_number(under)
        return None if top is None or not bottom else top / bottom
    return _plain_number(run)


def _plain_number(text: str) -> Fraction | None:
    parts = _PLAIN.fullmatch(text)
    if parts is None or not (parts["whole"] or parts["part"]):
        return None
    exponent = int(parts["exponent"] or 0)
    if abs(exponent) > LARGEST_EXPONENT:
        return None
    value = Fraction((parts["whole"].replace(",", "") or "0") + (parts["part"] or "")) * Fraction(10) ** exponent
    return -value if parts["sign"] == "-" else value
