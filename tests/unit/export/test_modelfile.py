from __future__ import annotations

from rlhf.export.modelfile import turn_template
from tests.fixtures.tiny import build_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def with_template(template: str):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_fixed_texts_around_messages_become_a_template_of_go():
    template = turn_template(with_template(CHATML), bos="")
    assert template is not None
    assert template.turns["system"] == ("<|im_start|>system\n", "<|im_end|>\n")
    assert template.answer == "<|im_start|>assistant\n"
    assert template.in_go() == (
        "{{- range .Messages }}"
        '{{ if eq .Role "system" }}<|im_start|>system\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "assistant" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n'
        "{{ end }}{{ end }}<|im_start|>assistant\n"
    )


def test_bos_is_left_to_llama_cpp():
    template = turn_template(build_tokenizer(), bos="<bos>")
    assert template is not None
    assert template.turns["user"] == ("Question: ", "\n")
    assert template.turns["assistant"] == ("Answer: ", "<eos>")


def test_a_role_that_is_refused_is_left_out():
    template = turn_template(
        with_template("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML), ""
    )
    assert template is not None
    assert template.turns.keys() == {"user", "assistant"}


def test_a_template_that_counts_its_messages_is_none_of_fixed_texts():
    counting = "{% for m in messages %}{{ loop.index }}{{ m['role'] + m['content'] + ';' }}{% endfor %}"
    assert turn_template(with_template(counting), bos="") is None


def test_a_template_that_drops_old_messages_is_none():
    last = "{{ messages[-1]['role'] + ':' + messages[-1]['content'] }}{% if add_generation_prompt %}A{% endif %}"
    assert turn_template(with_template(last), bos="") is None


def test_a_text_that_go_would_read_as_its_own_is_not_written():
    template = turn_template(with_template(CHATML.replace("<|im_end|>", "' + '{' + '{' + '")), bos="")
    assert template is not None
    assert template.in_go() is None
