from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rlhf.data.chat import chat_format, has_generation_marks, render_dialogue, render_prompt
from rlhf.data.contracts import RowError
from rlhf.errors import ConfigError, ModelError, UnknownNameError
from tests.unit.data.conftest import CHATML, DISTINCT, FORGETFUL, MARKED, build_tokenizer

DIALOGUE = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": "bye"},
]


def scored(chat, messages, **given):
    dialogue = render_dialogue(chat, messages, columns={}, where="f:1", **given)
    return [dialogue.text[start:end] for start, end in dialogue.spans]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["derived", "marked"])
def test_the_assistants_turns_are_found_with_their_end_mark(plain_tokenizer, template):
    chat = chat_format(plain_tokenizer, template)
    assert has_generation_marks(template) == (template is MARKED)
    assert scored(chat, DIALOGUE) == ["hello<|im_end|>", "bye<|im_end|>"]
    assert scored(chat, DIALOGUE, first=4) == ["bye<|im_end|>"]


def test_white_space_that_ends_a_turn_is_kept_where_nothing_else_does(plain_tokenizer):
    template = (
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    assert scored(chat_format(plain_tokenizer, template), DIALOGUE) == ["hello\n\n", "bye\n\n"]


def test_consecutive_turns_of_the_assistant_are_each_found(plain_tokenizer):
    chat = chat_format(plain_tokenizer, CHATML)
    messages = [*DIALOGUE[:3], {"role": "tool", "content": "42"}, {"role": "assistant", "content": "it is 42"}]
    assert scored(chat, messages) == ["hello<|im_end|>", "it is 42<|im_end|>"]


def test_a_template_that_rewrites_earlier_turns_is_refused_by_name_of_the_row(plain_tokenizer):
    with pytest.raises(RowError, match=r"^f:1: .*content of message 3 "):
        scored(chat_format(plain_tokenizer, FORGETFUL), DIALOGUE)
    chat = chat_format(plain_tokenizer, FORGETFUL, allow_lost_fields=["content"])
    with pytest.raises(RowError, match=r"^f:1: .*first 3 messages.* 'hello.*' .*'\.\.\."):
        scored(chat, DIALOGUE)
    assert scored(chat, DIALOGUE, first=4) == [" bye\n"], "what is not scored may be rewritten"


@pytest.mark.parametrize("marked", [False, True])
def test_a_question_that_asks_with_more_than_the_dialogue_holds_ends_where_they_part(plain_tokenizer, marked):
    begin, end = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
    template = (
        "{% for m in messages %}{{ m['role'] }}:" + begin + "{{ m['content'] }}<|im_end|>" + end + "\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
    )
    chat = chat_format(plain_tokenizer, template)
    dialogue = render_dialogue(chat, DIALOGUE, columns={}, where="f:1", first=4)
    assert [dialogue.text[start:stop] for start, stop in dialogue.spans] == ["bye<|im_end|>"]
    assert dialogue.question_differs
    assert not render_dialogue(chat_format(plain_tokenizer, CHATML), DIALOGUE, columns={}, where="f:1").question_differs


def test_a_question_whose_history_is_rendered_otherwise_is_refused(plain_tokenizer):
    for template in (CHATML, MARKED):
        chat = chat_format(plain_tokenizer, "{{ messages | length }} messages:\n" + template)
        with pytest.raises(RowError, match=r"first 4 messages.* '4 mess.*' .*'5 mess"):
            scored(chat, DIALOGUE, first=4)


def test_a_mark_around_the_header_is_cut_to_the_completion(plain_tokenizer):
    template = (
        "{% for m in messages %}{% generation %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endgeneration %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert scored(chat_format(plain_tokenizer, template), DIALOGUE, first=4) == ["bye<|im_end|>"]


def test_a_template_that_wants_parts_and_gets_strings_is_refused(plain_tokenizer):
    template = (
        "{% for m in messages %}{{ m['role'] }}:"
        "{% for part in m['content'] %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    chat = chat_format(plain_tokenizer, template)
    with pytest.raises(RowError, match="content of messages 1, 2, 3"):
        scored(chat, DIALOGUE)
    with pytest.raises(RowError, match="content of messages 1 and 2"):
        render_prompt(chat, DIALOGUE[:2], columns={}, where="f:1")
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in DIALOGUE]
    assert scored(chat, parts) == ["hello<|im_end|>", "bye<|im_end|>"]


def test_a_dialogue_without_the_assistant_is_refused(plain_tokenizer):
    with pytest.raises(RowError, match=r"assistant.*'system', 'user'"):
        scored(chat_format(plain_tokenizer, CHATML), DIALOGUE[:2])


def test_a_template_that_raises_names_the_row(plain_tokenizer):
    chat = chat_format(plain_tokenizer, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RowError, match=r"f:1: .*roles must alternate"):
        scored(chat, DIALOGUE)


def test_a_prompt_ends_where_the_completion_begins(plain_tokenizer):
    chat = chat_format(plain_tokenizer, CHATML)
    asked = render_prompt(chat, DIALOGUE[:2], columns={}, where="f:1")
    assert asked.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    begun = render_prompt(chat, DIALOGUE[:3], columns={}, where="f:1")
    assert begun.endswith("<|im_start|>assistant\nhello"), "a prompt may begin the answer"


def test_without_a_template_the_way_out_is_named(plain_tokenizer):
    with pytest.raises(ModelError, match=r"no chat template"):
        scored(chat_format(plain_tokenizer), DIALOGUE)


def test_the_built_in_template_is_used_only_when_asked_for(plain_tokenizer):
    chat = chat_format(plain_tokenizer, "plain")
    dialogue = render_dialogue(chat, DIALOGUE, columns={}, where="f:1")
    assert dialogue.text == (
        "<bos>\n\nSystem: be kind\n\nHuman: hi\n\nAssistant: hello<eos>\n\nHuman: and?\n\nAssistant: bye<eos>"
    )
    assert [dialogue.text[a:b] for a, b in dialogue.spans] == [" hello<eos>", " bye<eos>"]
    asked = render_prompt(chat, DIALOGUE[:4], columns={}, where="f:1")
    assert dialogue.text.startswith(asked)
    with pytest.raises(UnknownNameError, match=r"'plian'.*'plain'"):
        chat_format(plain_tokenizer, "plian")


def test_the_built_in_template_needs_eos():
    tokenizer = build_tokenizer(bos_token="<bos>", pad_token="<pad>")
    with pytest.raises(ConfigError, match="no EOS"):
        chat_format(tokenizer, "plain")


def test_a_template_may_stand_in_a_file(plain_tokenizer, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text(CHATML)
    assert scored(chat_format(plain_tokenizer, str(path)), DIALOGUE) == ["hello<|im_end|>", "bye<|im_end|>"]


def test_tools_and_template_arguments_come_from_columns():
    tokenizer = build_tokenizer(**DISTINCT)
    chat = chat_format(tokenizer, "{{ tools[0]['function']['name'] if tools }}{{ mood }}|" + CHATML)
    tools = '[{"type": "function", "function": {"name": "add"}}]'
    columns = {"tools": tools, "chat_template_kwargs": {"mood": "glad"}}
    assert render_prompt(chat, DIALOGUE[:2], columns=columns, where="f:1").startswith("addglad|")
    with pytest.raises(RowError, match="column 'tools' is neither"):
        render_prompt(chat, DIALOGUE[:2], columns={"tools": "add"}, where="f:1")
    with pytest.raises(RowError, match=r"'chat_template_kwargs'.*list"):
        render_prompt(chat, DIALOGUE[:2], columns={"chat_template_kwargs": [1]}, where="f:1")


# -- the templates of real models, as TRL ships them


def trl_templates():
    spec = importlib.util.find_spec("trl")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return sorted(path for folder in folders for path in Path(folder, "chat_templates").glob("*.jinja"))


ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<turn|>",
    "<|return|>",
    "<|eot|>",
    "<|END_OF_TURN_TOKEN|>",
)
WANT_PARTS = ("idefics3", "llava_next", "smolvlm")
"""Models that look at pictures: content is a list of parts."""
REWRITES = ("gptoss", "phi3", "phi3_5", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6")
"""Templates without marks that render the assistant's earlier turns otherwise than its last."""


@pytest.fixture(scope="module")
def tokenizer_of_many_ends():
    special = ("<bos>", "<eos>", *ENDS)
    return build_tokenizer(special=special, bos_token="<bos>", eos_token="<eos>", additional_special_tokens=list(ENDS))


@pytest.mark.oracle
@pytest.mark.skipif(not trl_templates(), reason="TRL is not installed (dev extra), and the templates are its own")
@pytest.mark.parametrize("path", trl_templates(), ids=lambda path: path.stem)
def test_real_templates_give_the_assistants_words_and_nothing_else(tokenizer_of_many_ends, path):
    chat = chat_format(tokenizer_of_many_ends, path.read_text())
    dialogue = [*DIALOGUE[1:3], {"role": "user", "content": "and?"}, {"role": "assistant", "content": "bye now"}]
    if path.stem.removesuffix("_training") in WANT_PARTS:
        with pytest.raises(RowError, match=r"leaves out content of messages|refuses this dialogue"):
            scored(chat, dialogue, first=3)
        return
    last = "".join(scored(chat, dialogue, first=3))
    assert "bye now" in last
    for other in ("hello", "and?", "<|start_header_id|>", "<|im_start|>", "<start_of_turn>"):
        assert other not in last, "only the completion is scored"
    if path.stem in REWRITES:
        with pytest.raises(RowError, match="first 2 messages"):
            scored(chat, dialogue)
        return
    whole = "".join(scored(chat, dialogue))
    assert whole.index("hello") < whole.index("bye now")
    assert "and?" not in whole
    unmarked = path.with_name(path.name.replace("_training", ""))
    if unmarked != path:  # the template without marks must give the same, but for what TRL adds to end a turn
        derived = "".join(scored(chat_format(tokenizer_of_many_ends, unmarked.read_text()), dialogue, first=3))
        assert last.replace("<|user|>", "").replace("\n", "") == derived.replace("\n", "")
