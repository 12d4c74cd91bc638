"""Fields that a chat template leaves out: all of them are found, none is invented, and what is trained is what is shown."""

from __future__ import annotations

import contextlib
import json
import re

import pytest

from rlhf.data.chat import chat_format
from rlhf.data.contracts import RowError
from rlhf.data.datasets import GRPODataset, SFTDataset
from rlhf.data.pack import pack
from rlhf.data.token_view import view_rows
from rlhf.data.tokenization import lost_fields_allowed
from rlhf.errors import UnknownNameError
from tests.fixtures.chat_templates import READ, TEMPLATES, losses, made_dialogue
from tests.unit.data.conftest import CHATML, build_tokenizer
from tests.unit.data.test_chat import trl_templates

ALL = ["content", "reasoning", "tool_calls", "tools"]
SPECIAL = ("<bos>", "<eos>", "<|im_end|>", "<|end|>", "<|call|>")
ASKED = {"role": "user", "content": "who"}


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(
        special=SPECIAL, bos_token="<bos>", eos_token="<eos>", additional_special_tokens=list(SPECIAL[2:])
    )


def made(template, seed):
    # Harmony's templates take thoughts under their key alone; a tag in the content is text to them.
    return made_dialogue(seed, think_tags=template != "harmony")


def measured(chat, row):
    lost = set()
    for arrival in chat.arrivals(row["messages"], row, "f:1"):
        mark = arrival.mark
        call = re.match(r"tool_calls\[(\d)\]", mark.key)
        if not arrival.arrives and not (call and mark.key.endswith("name")):
            lost.add((mark.message, f"call{call[1]}" if call else mark.field))
    return lost


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_loss_is_found_and_none_invented_on_200_made_dialogues(tokenizer, name):
    chat = chat_format(tokenizer, TEMPLATES[name])
    num_losing = 0
    for seed in range(200):
        row, words = made(name, seed)
        text = chat.render(row["messages"], row, "f:1")
        missing = {at for word, at in words.of.items() if word not in text}
        expected = losses(name, row, words)
        assert missing == expected, "the rule of the fixture is what its template does"
        assert measured(chat, row) == expected, (seed, row)
        num_losing += bool(expected)
    assert 30 < num_losing < 190, "rows that lose something and rows that do not"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_data_set_refuses_exactly_the_rows_that_lose_something(tokenizer, name):
    for seed in range(60):
        row, words = made(name, seed)
        expected = losses(name, row, words)
        fields = {"tool_calls" if field.startswith("call") else field for _, field in expected}
        if not expected:
            continue
        with pytest.raises(RowError, match=r"allow_lost_fields: \[" + ".*".join(sorted(fields))):
            SFTDataset([row], tokenizer, chat_template=TEMPLATES[name])
        kept = sorted(fields)[:-1]
        with pytest.raises(RowError, match="leaves out"):
            SFTDataset([row], tokenizer, chat_template=TEMPLATES[name], allow_lost_fields=kept)


def data_set(row, tokenizer, options):
    """None for a dialogue whose turns the template rewrites, so that they can't be found without marks."""
    with contextlib.suppress(RowError):
        return SFTDataset([row], tokenizer, **options)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_shown_as_trained_is_what_is_scored_and_what_the_assistant_says(tokenizer, name):
    num_seen = 0
    for seed in range(60):
        row, words = made(name, seed)
        options = {"chat_template": TEMPLATES[name], "allow_lost_fields": ALL}
        data = data_set(row, tokenizer, options)
        if name == "qwen_old" and data is None:
            continue
        (view,) = view_rows([row], tokenizer, **options)
        (sequence,) = view.sequences
        trained = [token.id for token in sequence.tokens if token.is_trained]
        assert trained == pack([data[0]]).score_token.tolist()
        said = tokenizer.decode(trained)
        of_assistant = {n for n, message in enumerate(row["messages"]) if message["role"] == "assistant"}
        lost = losses(name, row, words)
        expected = {word for word, at in words.of.items() if at[0] in of_assistant and at not in lost}
        assert {word for word in words.of if word in said} == expected
        assert data.report.lost_fields == bool(lost)
        num_seen += 1
    assert num_seen > 15


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking", "reasoningContent"])
def test_what_the_assistant_thought_is_handed_to_the_key_that_the_template_reads(tokenizer, name, key):
    chat = chat_format(tokenizer, TEMPLATES[name])
    messages = [ASKED, {"role": "assistant", "content": "me", key: "why not"}]
    (_, after) = chat.handed_over(messages, {}, "f:1")
    assert after == {"role": "assistant", "content": "me", READ[name] or key: "why not"}
    assert ("why not" in chat.render(messages, {}, "f:1")) == (READ[name] is not None)


@pytest.mark.parametrize(
    ("name", "form"), [("qwen_old", None), ("qwen_new", dict), ("harmony", dict), ("deepseek", str)]
)
def test_arguments_of_calls_are_given_in_the_form_that_the_template_writes_as_they_are(tokenizer, name, form):
    chat = chat_format(tokenizer, TEMPLATES[name])
    arguments = {"city": "Rome", "days": 3}
    for given in (arguments, json.dumps(arguments)):
        call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": given}}
        messages = [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]
        taken = chat.handed_over(messages, {}, "f:1")[1]["tool_calls"][0]["function"]["arguments"]
        assert isinstance(taken, form or type(given))
        assert (json.loads(taken) if isinstance(taken, str) else taken) == arguments
        assert r"\"" not in chat.render(messages, {}, "f:1"), "JSON inside JSON"
    assert call["function"]["arguments"] is given, "the row is left as it was"


