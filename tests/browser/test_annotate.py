"""The labeling page in a real browser, against a real server: what a person does, and what the store then holds."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from rlhf.feedback.human_evaluation.criteria import CRITERIA
from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol
from rlhf.store import Response, Task, TaskKind
from tests.fixtures.labeling import KINDS, after, assignment_on, is_good_first, now_at, task

PYTHON = (
    "Use `sorted`:\n\n```python\nwords = sorted(words, key=len)  # "
    + "x" * 90
    + "\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)
CHAT = [
    {"role": "system", "content": "You are a careful tutor."},
    {"role": "user", "content": "How do I sort words?"},
    {"role": "assistant", "content": "By what?"},
    {"role": "user", "content": "By their **length**. " + "w" * 120},
]
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\n\n"
    "[press](javascript:window.hacked=3) ![pixel](http://192.0.2.1/p.png) <style>body{display:none}</style>\n\n"
    "```html\n</code></pre><script>window.hacked = 4</script>\n```\n</textarea><script>window.hacked = 5</script>"
)


def faults(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['html'][:200]}"
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]


def test_the_accessibility_check_finds_a_fault_that_is_there(open_page):
    page = open_page("ann")
    assert faults(page) == []
    page.evaluate("() => document.querySelector('main').append(document.createElement('button'))")
    assert any("button-name" in fault for fault in faults(page))


def test_twenty_items_by_keyboard_and_mouse_are_kept_for_the_right_completion(server, open_page):
    server.add(*[task(f"t{n}") for n in range(20)])
    page = open_page("ann")
    sides = set()
    for number in range(20):
        sides.add(is_good_first(page))
        if number < 10:
            page.keyboard.press("1" if is_good_first(page) else "2")
            after(page, lambda: page.keyboard.press("Enter"))
        else:
            page.get_by_role("radio", name="A is better" if is_good_first(page) else "B is better").click()
            after(page, page.get_by_role("button", name="Send").click)
    now_at(page, 20)
    page.wait_for_selector("#nothing-left:visible")
    assert sides == {True, False}  # else the test would prove nothing
    judgments = server.store.judgments("ann")
    assert [judgment.value for judgment in judgments] == [{"preference": "a"}] * 20
    assert all(0 < judgment.seconds < 60 for judgment in judgments)
    assert page.evaluate("Object.keys(localStorage).filter(key => key.includes(':out:'))") == []


def test_the_next_task_is_there_before_it_is_asked_for(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    page.wait_for_load_state("networkidle")
    page.route("**/api/**", lambda _route: None)  # a server that takes for ever
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    assert page.locator(".task").count() == 1
    page.unroute_all(behavior="ignoreErrors")


def test_nothing_of_where_a_completion_comes_from_reaches_the_browser(server, open_page):
    seen = []
    server.add(*[task(f"t{n}", kind) for n, kind in enumerate(KINDS)])
    page = open_page("ann")
    page.on("response", lambda answer: seen.append(answer.text()) if "/api/" in answer.url else None)
    page.reload()
    seen.append(page.content())
    for _ in KINDS:
        after(page, lambda: page.keyboard.press("s"))
    page.wait_for_load_state("networkidle")
    assert len(seen) > len(KINDS)
    assert not [text for text in seen if "secret" in text or "gold" in text]


def test_an_undone_judgment_comes_back_with_its_answer_and_can_be_changed(server, open_page):
    server.add(task("x"), task("y"))
    page = open_page("ann")
    good, bad = ("1", "2") if is_good_first(page) else ("2", "1")
    page.keyboard.press("c")
    page.keyboard.type("first thought")
    page.keyboard.press("Escape")
    page.keyboard.press(bad)
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    after(page, lambda: page.keyboard.press("u"))
    assert page.locator("#comment").input_value() == "first thought"
    assert page.locator('input[name="choice"]:checked').get_attribute("data-key") == bad
    page.keyboard.press(good)
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    assert server.answers() == [{"preference": "a"}]
    assert "Question y?" in page.locator(".prompt").inner_text()  # what was on the screen before is next


def test_that_all_are_bad_can_be_said_by_key_and_by_mouse_beside_any_answer(server, open_page):
    server.add(task("x"), task("y"), task("z", "binary"))
    page = open_page("ann")
    page.keyboard.press("x")
    assert page.get_by_label("Both bad").is_checked()
    page.get_by_label("Both good").check(force=True)
    assert not page.get_by_label("Both bad").is_checked(), "not both at once"
    page.keyboard.press("x")
    page.keyboard.press("x")
    page.keyboard.press("0")
    after(page, lambda: page.keyboard.press("Enter"))
    page.keyboard.press("1" if is_good_first(page) else "2")
    after(page, lambda: page.keyboard.press("Enter"))
    page.keyboard.press("x")  # of one completion it says nothing that the answer does not
    page.keyboard.press("2")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 3)
    said = [(judgment.value, judgment.flags) for judgment in server.store.judgments()]
    assert said == [({"preference": "tie"}, ["all_bad"]), ({"preference": "a"}, []), ({"label": False}, [])]


def test_the_letters_on_the_completions_are_keys_that_prefer_them(server, open_page):
    server.add(task("x"), task("y", "graded5"), task("z", "graded7"), task("b", "binary"))
    page = open_page("ann")
    for kind in ("pairwise", "graded5", "graded7"):
        page.wait_for_selector(f'.task[data-kind="{kind}"]')
        first = is_good_first(page)
        page.keyboard.press("b" if first else "a")
        page.keyboard.press("a" if first else "b")
        assert page.locator(".completion.picked").inner_text().startswith("A" if first else "B")
        assert page.locator('input[name="flag"]:checked').count() == 0, "a letter is an answer, and no flag"
        after(page, lambda: page.keyboard.press("Enter"))
    for key in "ab":
        page.keyboard.press(key)
    assert page.locator('input[name="choice"]:checked').count() == 0, "one completion has no letter"
    now_at(page, 3)
    assert server.answers() == [{"preference": "a"}, {"grade": 1}, {"grade": 2}], "better, and no more than that"


@pytest.mark.parametrize("width", [360, 1280])
def test_what_is_asked_stands_on_the_page(server, open_page, width):
    asked = {
        "pairwise": "Which is better?",
        "graded5": "Which is better, and by how much?",
        "graded7": "Which is better, and by how much?",
        "ranking": "In which order, best first?",
        "rating": "How good, from 1 (worst) to 5 (best)?",
        "binary": "Is it good?",
    }
    server.add(*[task(kind, kind, prompt="word " * 2000) for kind in KINDS])
    protocol = HumanEvalProtocol(criteria=CRITERIA[1:2])
    protocol.open(server.store, protocol.build_tasks(["What?"], {"one": ["This."], "two": ["That."]}))
    page = open_page("ann", viewport={"width": width, "height": 740})
    for question in [*asked.values(), f"Which is better, by {CRITERIA[1].name} alone?"]:
        shown = page.get_by_text(question, exact=True)
        assert shown.count() == 1
        box = shown.bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 740, "in sight though the prompt is long"
        assert box["height"] > 14, "and no text for screen readers alone"
        assert page.get_by_role("group", name=question).count() == (question != asked["rating"])
        after(page, lambda: page.keyboard.press("s"))


def test_a_skip_can_be_taken_back(server, open_page):
    server.add(task("x"), task("y"))
    page = open_page("ann")
    after(page, lambda: page.get_by_role("button", name="Skip").click())
    assert "Question y?" in page.locator(".prompt").inner_text()
    after(page, lambda: page.get_by_role("button", name="Undo").click())
    assert "Question x?" in page.locator(".prompt").inner_text()


def test_a_reload_brings_back_the_task_and_what_was_half_done(server, open_page):
    server.add(task("x", "rating"), task("y"))
    page = open_page("ann")
    shown = assignment_on(page)
    for key in ("4", "2", "f", "Space"):
        page.keyboard.press(key)
    page.locator("#comment").fill("half a thought")
    page.reload()
    page.wait_for_function("() => document.getElementById('rated')?.textContent === '2 of 8 rated'")
    assert assignment_on(page) == shown
    assert page.locator("#comment").input_value() == "half a thought"
    assert page.locator('input[name="flag"]:checked').count() == 1


def test_two_people_at_once_never_get_the_same_task(server, open_page):
    server.add(*[task(f"t{n}") for n in range(8)])
    pages = {name: open_page(name) for name in ("ann", "bob")}
    settled = "() => document.querySelector('.task') || !document.getElementById('nothing-left').hidden"
    working = list(pages.values())
    while working:
        for page in list(working):
            page.wait_for_function(settled)
            if not page.locator(".task").count():
                working.remove(page)
                continue
            page.keyboard.press("1")
            after(page, lambda page=page: page.keyboard.press("Enter"))
    tasks = {name: [judgment.task.id for judgment in server.store.judgments(name)] for name in pages}
    assert sorted(tasks["ann"] + tasks["bob"]) == [f"t{n}" for n in range(8)]
    assert all(tasks.values())


def drag(page: Any, letter: str, onto: str) -> None:
    """Drag a chip to the left edge of another."""
    chips = {each.inner_text(): each.bounding_box() for each in page.locator(".chip").all()}
    start, end = chips[letter], chips[onto]
    page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + 4, end["y"] + 10, steps=6)
    page.mouse.up()


def letters(page: Any) -> str:
    return "".join(each.strip() for each in page.locator(".chip").all_inner_texts())


def texts_on(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".completion .rendered").all_inner_texts()]


def test_a_ranking_by_drag_and_by_keys_with_a_tie_is_kept_in_the_tasks_order(server, open_page):
    server.add(
        task("x", "ranking", [f"text {n}" for n in range(4)]), task("y", "ranking", [f"text {n}" for n in range(3)])
    )
    page = open_page("ann")
    shown = texts_on(page)
    drag(page, "D", onto="A")
    assert letters(page) == "DABC"
    drag(page, "A", onto="C")
    assert letters(page) == "DBAC"
    page.locator("li", has_text="A").locator(".tie").click()  # A ties with B
    after(page, lambda: page.keyboard.press("Enter"))
    wanted = dict(zip([shown[3], shown[1], shown[0], shown[2]], [1, 2, 2, 3], strict=True))
    now_at(page, 1)
    assert server.answers() == [{"ranks": [wanted[f"text {n}"] for n in range(4)]}]

    shown = texts_on(page)
    for key in ("3", "ArrowLeft", "ArrowLeft", "1", "End", "2", "="):
        page.keyboard.press(key)
    assert letters(page) == "CBA"
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 2)
    wanted = dict(zip([shown[2], shown[1], shown[0]], [1, 1, 2], strict=True))
    assert server.answers()[1] == {"ranks": [wanted[f"text {n}"] for n in range(3)]}


def test_a_ranking_that_nobody_touched_is_asked_about_once(server, open_page):
    server.add(task("x", "ranking", ["one", "two"]))
    page = open_page("ann")
    page.keyboard.press("Enter")
    assert "order" in page.locator("#notice").inner_text()
    assert server.answers() == []
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)


def test_grades_ratings_and_labels_are_kept_in_the_tasks_order(server, open_page):
    server.add(task("w", "graded5"), task("x", "graded7"), task("y", "rating"), task("z", "binary"))
    page = open_page("ann")
    for steps in (5, 7):  # the good one is better by the second strongest grade
        page.keyboard.press("2" if is_good_first(page) else str(steps - 1))
        after(page, lambda: page.keyboard.press("Enter"))
    good_first = is_good_first(page)
    page.keyboard.press("Enter")
    assert "8 ratings are missing" in page.locator("#notice").inner_text()
    for key in "5432" + "1234" if good_first else "1234" + "5432":
        page.keyboard.press(key)
    page.keyboard.press("k")
    page.keyboard.press("k")
    after(page, lambda: page.keyboard.press("Enter"))
    page.keyboard.press("2")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 4)
    dimensions = ["helpfulness", "accuracy", "harmlessness", "coherence"]
    assert server.answers() == [
        {"grade": 1},
        {"grade": 2},
        {"ratings": dict(zip(dimensions, [[5, 1], [4, 2], [3, 3], [2, 4]], strict=True))},
        {"label": False},
    ]
    assert [judgment.label_probability for judgment in server.store.judgments()] == [None, None, 0.75, None]


def test_a_highlight_is_kept_with_its_place_in_the_source_and_its_reason(server, open_page):
    source = "\n😀 **bold** claim\r\nand a false one."
    server.add(task("x", "binary", [source]))
    page = open_page("ann")
    page.keyboard.press("h")
    area = page.locator(".exact:visible")
    area.evaluate(
        "each => { const at = each.value.indexOf('false'); each.focus(); each.setSelectionRange(at, at + 9); }"
    )
    page.keyboard.press("h")
    page.locator("#highlight-reason").fill("<b>wrong</b>")
    page.keyboard.press("Control+Enter")
    assert page.locator(".highlights mark").inner_text() == "false one"
    page.locator("h1").evaluate("() => document.activeElement.blur()")
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    (span,) = server.store.judgments()[0].spans
    assert span == {
        "completion": 0, "turn": 0, "start": source.index("false"), "end": source.index("false") + 9,
        "text": "false one", "reason": "<b>wrong</b>",
    }  # fmt: skip


def test_differences_are_marked_on_demand_alike_on_both_sides(server, open_page, screenshots):
    code = "Use **this**:\n\n```python\nfor x in y:\n{}print(x)\n```\n\nthe {} <i>cat</i> sat"
    server.add(task("x", texts=[code.format("    ", "red"), code.format("  ", "blue")]), task("y"))
    for scheme in ("light", "dark"):
        page = open_page("ann", color_scheme=scheme)
        page.keyboard.press("d")
        page.wait_for_selector(".diff mark:visible")
        seen = {text.rstrip() for text in page.locator(".diff mark").all_inner_texts()}
        assert seen == {"    print(x)", "  print(x)", "red", "blue"}, "lines of code as a whole, and words"
        assert page.locator(".diff strong").all_inner_texts() == ["this", "this"], "Markdown is still rendered"
        looks = page.locator(".diff mark").evaluate_all(
            "all => all.map(each => { const s = getComputedStyle(each);"
            " return [s.backgroundColor, s.color, s.textDecorationLine, s.borderBottomColor].join() })"
        )
        assert len(looks) == 4
        assert len(set(looks)) == 1, "one look for both sides"
        assert "none" in looks[0], "and nothing is struck out"
        red, green, blue = map(int, re.findall(r"\d+", looks[0])[:3])
        assert max(red, green, blue) - min(red, green, blue) <= 32, "no color that calls a side bad or good"
        fonts = page.locator(".diff pre mark").evaluate_all("all => all.map(each => getComputedStyle(each).fontFamily)")
        assert all("mono" in font for font in fonts)
        page.screenshot(path=screenshots / f"marked-{scheme}.png")
    page.keyboard.press("d")
    assert page.locator(".rendered").first.is_visible()


def test_whether_the_differences_were_marked_is_kept_with_the_judgment(server, open_page):
    server.add(task("x"), task("y"), task("z", "binary"))
    page = open_page("ann")
    page.keyboard.press("d")
    page.wait_for_selector(".diff:visible")
    page.keyboard.press("d")
    page.reload()  # it outlives a reload, and an undo
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    after(page, lambda: page.keyboard.press("u"))
    after(page, lambda: page.keyboard.press("Enter"))
    for _ in range(2):
        page.keyboard.press("1")
        after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 3)
    assert [judgment.diff_viewed for judgment in server.store.judgments()] == [True, False, None]


def test_scripts_in_prompts_completions_comments_and_guidelines_stay_text(server, open_page):
    example = {"prompt": HOSTILE, "better": HOSTILE, "worse": HOSTILE, "reason": HOSTILE}
    server.store.set_setting("guidelines", [{"name": HOSTILE[:60], "description": HOSTILE, "examples": [example]}])
    chat = [{"role": HOSTILE, "name": HOSTILE, "content": HOSTILE}]
    server.add(task("x", texts=[HOSTILE, HOSTILE + " more"], prompt=chat), task("y", "rating", [HOSTILE], HOSTILE))
    requests = []
    page = open_page("ann")
    page.on("request", lambda request: requests.append(request.url))
    page.locator("#comment").fill(HOSTILE)
    page.keyboard.press("Escape")
    for key in ("h", "d", "g", "Escape", "1"):
        page.keyboard.press(key)
    page.wait_for_selector(".diff mark:visible")
    after(page, lambda: page.keyboard.press("Enter"))
    after(page, lambda: page.keyboard.press("u"))
    assert page.locator("#comment").input_value() == HOSTILE
    page.goto(f"{server.url}/guidelines")
    assert page.evaluate("window.hacked") is None
    assert all(url.startswith(server.url) for url in requests)
    assert page.locator("main script, main img, main a, main style").count() == 0
    assert page.locator("body").is_visible()


def test_only_time_in_which_the_page_can_be_seen_is_counted(server, open_page):
    server.add(task("x"), task("y"))
    started = time.monotonic()
    page = open_page("ann")
    see = """(state) => {
        Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(see, "hidden")
    page.wait_for_timeout(1000)
    page.evaluate(see, "visible")
    page.keyboard.press("1")
    after(page, lambda: page.keyboard.press("Enter"))
    now_at(page, 1)
    (judgment,) = server.store.judgments()
    assert 0 < judgment.seconds <= time.monotonic() - started - 1


def test_dark_is_what_the_system_says_until_somebody_chooses(server, open_page, screenshots):
    server.add(task("x", prompt=CHAT, texts=[PYTHON, "good answer"]))
    page = open_page("ann", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.screenshot(path=screenshots / "dark.png")
    page.get_by_role("button", name="Light", exact=True).click()
    light = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == light
    assert page.get_by_role("button", name="Dark", exact=True).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_kind_fits_a_phone_and_axe_finds_no_serious_fault(server, open_page, screenshots, scheme):
    server.add(*[
        task(kind, kind, [PYTHON, CHAT, *(f"{n} {'w' * 90}" for n in range(4))][:number], CHAT)
        for kind, number in KINDS.items()
    ])  # fmt: skip
    page = open_page("ann", color_scheme=scheme, viewport={"width": 360, "height": 740}, has_touch=True)
    actual = {}
    for kind in KINDS:
        page.wait_for_selector(f'.task[data-kind="{kind}"]')
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, kind
        page.screenshot(path=screenshots / f"{kind}-{scheme}-phone.png", full_page=True)
        actual[kind] = faults(page)
        small = page.evaluate(
            """() => [...document.querySelectorAll("button, .option, .step, summary, a")].filter((each) => {
                const box = each.getBoundingClientRect();
                return box.width && (box.height < 32 || box.width < 24) && !each.closest(".prose");
            }).map((each) => each.outerHTML)"""
        )
        assert small == [], kind
        if kind == "pairwise":
            page.set_viewport_size({"width": 1280, "height": 800})
            page.screenshot(path=screenshots / f"{kind}-{scheme}-desk.png")
            for name, key in {"differences": "d", "plain": "h", "keys": "?", "guidelines": "g"}.items():
                page.keyboard.press(key)
                page.wait_for_timeout(100)
                actual[name] = faults(page)
                page.screenshot(path=screenshots / f"{name}-{scheme}.png")
                page.keyboard.press("Escape")
            page.set_viewport_size({"width": 360, "height": 740})
        elif scheme == "light":
            page.set_viewport_size({"width": 1280, "height": 800})
            page.screenshot(path=screenshots / f"{kind}-{scheme}-desk.png")
            page.set_viewport_size({"width": 360, "height": 740})
        after(page, lambda: page.keyboard.press("s"))
    page.wait_for_selector("#nothing-left:visible")
    actual["nothing left"] = faults(page)
    assert {name: what for name, what in actual.items() if what} == {}, json.dumps(actual, indent=1)


def test_single_keys_can_be_turned_off_and_choosing_can_be_sending(server, open_page):
    server.add(*[task(f"t{n}") for n in range(3)])
    page = open_page("ann")
    page.keyboard.press("?")
    page.get_by_label("Send immediately").check()
    page.keyboard.press("Escape")
    after(page, lambda: page.keyboard.press("1"))
    after(page, lambda: page.get_by_role("radio", name="B is better").click())
    now_at(page, 2)
    page.keyboard.press("?")
    page.get_by_label("Single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    page.keyboard.press("s")
    assert page.locator('input[name="choice"]:checked').count() == 0
    assert "t2" in page.locator(".prompt").inner_text()


def test_line_breaks_and_indentation_are_seen_as_they_were_written(server, open_page, screenshots):
    verse = "line one\nline two\n  indented\nline four"
    chat = "User: What does a cow eat?\nAssistant: Grass."
    server.add(
        Task(id="t", kind=TaskKind.PAIRWISE, prompt=chat, responses=[Response(text=verse), Response(text=f"{verse}!")])
    )
    page = open_page("ann")
    seen = {text.replace("\u00a0", " ") for text in page.locator(".prose").all_inner_texts()}
    assert seen == {chat, verse, f"{verse}!"}
    page.keyboard.press("d")
    page.wait_for_selector(".diff mark:visible")
    differing = {text.rstrip("!").replace("\u00a0", " ") for text in page.locator(".diff .prose").all_inner_texts()}
    assert differing == {verse}
    page.screenshot(path=screenshots / "line-breaks.png", full_page=True)
