from __future__ import annotations

import random
import re
import time

import pytest

from rlhf.feedback.web import text as web_text
from rlhf.feedback.web.text import MAX_MARKDOWN, TAGS, markdown_html, turns_of

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "![x](https://tracker.example/p.png)",
    "![x](https://tracker.example/p.png 'title\" onload=\"alert(1)')",
    "[x](https://e.example/\"onmouseover='alert(1)')",
    '<https://e.example/"><script>alert(1)</script>>',
    "[a]: https://e.example/<script> '\"><script>'\n\n[a]",
    '```"><script>alert(1)</script>\ncode</code></pre><script>alert(1)</script>\n```',
    "~~~html onclick=alert(1)\n<b onclick=alert(1)>\n~~~",
    "    </code></pre><script>alert(1)</script>",
    "| <b>a</b> |\n|:-:|\n| <iframe src=//e.example></iframe> |",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;",
    "<a href='//e.example' style='position:fixed' id=task>x</a>",
    "<form action=//e.example><input name=csrf_token></form>",
    "<!--<script>--><base href=//e.example>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "\x00<scr\x00ipt>alert(1)</scr\x00ipt>",
]
TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)([^>]*)>")


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_is_written_becomes_harmless_tags_without_addresses(text):
    for nested in (text, f"> {text}", f"* {text}", f"**{text}**", f"# {text}", text * 2):
        html = str(markdown_html(nested))
        for _, name, rest in TAG.findall(html):
            assert name in TAGS, f"<{name}> in {html}"
            assert re.fullmatch(r'( (tabindex="0"|start="\d+"|class="(address|language)"))*', rest), (
                f"{rest!r} in {html}"
            )


def test_a_random_mix_of_hostile_pieces_is_harmless_too():
    pieces = [piece for text in HOSTILE for piece in re.findall(r"\w+|\s|[^\w\s]", text)]
    rng = random.Random(7)
    for _ in range(400):
        html = str(markdown_html("".join(rng.choices(pieces, k=40))))
        assert {name for _, name, _ in TAG.findall(html)} <= TAGS
        assert not re.search(r"<[^>]*\b(href|src|style|on\w+)\s*=", html)


@pytest.mark.parametrize(
    "text",
    ["[" * 2001, "![" * 20_000, "|a" * 200 + "|\n" + "|-" * 200 + "|\n" + "|\n" * 150],
    ids=["brackets", "images", "table"],
)
def test_a_text_made_to_keep_the_reader_busy_is_shown_as_it_is(text, monkeypatch):
    monkeypatch.setattr(web_text, "_MARKDOWN", None)  # would be asked otherwise
    assert str(markdown_html(text)) == f'<pre tabindex="0">{text}</pre>'


def test_links_and_images_stand_as_text_with_their_address():
    html = markdown_html(
        "See [the docs](https://a.example/x?y=1) or ![a cat](http://b.example/c.png) <https://c.example>."
    )
    assert html == (
        '<p>See the docs <span class="address">(https://a.example/x?y=1)</span> or [image: a cat] '
        '<span class="address">(http://b.example/c.png)</span> https://c.example.</p>\n'
    )


def test_code_keeps_its_text_and_names_its_language():
    html = markdown_html('```python\nif a < b and "<b>":\n    pass\n```')
    assert html == (
        '<pre tabindex="0"><span class="language">python</span><code>if a &lt; b and "&lt;b&gt;":\n    pass\n</code></pre>\n'
    )


def test_lists_tables_and_emphasis_are_shown():
    html = markdown_html("3. *a*\n4. **b**\n\n| x |\n|---|\n| ~~y~~ |")
    assert '<ol start="3">' in html
    assert all(part in html for part in ("<em>a</em>", "<strong>b</strong>", "<th>x</th>", "<s>y</s>"))


def test_a_text_made_to_keep_the_reader_busy_does_not():
    start = time.process_time()
    html = markdown_html("[" * (MAX_MARKDOWN + 1))  # read as markdown, a million of these would take many minutes
    markdown_html("[" * 1_000_000)
    assert time.process_time() - start < 1
    assert html.startswith("<pre")


def test_a_conversation_becomes_turns_and_calls_of_tools_are_seen():
    calls = [{"type": "function", "function": {"name": "search", "arguments": '{"q": "<b>"}'}}]
    turns = turns_of([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "name": "search", "content": [{"type": "text", "text": "found"}, {"type": "image", "url": "x"}]},
    ])  # fmt: skip
    assert [turn.speaker for turn in turns] == ["User", "Assistant", "Tool (search)"]
    assert turns[0].source == "hi"
    assert '"name": "search"' in turns[1].source
    assert turns[2].source.startswith("found\n\n```json")
    assert [(turn.speaker, turn.source) for turn in turns_of("plain")] == [("", "plain")]


def test_the_space_that_a_completion_begins_with_is_shown_in_the_exact_text_alone():
    (turn,) = turns_of(" Grass.\n  And hay.")
    assert turn.html == markdown_html("Grass.\n  And hay.")
    assert turn.source == " Grass.\n  And hay.", "by whose characters highlights count"
    assert turns_of("  two")[0].html == markdown_html("  two"), "an indentation"


def shown(text):
    """What a reader of the page sees of a text: its lines."""
    html = re.sub(
        r"[ \n\t]+", " ", str(markdown_html(text)).replace("&nbsp;", "\u00a0")
    )  # as a browser reads white space
    lines = [re.sub("<[^>]*>", "", line).strip(" ") for line in re.split("<br>|</p>|</li>", html)]
    return [line.replace("\u00a0", " ") for line in lines if line]


@pytest.mark.parametrize(
    "text",
    [
        "line one\nline two\n  indented\nline four",
        "User: What does a cow eat?\nAssistant: Grass.\n\tAnd hay.",
        "if hungry:\n    eat()\n        grass()",
        "   a verse that begins with space\nand goes on",
        "broken by hand\\\n  and indented",
        "two spaces  \n    after",
    ],
)
def test_line_breaks_and_indentation_stay(text):
    assert shown(text) == text.replace("\\\n", "\n").replace("  \n", "\n").expandtabs(4).split("\n")


def test_indentation_that_belongs_to_markdown_is_not_shown():
    assert shown("- first\n  goes on\n- second") == ["first", "goes on", "second"]
    assert "<pre" in markdown_html("    code by four spaces")
    assert str(markdown_html("> quoted\n> on")) == "<blockquote>\n<p>quoted<br>\non</p>\n</blockquote>\n"