def test_a_plain_dialogue_is_handed_over_untouched(tokenizer):
    chat = chat_format(tokenizer, CHATML)
    messages = [ASKED, {"role": "assistant", "content": "me", "weight": 1}]
    assert chat.handed_over(messages, {}, "f:1") is messages


def test_one_layout_is_measured_once(tokenizer, monkeypatch):
    chat = chat_format(tokenizer, CHATML)
    rendered = []
    render = tokenizer.apply_chat_template
    monkeypatch.setattr(tokenizer, "apply_chat_template", lambda *a, **k: rendered.append(a) or render(*a, **k))
    for number in range(20):
        chat.arrivals([ASKED, {"role": "assistant", "content": f"number {number}"}], {}, "f:1")
    assert len(rendered) == 1
    chat.arrivals([ASKED, {"role": "assistant", "content": "<think>a</think>b"}], {}, "f:1")
    assert len(rendered) == 2


def test_two_different_thoughts_of_one_message_are_refused(tokenizer):
    row = {"messages": [ASKED, {"role": "assistant", "content": "me", "reasoning": "a", "thinking": "b"}]}
    with pytest.raises(RowError, match=r"message 2 has ('reasoning' and 'thinking'|'thinking' and 'reasoning')"):
        SFTDataset([row], tokenizer, chat_template=TEMPLATES["harmony"])
    row["messages"][1]["thinking"] = "a"
    assert len(SFTDataset([row], tokenizer, chat_template=TEMPLATES["harmony"])) == 1


def test_prompts_are_looked_at_too(tokenizer):
    said = {"role": "assistant", "content": "me", "reasoning": "as I am"}
    row = {"prompt": [ASKED, said, ASKED]}
    with pytest.raises(RowError, match="reasoning of message 2"):
        GRPODataset([row], tokenizer, chat_template=TEMPLATES["qwen_new"])
    data = GRPODataset([row], tokenizer, chat_template=TEMPLATES["qwen_new"], allow_lost_fields=["reasoning"])
    assert data.report.lost_fields == 1
    assert "as I am" not in data[0].text


def test_what_a_stage_allows_holds_for_every_data_set_made_inside(tokenizer):
    row = {"messages": [ASKED, {"role": "assistant", "content": "<think>a</think>me"}]}
    with lost_fields_allowed(["reasoning"]):
        assert SFTDataset([row], tokenizer, chat_template=TEMPLATES["deepseek"]).report.lost_fields == 1
        with pytest.raises(RowError):
            SFTDataset([row], tokenizer, chat_template=TEMPLATES["deepseek"], allow_lost_fields=[])
    with pytest.raises(RowError):
        SFTDataset([row], tokenizer, chat_template=TEMPLATES["deepseek"])
    with pytest.raises(UnknownNameError, match="reasonings"):
        SFTDataset([row], tokenizer, allow_lost_fields=["reasonings"])


def test_a_thought_that_the_prompt_opened_is_found(tokenizer):
    row = {"messages": [ASKED, {"role": "assistant", "content": "a thought</think>me"}]}
    with pytest.raises(RowError, match="reasoning of message 2"):
        SFTDataset([row], tokenizer, chat_template=TEMPLATES["deepseek"])


def test_a_turn_that_the_templates_marks_leave_untrained_is_refused(tokenizer):
    template = (
        "{% for m in messages %}{{ m.role + ':' }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}<|im_end|>"
        "{% elif m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    call = {"function": {"arguments": {"city": "Rome"}}}
    messages = [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "sun"},
                {"role": "assistant", "content": "sunny"}]  # fmt: skip
    with pytest.raises(RowError, match=r"no token of tool_calls.* of message 2 would be trained"):
        SFTDataset([{"messages": messages}], tokenizer, chat_template=template)


def test_a_turn_of_which_the_template_writes_nothing_is_refused(tokenizer):
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    row = {"messages": [ASKED, {"role": "assistant", "content": ""}]}
    with pytest.raises(RowError, match="no token of the row would be trained"):
        SFTDataset([row], tokenizer, chat_template=template)


def test_a_template_that_minds_the_words_is_asked_field_by_field(tokenizer):
    template = (
        "{% for m in messages %}{% if m.role == 'user' and m.content != 'who' %}{{ raise_exception('not a question of mine') }}{% endif %}"
        "{{ m.role + ':' }}{{ m.content if m.role == 'user' else '...' }}<|im_end|>{% endfor %}"
    )
    chat = chat_format(tokenizer, template)
    (asked, said) = chat.arrivals([ASKED, {"role": "assistant", "content": "me"}], {}, "f:1")
    assert (asked.arrives, said.arrives) == (True, False)


# -- the templates of real models, as TRL ships them


@pytest.mark.oracle
@pytest.mark.skipif(not trl_templates(), reason="TRL is not installed (dev extra), and the templates are its own")
def test_on_templates_of_real_models_what_is_measured_as_lost_is_what_is_missing(tokenizer):
    num_taken = num_losing = 0
    for path in trl_templates():
        chat = chat_format(tokenizer, path.read_text(encoding="utf-8"))
        for seed in range(6):
            row, words = made_dialogue(seed, several_calls=False)
            try:
                text = chat.render(row["messages"], row, "f:1")
            except RowError:
                continue  # no system message, no tools, or pictures only
            missing = {at for word, at in words.of.items() if word not in text}
            assert measured(chat, row) == missing, (path.stem, seed, text)
            num_taken += 1
            num_losing += bool(missing)
    assert num_taken > 200
    assert 50 < num_losing < num_taken
