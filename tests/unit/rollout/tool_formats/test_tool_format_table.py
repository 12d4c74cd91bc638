"""Calls of tools in the words of each family of models: what is read, and what is refused."""

from __future__ import annotations

import typing

import pytest

from rlhf.config.environments import ToolFormatName
from rlhf.errors import ModelError, UnknownNameError
from rlhf.rollout.tool_formats import TOOL_FORMATS, MalformedCallError, choose_tool_format
from tests.fixtures import tiny
from tests.fixtures.tool_templates import HARMONY, LLAMA3, MISTRAL, QWEN

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALC = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"e": {"type": "string"}}}},
}
TOOLS = {"add": ADD, "calc": CALC}


def calls(family, text):
    return [(call.name, dict(call.arguments)) for call in TOOL_FORMATS[family].calls(text, TOOLS)]


def test_the_names_of_recipes_are_those_of_the_table():
    assert {*typing.get_args(ToolFormatName)} == {"auto", *TOOL_FORMATS}


@pytest.mark.parametrize(
    ("family", "text", "wanted"),
    [
        ("hermes", 'So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>', [("add", {"a": 1})]),
        (
            "hermes",
            '<think>not <tool_call>{}</think><tool_call>{"name":"add","arguments":{}}</tool_call>'
            '<tool_call>{"name":"calc","arguments":{"e":"2"}}</tool_call>',
            [("add", {}), ("calc", {"e": "2"})],
        ),
        ("llama3", '{"name": "add", "parameters": {"a": 1}}<|eot_id|>', [("add", {"a": 1})]),
        ("llama3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}<|eom_id|>', [("add", {"a": 1})]),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "123456789"}]</s>', [("add", {"a": 1})]),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]calc[ARGS]{"e": "2"}</s>', [("add", {"a": 1}), ("calc", {"e": "2"})]),
        ("mistral", '[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{"a": 1}</s>', [("add", {"a": 1})]),
        (
            "harmony",
            "<|channel|>analysis<|message|>I must add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
            '<|constrain|>json<|message|>{"a": 1}<|call|>',
            [("add", {"a": 1})],
        ),
        ("harmony", ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>', [("add", {"a": 1})]),
        ("harmony", "<|channel|>analysis to=python<|message|>{}<|call|>", [("python", {})]),
        ("plain", "Let me see: calc(37*45)=", [("calc", {"e": "37*45"})]),
        ("plain", "itcalc(1)=", [("calc", {"e": "1"})]),
        ("plain", "add(a=-1)=", [("add", {"a": -1})]),
        ("plain", "divide(a=1)=", [("divide", {})]),
    ],
)  # fmt: skip
def test_calls_are_read(family, text, wanted):
    assert calls(family, text) == wanted


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "The answer is 3.<|im_end|>"),
        ("hermes", '<think>perhaps <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
        ("llama3", "The answer is 3.<|eot_id|>"),
        ("llama3", '{"answer": 3}<|eot_id|>'),
        ("mistral", "The answer is 3.</s>"),
        ("harmony", "<|channel|>final<|message|>to=functions.add is how it goes.<|return|>"),
        ("plain", "answer 3"),
        ("plain", "calc(1)= 1"),
        ("plain", "(1)="),
        ("plain", ")="),
        ("plain", "calc(1)2)="),
    ],
)
def test_a_turn_without_a_call_has_none(family, text):
    assert calls(family, text) == []


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}'),
        ("hermes", '{"name": "add"}</tool_call>'),
        ("hermes", "<tool_call>add(1)</tool_call>"),
        ("hermes", '<tool_call>{"name": "add"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": "1"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {}, "id": 1}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>'),
        ("hermes", f"<tool_call>{'[' * 5000}</tool_call>"),
        ("llama3", '{"name": "add", "parameters": {"a": 1}'),
        ("llama3", '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {}}'),
        ("llama3", "<|python_tag|>print(1)"),
        ("llama3", '{"type": "function", "name": "add", "parameters": {"a": 1}}'),
        ("llama3", 'Here: <|python_tag|>{"name": "add", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] add(1)"),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral", '[TOOL_CALLS] [{"name": "add"}]'),
        ("mistral", "[TOOL_CALLS]add[ARGS]1"),
        ("harmony", "<|channel|>commentary to=functions.add<|message|>{"),
        ("harmony", "<|channel|>commentary to=functions.add<|message|>1<|call|>"),
        ("harmony", '<|channel|>commentary to=functions.add {"a": 1}<|call|>'),
        ("harmony", '<|channel|>commentary to=functions.add<|message|>{"a": 1}<|return|>'),
        ("harmony", '<|channel|>commentary<|message|>{"a": 1}<|call|>'),
        ("harmony", '<|channel|>commentary to=functions.add<|message|>{"a": 1}<|call|> and'),
        (
            "harmony",
            '<|channel|>commentary to=functions.add<|message|>{"a": 1}<|call|>'
            '<|channel|>commentary to=functions.add<|message|>{"a": 2}<|call|>',
        ),
        ("plain", "add(1)="),
        ("plain", "add(a=b)="),
        ("plain", "add(**{})="),
        ("plain", "add(a=)="),
        ("plain", "add(a=1, a=2)="),
        ("plain", "add(a={[]: 1})="),
    ],
)
def test_a_call_that_is_not_well_written_is_refused(family, text):
    with pytest.raises(MalformedCallError, match=r".\.$"):
        calls(family, text)


@pytest.mark.parametrize(
    ("template", "wanted"), [(QWEN, "hermes"), (LLAMA3, "llama3"), (MISTRAL, "mistral"), (HARMONY, "harmony")]
)
def test_the_family_is_read_off_the_chat_template(template, wanted):
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = template
    assert choose_tool_format("auto", tokenizer, has_messages=True) == wanted
    assert choose_tool_format("auto", tokenizer, has_messages=False) == "plain"
    assert choose_tool_format("plain", tokenizer, has_messages=True) == "plain"


def test_a_template_of_no_family_is_refused():
    tokenizer = tiny.build_tokenizer()
    with pytest.raises(ModelError, match="none that is known"):
        choose_tool_format("auto", tokenizer, has_messages=True)
    tokenizer.chat_template = QWEN + "{# <function= #}"
    with pytest.raises(ModelError, match=r"environment\.tool_format"):
        choose_tool_format("auto", tokenizer, has_messages=True)
    with pytest.raises(UnknownNameError):
        choose_tool_format("yaml", tokenizer, has_messages=True)
