"""Safe HTML from texts that nobody vouches for: markdown, code and conversations.

Two fences, each enough alone. Markdown is read with HTML off, so ``<script>`` is text; then everything is cleaned by a
list of what may stay. Nothing that stays can load, link or style: an image would tell its host who read which task when.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline import escape as escape_rule
from markdown_it.rules_inline import newline as newline_rule
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from rlhf.data.contracts import Text

MAX_MARKDOWN = 50_000
"""Characters; a longer text is shown as it is, since some that are made for it take the reader time by the square."""
MAX_BRACKETS = 2_000
"""Opening brackets, each of which the reader follows to the end of the text: so many take a third of a second."""
MAX_CELLS = 20_000
"""Of tables, if every row with a bar had as many cells as the widest: the reader fills short rows up."""
TAGS = frozenset(
    "p br hr h1 h2 h3 h4 h5 h6 strong em s del blockquote ul ol li pre code table thead tbody tr th td span".split()
)
ATTRIBUTES: Mapping[str, set[str]] = {"ol": {"start"}, "pre": {"tabindex"}}
CLASSES: Mapping[str, set[str]] = {"span": {"address", "language"}}
NO_BREAK_SPACE = "\u00a0"
ROLES = {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Tool", "developer": "Developer"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, or a whole text that is none."""

    speaker: str
    """As it is shown; empty for a plain text."""
    source: str
    """Exactly what was said; the offsets of highlights count its characters."""

    @property
    def html(self) -> Markup:
        """The source as markdown, without the one space that a completion often begins with: it is not indentation."""
        source = self.source
        return markdown_html(source[1:] if source[:1] == " " and not source[1:2].isspace() else source)


def turns_of(text: Text) -> list[Turn]:
    """The messages of a text; one without a speaker for a plain text."""
    if isinstance(text, str):
        return [Turn("", text)]
    return [Turn(_speaker(message), _content(message)) for message in text]


def _speaker(message: Mapping[str, Any]) -> str:
    role = str(message.get("role", ""))
    name = message.get("name")
    shown = ROLES.get(role, role or "?")
    return f"{shown} ({name})" if name else shown


def _content(message: Mapping[str, Any]) -> str:
    """What was said, and what was called: a judge of an agent must see its calls."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):  # parts, as multi-modal models have them
        content = "\n\n".join(
            str(part["text"]) if isinstance(part, Mapping) and "text" in part else _as_code(part) for part in content
        )
    said = [content if isinstance(content, str) else _as_code(content)] if content is not None else []
    calls = [_as_code(call) for call in message.get("tool_calls") or ()]
    return "\n\n".join(said + calls)


def _as_code(value: Any) -> str:
    return f"```json\n{json.dumps(value, ensure_ascii=False, indent=2, default=str)}\n```"


@lru_cache(maxsize=1024)
def markdown_html(text: str) -> Markup:
    """Markdown as HTML that can only be read.

    A line break stays one, and so does the indentation of a line: in steps, verse, dialogues and code without a fence they are part of
    what is judged. Links stand as their text followed by their address, images as their description and address; neither can be
    clicked or loaded. Raw HTML in the text is shown as it is written.
    """
    if not _is_read_quickly(text):
        return Markup('<pre tabindex="0">{}</pre>').format(text)
    return cleaned(_MARKDOWN.render(text))


def cleaned(dirty: str, *, more_tags: Collection[str] = ()) -> Markup:
    """HTML with what may stay; the one place where text becomes HTML."""
    clean = nh3.clean(
        dirty,
        tags={*TAGS, *more_tags},
        attributes={tag: set(names) for tag, names in ATTRIBUTES.items()},
        allowed_classes={tag: set(names) for tag, names in CLASSES.items()},
        url_schemes=set(),
        link_rel=None,
    )
    return Markup(clean)


def _is_read_quickly(text: str) -> bool:
    """Whether markdown in it costs no more than a text of that length should; some are made to cost more."""
    if len(text) > MAX_MARKDOWN or text.count("[") > MAX_BRACKETS:
        return False
    bars = [count for line in text.splitlines() if (count := line.count("|"))]
    return max(bars, default=0) * len(bars) <= MAX_CELLS


def _link_open(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:  # the text of a link stands as text
    return ""


def _link_close(_self: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
    opening = next(token for token in reversed(tokens[:index]) if token.type == "link_open")  # links can't nest
    return "" if opening.info == "auto" else _address(str(opening.attrGet("href") or ""))


def _image(_self: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
    token = tokens[index]
    return f"[image: {escape(token.content or 'no description')}]{_address(str(token.attrGet('src') or ''))}"


def _fence(_self: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
    token = tokens[index]
    language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
    label = f'<span class="language">{escape(language)}</span>' if language else ""
    # a wide block scrolls by itself, and what scrolls must be reachable by keyboard
    return f'<pre tabindex="0">{label}<code>{escape(token.content)}</code></pre>\n'


def _address(address: str) -> str:
    return f' <span class="address">({escape(address)})</span>' if address else ""


def _keeping_indents(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """A rule that ends lines, which drops the spaces that the next line begins with, made to keep them."""

    def kept(state: StateInline, silent: bool) -> bool:
        began = state.pos
        applies = rule(state, silent)
        if applies and not silent:
            _, line_end, dropped = state.src[began : state.pos].rpartition("\n")
            state.pending += _indent(dropped) if line_end else ""
        return applies

    return kept


def _keep_first_indents(state: StateCore) -> None:
    """The same for the first line of a paragraph; of four spaces on, it is code anyway."""
    lines = state.src.split("\n")
    for opening, inline in pairwise(state.tokens):
        # within a list or a quotation the indentation says where the paragraph belongs
        if opening.type == "paragraph_open" and opening.level == 0 and inline.map:
            first = lines[inline.map[0]]
            inline.content = _indent(first[: len(first) - len(first.lstrip(" \t"))]) + inline.content


def _indent(spaces: str) -> str:
    """Spaces that HTML shows."""
    return spaces.expandtabs(4).replace(" ", NO_BREAK_SPACE)


def _reader() -> MarkdownIt:
    reader = MarkdownIt("js-default", {"html": False, "linkify": False, "typographer": False, "breaks": True})
    reader.inline.ruler.at("newline", _keeping_indents(newline_rule))
    reader.inline.ruler.at("escape", _keeping_indents(escape_rule))
    reader.core.ruler.after("block", "first_indents", _keep_first_indents)
    for name, rule in {
        "link_open": _link_open,
        "link_close": _link_close,
        "image": _image,
        "fence": _fence,
        "code_block": _fence,
    }.items():
        reader.add_render_rule(name, rule)
    return reader


_MARKDOWN = _reader()
