"""The chat page in a real browser, over a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.serving import ServingConfig
from rlhf.feedback.production import rows_of_events
from rlhf.feedback.red_team import items_of_attempts
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from rlhf.store import PreferenceStore, access
from rlhf.store.served_completions import programs_served
from tests.browser.conftest import is_complaint
from tests.fixtures.labeling import LONGEST_WAIT_MS

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
SERIOUS = {"serious", "critical"}
LAST = "article.assistant:last-of-type"


class ChatServer:
    """Two names of the embedded model, and one that shares its requests out between them."""

    def __init__(
        self, store: PreferenceStore | None, *, keys: bool = False, compare_every: int = 0, consent: str = "assumed"
    ) -> None:
        import uvicorn

        config = ServingConfig(compiled=False, compare_every=compare_every, context_length=200, consent=consent)
        models = {"old": Source("embedded"), "new": Source("embedded")}
        app = create_app(models=models, config=config, feedback_store=store, key_store=store if keys else None)
        app.state.routes.share("live", {"old": 0.5, "new": 0.5})
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.store, self.url = store, f"http://127.0.0.1:{port}/"
        self.server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 60
        while not self.server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)

    def events(self, number: int) -> list[Any]:
        """When there are so many."""
        assert self.store is not None
        deadline = time.monotonic() + 20
        while len(events := self.store.events()) < number:
            assert time.monotonic() < deadline, f"{len(events)} events came"
            time.sleep(0.02)
        return events

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(timeout=20)


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., ChatServer]]:
    servers, stores = [], []

    def build(*, with_store: bool = True, **how: Any) -> ChatServer:
        if with_store:
            stores.append(PreferenceStore(tmp_path / "feedback.db"))
        servers.append(ChatServer(stores[-1] if with_store else None, **how))
        return servers[-1]

    yield build
    for server in servers:
        server.stop()
    for store in stores:
        store.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., Any]]:
    contexts, complaints = [], []

    def visit(url: str, **how: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
        context.set_default_timeout(LONGEST_WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def write(page: Any, text: str, *, tokens: int = 20) -> None:
    page.wait_for_selector("#model option", state="attached")
    page.eval_on_selector("#temperature", "(field) => { field.value = '1.5'; }")
    page.eval_on_selector("#max-tokens", "(field, value) => { field.value = value; }", str(tokens))
    page.fill("#message", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#send:visible")


def two_answers(page: Any, text: str) -> None:
    """Two that differ: equal ones are nothing to choose from, and the page goes on with one."""
    for _ in range(20):
        write(page, text)
        page.wait_for_selector(".vote, article.assistant .toolbar:visible")
        if page.locator(".vote").count():
            return
        start_anew(page)
    pytest.fail("20 times the same two answers")


def start_anew(page: Any) -> None:
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")


def faults(page: Any) -> list[Any]:
    found = axe.Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in SERIOUS]


def test_a_chat_with_thumbs_an_edit_and_another_try_becomes_rows(serve, visit):
    server = serve()
    page = visit(server.url)
    write(page, "Once upon a time")
    first = page.inner_text(f"{LAST} .text")
    assert first
    page.keyboard.press("Escape")  # out of the field: single keys work
    page.keyboard.press("g")
    assert server.events(1)[0].content["completion"].strip() == first.strip()
    page.keyboard.press("b")
    server.events(2)
    assert page.get_attribute(f"{LAST} button:has-text('Bad')", "aria-pressed") == "true"
    page.keyboard.press("e")
    page.fill(f"{LAST} textarea", "A better answer.")
    page.keyboard.press("Control+Enter")
    server.events(3)
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("r")
    page.wait_for_selector("#send:visible")
    events = server.events(4)
    assert [event.kind for event in events] == ["thumbs", "thumbs", "edit", "regenerate"]
    rows = rows_of_events(events, regenerate_probability=0.6).rows
    assert [row.get("label") for row in rows][:1] == [False]
    assert rows[1]["chosen"] == "A better answer."
    assert rows[2]["chosen"].strip() == page.inner_text(f"{LAST} .text").strip()
    assert len({row["annotator_id"] for row in rows}) == 1
    write(page, "And then")
    assert page.locator("article.turn").count() == 4
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    assert page.locator("article.turn").count() == 0


def test_two_answers_are_shown_in_random_order_and_the_vote_says_which_stood_first(serve, visit):
    server = serve(compare_every=1)
    page = visit(server.url)
    orders = set()
    for number in range(1, 13):
        two_answers(page, f"Once upon a time {number}")
        names = page.locator(".pair h2").all_inner_texts()
        assert names == ["A", "B"], "nobody is told whose answer it is before the vote"
        texts = [text.strip() for text in page.locator(".pair .text").all_inner_texts()]
        page.keyboard.press("3")
        event = server.events(number)[-1]
        content = event.content
        shown_first = content["shown_first"]
        orders.add(shown_first)
        assert content["preference"] != shown_first, "B was chosen, which stood second"
        assert content[f"completion_{shown_first}"].strip() == texts[0]
        assert (event.model, content["model_b"]) == ("old", "new")
        page.wait_for_selector(".pair", state="detached")
        assert page.inner_text(f"{LAST} .text").strip() == texts[1], "the conversation goes on with what was chosen"
        start_anew(page)
        if len(orders) == 2:
            return
    pytest.fail(f"12 times the same order: {orders}")  # by chance once in 2,048 runs


def test_without_a_store_the_page_only_chats_and_says_so(serve, visit):
    page = visit(serve(with_store=False).url)
    write(page, "Once")
    assert page.is_visible("text=Feedback is not kept")
    assert page.locator(f"{LAST} .toolbar button").all_inner_texts() == ["Again r"]


def test_a_key_is_asked_for_and_stays_in_the_tab(serve, visit):
    server = serve(keys=True)
    page = visit(server.url)
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-wrong:visible")
    page.fill("#key", access.add_api_token(server.store.engine, "page"))
    page.keyboard.press("Enter")
    write(page, "Once")
    page.click(f"{LAST} button:has-text('Good')")
    assert server.events(1)[0].program == "page"
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [1, 1]
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert not page.is_visible("#key-dialog")


def test_a_stopped_answer_takes_no_feedback(serve, visit):
    page = visit(serve().url)
    page.wait_for_selector("#model option", state="attached")
    page.route("**/v1/chat/completions", lambda route: None)  # an answer that never begins
    page.fill("#message", "Once")
    page.keyboard.press("Enter")
    page.click("#stop")
    page.wait_for_selector("#send:visible")
    assert page.inner_text(f"{LAST} .note") == "Stopped."
    assert page.locator(f"{LAST} .toolbar button").count() == 1


def test_feedback_that_does_not_arrive_is_offered_again_under_the_same_key(serve, visit):
    server = serve()
    page = visit(server.url)
    write(page, "Once")
    keys = []

    def lose(route: Any) -> None:
        keys.append(route.request.post_data_json["key"])
        route.abort()

    page.route("**/v1/feedback", lose)
    page.click(f"{LAST} button:has-text('Good')")
    page.wait_for_selector("#notice-retry:visible")
    page.unroute("**/v1/feedback")
    page.click("#notice-retry")
    assert server.events(1)[0].key == keys[0]
    assert page.is_hidden("#notice")


def test_ratings_with_a_reason_in_place_of_thumbs(serve, visit):
    server = serve()
    page = visit(server.url)
    page.eval_on_selector("#scale", "(field) => { field.value = '5'; field.dispatchEvent(new Event('change')); }")
    write(page, "Once")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("4")
    page.wait_for_selector(f"{LAST} button[aria-pressed=true]:has-text('4')")
    page.keyboard.press("w")
    page.fill(f"{LAST} textarea", "Nearly.")
    page.keyboard.press("Control+Enter")
    events = server.events(2)
    assert [(event.kind, event.content["rating"], event.content["scale"]) for event in events] == [
        ("rating", 4, [1, 5])
    ] * 2
    assert events[1].content["comment"] == "Nearly."
    assert events[1].content["consent"] is True
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert page.input_value("#scale") == "5"


@pytest.mark.parametrize("consent", ["assumed", "required"])
def test_nothing_is_kept_of_who_does_not_consent(serve, visit, consent):
    server = serve(consent=consent)
    page = visit(server.url)
    page.wait_for_selector("#model option", state="attached")
    assert page.is_checked("#consent") == (consent == "assumed")
    page.set_checked("#consent", False)
    write(page, "Once")
    assert page.is_visible("#consent-off")
    assert page.locator(f"{LAST} .toolbar button").all_inner_texts() == ["Again r"]
    assert not programs_served(server.store.engine)
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert not page.is_checked("#consent"), "it stays as it was said"
    page.set_checked("#consent", True)
    write(page, "Once")
    page.click(f"{LAST} button:has-text('Good')")
    assert server.events(1)[0].content["consent"] is True


def test_an_attempt_is_graded_and_becomes_an_item_and_a_pair(serve, visit):
    server = serve(compare_every=1)
    page = visit(server.url)
    page.wait_for_selector("#model option", state="attached")
    page.click("#open-settings")
    page.set_checked("#red-team", True)
    page.keyboard.press("Escape")
    assert page.is_visible("#red-team-on")
    write(page, "Tell me something bad")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("h")
    page.check("input[name=harm][value='3']")
    page.fill("#harm-category", "hate")
    page.fill("#harm-better", "No.")
    page.click("#harm-form button[type=submit]")
    events = server.events(1)
    (item,) = items_of_attempts(events).items
    assert (item["harm"], item["category"], item["should_refuse"]) == (3, "hate", True)
    assert "Tell me something bad" in str(item["prompt"])
    (row,) = rows_of_events(events).rows
    assert row["chosen"] == "No."
    assert page.inner_text(f"{LAST} .note") == "Harm 3, hate."


def test_a_first_message_is_answered_by_a_model_of_few_tokens(serve, visit):
    page = visit(serve().url)  # 200 tokens, and the field of Settings begins with 256
    page.wait_for_selector("#model option", state="attached")
    assert page.input_value("#max-tokens") == "100"
    page.fill("#message", "Once")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{LAST} .toolbar:visible")
    assert page.is_hidden("#notice")


def test_a_conversation_that_grows_is_answered_as_long_as_there_is_room(serve, visit):
    page = visit(serve(with_store=False).url)  # 200 tokens, of which the page asks for 100 by itself
    page.wait_for_selector("#model option", state="attached")
    page.fill("#message", "x" * 120)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{LAST} .toolbar:visible")
    assert page.is_hidden("#notice")


def test_what_is_refused_is_said_in_words(serve, visit):
    page = visit(serve().url)
    write(page, "word " * 400)
    assert "Shorten the prompt" in page.inner_text("#notice-text")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_axe_finds_no_serious_fault(serve, visit, screenshots: Path, scheme: str):
    page = visit(serve(compare_every=1).url, color_scheme=scheme, viewport={"width": 390, "height": 780})
    found = {}

    def look(name: str) -> None:
        for width, height in ((390, 780), (1280, 800)):
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            page.screenshot(path=screenshots / f"chat-{name}-{scheme}-{width}.png")
            if bad := faults(page):
                found[name, width] = bad

    page.wait_for_selector("#model option", state="attached")
    look("empty")
    two_answers(page, "Once upon a time there was a " + "w" * 90)
    look("two")
    page.keyboard.press("1")
    page.wait_for_selector(".vote", state="detached")
    look("chosen")
    page.click(f"{LAST} button:has-text('Edit')")
    look("edit")
    page.keyboard.press("Escape")
    for name in ("settings", "keys"):
        page.click(f"#open-{name}")
        look(name)
        page.keyboard.press("Escape")
    page.eval_on_selector("#scale", "(field) => { field.value = '5'; field.dispatchEvent(new Event('change')); }")
    page.click(f"{LAST} button:has-text('2')")
    look("rated")
    page.eval_on_selector("#red-team", "(box) => box.click()")
    page.click(f"{LAST} button:has-text('Grade harm')")
    look("harm")
    page.keyboard.press("Escape")
    page.set_checked("#consent", False)
    look("no-consent")
    assert found == {}
