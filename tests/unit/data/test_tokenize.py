from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.data.contracts import RowError
from rlhf.data.row_kinds import parse_row
from rlhf.data.row_report import TokenizationReport
from rlhf.data.texts import preference_texts, sft_texts, single_texts
from rlhf.data.tokenization import tokenization
from rlhf.data.tokenize import tokenize_rows
from rlhf.errors import ConfigError, DataError, ModelError, UnknownNameError
from tests.unit.data.conftest import CHATML, DISTINCT, MARKED, build_tokenizer

DIALOGUE = [
    {"role": "user", "content": "Where does the fox live?"},
    {"role": "assistant", "content": "in a den"},
    {"role": "user", "content": "and the cow?"},
    {"role": "assistant", "content": "as far as I know"},
]
TEXT = st.text(alphabet="the cow eats grass\n.,é天🙂", max_size=25)


def groups(rows, tokenizer, texts_of=sft_texts, *, report=None, **how):
    rows = [parse_row(row, where=f"f:{number}", row_id=f"f:{number}") for number, row in enumerate(rows, 1)]
    made = tokenize_rows(rows, tokenization(tokenizer, **how), texts_of, report or TokenizationReport())
    return [stored.item(row) for row, stored in made]


def one(row, tokenizer, texts_of=sft_texts, **how):
    (group,) = groups([row], tokenizer, texts_of, **how)
    return group


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def scored_text(tokenizer, group, branch=0):
    branch = group.branches[branch]
    kept = (
        branch.tokens if branch.scored is None else [t for t, s in zip(branch.tokens, branch.scored, strict=True) if s]
    )
    return tokenizer.decode(kept)


# -- the boundary


def test_prompt_ids_are_a_prefix_and_eos_is_scored(tokenizer):
    group = one({"prompt": "Where does the fox", "completion": " live?"}, tokenizer)
    assert group.prefix == [tokenizer.bos_token_id, *ids(tokenizer, "Where does the fox")]
    assert group.branches[0].tokens == [*ids(tokenizer, " live?"), tokenizer.eos_token_id]
    assert group.branches[0].scored is None
    assert group.columns == {"id": "f:1", "truncated": False}


def test_a_boundary_inside_a_token_moves_left_and_is_counted(merging_tokenizer):
    # Trained on "the cow eats grass " without regard to words, the tokenizer takes "the cow eats" in one piece.
    alone, whole = ids(merging_tokenizer, "now the cow"), ids(merging_tokenizer, "now the cow eats")
    assert whole[: len(alone)] != alone, "the fixture must merge across the boundary"
    report = TokenizationReport()
    (group,) = groups([{"prompt": "now the cow", "completion": " eats"}], merging_tokenizer, report=report)
    assert report.boundary_moved == 1
    assert merging_tokenizer.decode(group.prefix) == "now "
    assert merging_tokenizer.decode(group.branches[0].tokens) == "the cow eats<eos>"


@given(prompt=TEXT, completion=TEXT)
@settings(deadline=None, max_examples=150)
@pytest.mark.parametrize("kind", ["tokenizer", "plain_tokenizer", "merging_tokenizer"])
def test_no_token_is_ever_lost_and_the_boundary_is_the_last_one_shared(request, kind, prompt, completion):
    tokenizer = request.getfixturevalue(kind)
    whole = ids(tokenizer, prompt + completion)
    group = one({"prompt": prompt, "completion": completion}, tokenizer)
    tokens = [*group.prefix, *group.branches[0].tokens]
    bos = [tokenizer.bos_token_id]
    assert tokens in ([*bos, *whole, tokenizer.eos_token_id], [*whole, tokenizer.eos_token_id])
    body = group.prefix[1:] if tokens[:1] == bos else group.prefix
    alone = ids(tokenizer, prompt)
    assert alone[: len(body)] == body, "the prefix is how the prompt begins"
    if len(body) < min(len(alone), len(whole)):
        assert alone[len(body)] != whole[len(body)], "and ends no earlier than it must"


@given(prompt=TEXT, chosen=TEXT, rejected=TEXT)
@settings(deadline=None, max_examples=150)
@pytest.mark.parametrize("kind", ["tokenizer", "merging_tokenizer"])
def test_both_sides_of_a_pair_hang_on_one_prefix(request, kind, prompt, chosen, rejected):
    tokenizer = request.getfixturevalue(kind)
    group = one({"prompt": prompt, "chosen": chosen, "rejected": rejected}, tokenizer, preference_texts)
    for branch, completion in zip(group.branches, (chosen, rejected), strict=True):
        tokens = [*group.prefix, *branch.tokens]
        if tokens[0] == tokenizer.bos_token_id:
            tokens = tokens[1:]
        assert tokens == [*ids(tokenizer, prompt + completion), tokenizer.eos_token_id]


def test_an_empty_prompt_begins_with_bos(plain_tokenizer, one_special_tokenizer):
    group = one({"text": "the fox"}, plain_tokenizer)
    assert group.prefix == [plain_tokenizer.bos_token_id]
    assert group.branches[0].tokens == [*ids(plain_tokenizer, "the fox"), plain_tokenizer.eos_token_id]
    pair = one({"prompt": "", "chosen": "the fox", "rejected": "a cow"}, one_special_tokenizer, preference_texts)
    assert pair.prefix == [one_special_tokenizer.bos_token_id]


def test_without_bos_the_first_token_is_the_prefix():
    tokenizer = build_tokenizer(eos_token="<eos>")
    first, *rest = ids(tokenizer, "the fox")
    group = one({"text": "the fox"}, tokenizer)
    assert (group.prefix, group.branches[0].tokens) == ([first], [*rest, tokenizer.eos_token_id])
    with pytest.raises(RowError, match=r"f:1: .*prompt.*BOS"):
        one({"prompt": "", "chosen": "the fox", "rejected": "a cow"}, tokenizer, preference_texts)


def test_a_prompt_that_merges_with_its_completions_is_not_called_empty():
    tokenizer = build_tokenizer(merges=("ab", "ac"), eos_token="<eos>")
    with pytest.raises(RowError, match=r"prompt 'a'.*beginning of a completion") as caught:
        one({"prompt": "a", "chosen": "bo", "rejected": "co"}, tokenizer, preference_texts)
    assert "empty" not in str(caught.value)
    with pytest.raises(RowError, match=r"prompt 'a'.*whole completion") as caught:
        one({"prompt": "a", "completion": "b"}, tokenizer, add_eos=False)
    assert "empty" not in str(caught.value)
    with_bos = build_tokenizer(merges=("ab", "ac"), eos_token="<eos>", bos_token="<bos>")
    pair = one({"prompt": "a", "chosen": "bo", "rejected": "co"}, with_bos, preference_texts)
    assert [with_bos.decode(branch.tokens) for branch in pair.branches] == ["abo<eos>", "aco<eos>"]


def test_bos_that_stands_in_the_text_is_not_doubled(tokenizer):
    group = one({"prompt": "<bos>the", "completion": " fox"}, tokenizer)
    assert group.prefix == [tokenizer.bos_token_id, *ids(tokenizer, "the")]


# -- the end


def test_eos_is_appended_once(tokenizer):
    eos = tokenizer.eos_token_id
    assert one({"prompt": "the", "completion": " fox<eos>"}, tokenizer).branches[0].tokens == [
        *ids(tokenizer, " fox"),
        eos,
    ]
    bare = one({"prompt": "the", "completion": " fox"}, tokenizer, add_eos=False)
    assert bare.branches[0].tokens == ids(tokenizer, " fox")


def test_a_pad_that_is_eos_is_still_scored(one_special_tokenizer):
    assert one_special_tokenizer.pad_token_id == one_special_tokenizer.eos_token_id
    group = one({"prompt": "the", "completion": " fox"}, one_special_tokenizer)
    assert group.branches[0].tokens[-1] == one_special_tokenizer.eos_token_id
    assert group.branches[0].scored is None


def test_what_is_unusual_about_the_end_is_counted(tokenizer):
    report = TokenizationReport()
    rows = [{"prompt": "the", "completion": ""}, {"prompt": "the", "completion": " fox<eos> and"}]
    first, _ = groups(rows, tokenizer, report=report)
    assert first.branches[0].tokens == [tokenizer.eos_token_id]
    assert (report.empty_completions, report.eos_inside, report.no_eos) == (1, 1, 0)
    report = TokenizationReport()
    groups([{"prompt": "the", "completion": " fox"}], tokenizer, report=report, add_eos=False)
    assert report.no_eos == 1


def test_an_empty_completion_without_eos_is_refused(tokenizer):
    with pytest.raises(RowError, match=r"f:1: .*empty.*add_eos=True"):
        one({"prompt": "the", "completion": ""}, tokenizer, add_eos=False)


def test_a_tokenizer_without_eos_is_refused():
    tokenizer = build_tokenizer(bos_token="<bos>")
    with pytest.raises(ModelError, match="EOS"):
        tokenization(tokenizer)
    assert one({"prompt": "the", "completion": " fox"}, tokenizer, add_eos=False).branches[0].tokens


# -- dialogues


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["derived", "marked"])
def test_only_the_assistants_words_are_scored(plain_tokenizer, template):
    group = one({"messages": DIALOGUE}, plain_tokenizer, chat_template=template)
    assert scored_text(plain_tokenizer, group) == "in a den<|im_end|>as far as I know<|im_end|>"
    assert plain_tokenizer.decode(group.prefix).endswith("<|im_start|>assistant\n")
    assert plain_tokenizer.decode(group.branches[0].tokens).endswith("as far as I know<|im_end|>"), (
        "the template's last line break is not a part of the completion, and no EOS follows an end-of-turn token"
    )


OPEN_ENDED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_end|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>{% endif %}"
)
"""Nothing ends a turn but the next one's header, so white space at its end belongs to it."""


@given(words=st.lists(TEXT.filter(str.strip), min_size=2, max_size=5))
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("trim_offsets", [False, True])
@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (OPEN_ENDED, "")], ids=["closed", "open"])
def test_the_mask_is_exact_whatever_is_said(template, end, trim_offsets, words):
    tokenizer = TRIMMING[trim_offsets]
    messages = []
    for word in words:
        messages += [{"role": "user", "content": word[::-1]}, {"role": "assistant", "content": word}]
    group = one({"messages": messages}, tokenizer, chat_template=template)
    assert scored_text(tokenizer, group) == "".join(word + end for word in words) + ("" if end else "<eos>")


TRIMMING = {trim: build_tokenizer(trim_offsets=trim, **DISTINCT) for trim in (False, True)}


def test_what_score_means(chat_tokenizer):
    row = {"prompt": DIALOGUE[:3], "completion": DIALOGUE[3:]}
    last = "as far as I know<|im_end|>"
    assert scored_text(chat_tokenizer, one(row, chat_tokenizer)) == last
    assert scored_text(chat_tokenizer, one(row, chat_tokenizer, train_on="assistant")) == "in a den<|im_end|>" + last
    whole = one(row, chat_tokenizer, train_on="all")
    text = chat_tokenizer.apply_chat_template(DIALOGUE, tokenize=False)
    assert len(whole.prefix) == 1
    assert [*whole.prefix, *whole.branches[0].tokens][: len(ids(chat_tokenizer, text))] == ids(chat_tokenizer, text)
    plain = one({"prompt": "the", "completion": " fox"}, chat_tokenizer, train_on="all")
    assert plain.num_scored == len(ids(chat_tokenizer, "the fox")) + 1
    with pytest.raises(RowError, match=r"train_on='assistant'.*roles"):
        one({"prompt": "the", "completion": " fox"}, chat_tokenizer, train_on="assistant")


def test_a_template_without_end_marks_gets_eos(plain_tokenizer):
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    group = one({"messages": DIALOGUE[:2]}, plain_tokenizer, chat_template=template)
    assert plain_tokenizer.decode(group.branches[0].tokens) == " in a den\n<eos>"


def test_a_header_that_merges_with_the_first_word_moves_the_boundary(plain_tokenizer):
    # "assistant: " and "in" tokenize as "assistant", ":", " in": the space belongs to the word.
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    report = TokenizationReport()
    (group,) = groups([{"messages": DIALOGUE}], plain_tokenizer, report=report, chat_template=template)
    assert report.boundary_moved == 1
    assert scored_text(plain_tokenizer, group) == " in a den<eos> as far as I know<eos>"


def test_what_follows_a_moved_boundary_is_completion_in_dialogues_too():
    # Merges cd, bc, ab in this order: "abc" is [a][bc], "abcd" is [ab][cd]. Asked with "x abc", answered with "d", the
    # last token in common is the space; [ab] and [cd] are the completion, as they are where there is one turn only.
    template = "{% for m in messages %}{{ m['content'] }}{{ '<eos>' if m['role'] == 'assistant' }}{% endfor %}"
    tokenizer = build_tokenizer(merges=("cd", "bc", "ab"), eos_token="<eos>")
    turn = [{"role": "user", "content": "x abc"}, {"role": "assistant", "content": "d"}]
    group = one({"messages": turn * 2}, tokenizer, chat_template=template)
    assert tokenizer.convert_ids_to_tokens(group.prefix) == ["x", "Ġ"]
    assert tokenizer.convert_ids_to_tokens(group.branches[0].tokens) == [
        "ab", "cd", "<eos>", "x", "Ġ", "ab", "cd", "<eos>",
    ]  # fmt: skip
    assert group.branches[0].scored == [True, True, True, False, False, False, True, True]
    alone = one({"messages": turn}, tokenizer, chat_template=template)
    assert (alone.prefix, alone.branches[0].tokens) == (group.prefix, group.branches[0].tokens[:3])
    assert alone.branches[0].scored is None


def test_dialogues_that_part_at_the_users_turn_share_what_came_before(chat_tokenizer):
    first = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    sides = [
        [*first, {"role": "user", "content": word}, {"role": "assistant", "content": word * 2}] for word in ("a", "b")
    ]
    group = one({"chosen": sides[0], "rejected": sides[1]}, chat_tokenizer, preference_texts)
    assert [scored_text(chat_tokenizer, group, n) for n in (0, 1)] == ["aa<|im_end|>", "bb<|im_end|>"]
    assert chat_tokenizer.decode(group.prefix).startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes")


def test_a_prompt_that_ends_with_the_assistant_is_refused(chat_tokenizer):
    row = {"prompt": DIALOGUE[:2], "completion": DIALOGUE[3:]}
    with pytest.raises(RowError, match=r"prompt.*assistant"):
        one(row, chat_tokenizer)


def test_bad_rows_are_listed_when_asked(chat_tokenizer):
    rows = [parse_row({"messages": messages}, where=f"f:{n}") for n, messages in enumerate([DIALOGUE[:1], DIALOGUE])]
    report = TokenizationReport()
    made = tokenize_rows(rows, tokenization(chat_tokenizer), sft_texts, report, skip_bad_rows=True)
    assert [row.where for row, _ in made] == ["f:1"]
    assert [bad.where for bad in report.bad_rows] == ["f:0"]
    with pytest.raises(RowError, match=r"f:0: .*assistant"):
        tokenize_rows(rows, tokenization(chat_tokenizer), sft_texts, report)


# -- ids that a row brings along


def test_sampled_ids_are_taken_as_they_are(tokenizer):
    row = {
        "prompt": "the",
        "chosen": " fox",
        "rejected": " cow",
        "prompt_ids": [0, 9],
        "chosen_ids": [5, 6],
        "rejected_ids": [7],
    }
    group = one(row, tokenizer, preference_texts)
    assert (group.prefix, [b.tokens for b in group.branches]) == ([0, 9], [[5, 6], [7]])
    with pytest.raises(RowError, match=r"chosen_ids.*below"):
        one({**row, "chosen_ids": [10**6]}, tokenizer, preference_texts)


# -- lengths


def test_too_long_is_an_error_by_default(tokenizer):
    row = {"prompt": "the fox lives in a den", "completion": " as far as I know"}
    with pytest.raises(DataError, match=r"^f:1: .*\d+ tokens.*max_length is 4.*truncation="):
        one(row, tokenizer, max_length=4)
    with pytest.raises(DataError, match=r"^f:1: .*\d+ tokens.*max_prompt_length is 2"):
        one(row, tokenizer, max_prompt_length=2)


def test_each_policy_cuts_its_side_and_is_counted(tokenizer):
    row = {"prompt": "Where does the fox live?", "completion": " in a den"}
    whole = one(row, tokenizer)
    prompt, completion = whole.prefix, list(whole.branches[0].tokens)
    size = len(prompt) + len(completion)

    report = TokenizationReport()
    (kept,) = groups([row], tokenizer, report=report, max_length=size - 1, truncation="keep_start")
    assert (kept.prefix, kept.branches[0].tokens) == (prompt, completion[:-1])
    assert (report.truncated, report.no_eos, kept.columns["truncated"]) == (1, 1, True)

    (kept,) = groups([row], tokenizer, report=report, max_length=size - 1, truncation="keep_end")
    assert (kept.prefix, kept.branches[0].tokens) == ([prompt[0], *prompt[2:]], completion), "BOS stays"

    assert groups([row], tokenizer, report=report, max_length=size - 1, truncation="drop") == []
    assert report.dropped_too_long == 1
    assert one(row, tokenizer, max_length=size).columns["truncated"] is False


def test_a_completion_is_never_cut_from_the_left(tokenizer):
    row = {"prompt": "the", "completion": " fox lives in a den, as far as I know"}
    report = TokenizationReport()
    assert groups([row], tokenizer, report=report, max_length=3, truncation="keep_end") == []
    assert report.dropped_too_long == 1
    text = one({"text": row["completion"]}, tokenizer, max_length=4, truncation="keep_end")
    assert text.prefix == [tokenizer.bos_token_id]
    assert len(text.branches[0].tokens) == 3
    assert text.branches[0].tokens[-1] == tokenizer.eos_token_id


def test_both_sides_of_a_pair_are_cut_to_the_same_prompt(tokenizer):
    row = {"prompt": "Where does the fox live?", "chosen": " in a den", "rejected": " I hope this helps!"}
    group = one(row, tokenizer, preference_texts, max_length=9, truncation="keep_end")
    assert max(len(group.prefix) + len(branch.tokens) for branch in group.branches) == 9
    assert tokenizer.decode(group.branches[1].tokens) == " I hope this helps!<eos>"


def test_a_dialogue_whose_turns_are_all_cut_off_is_dropped(chat_tokenizer):
    report = TokenizationReport()
    made = groups([{"messages": DIALOGUE}], chat_tokenizer, report=report, max_length=5, truncation="keep_start")
    assert made == []
    assert report.dropped_too_long == 1


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"truncation": "left"}, UnknownNameError, "No truncation policy is called 'left'"),
        ({"train_on": "user"}, UnknownNameError, "train_on"),
        ({"max_length": 1}, ConfigError, "max_length is 1; wanted at least 2"),
        ({"max_prompt_length": 0}, ConfigError, "max_prompt_length is 0; wanted at least 1"),
    ],
)
def test_an_impossible_setting_is_refused(tokenizer, how, error, message):
    with pytest.raises(error, match=message):
        tokenization(tokenizer, **how)


def test_the_report_adds_up(tokenizer):
    report = TokenizationReport()
    rows = [{"prompt": "the", "completion": " fox", "label": True}] * 3
    made = groups(rows, tokenizer, single_texts, report=report)
    assert report.num_usable == 3
    assert report.num_tokens == sum(group.num_tokens for group in made)
    assert report.num_scored == sum(group.num_scored for group in made)
    assert TokenizationReport.from_dict(report.to_dict()) == report
    assert made[0].columns["label"] is True


def test_real_dialogues_keep_every_token(assets):
    from transformers import AutoTokenizer

    from rlhf.data.read import read_rows

    tokenizer = AutoTokenizer.from_pretrained(assets / "tokenizers" / "gpt2")
    rows = list(read_rows(assets / "hh_rlhf" / "helpful-base" / "test.jsonl.gz", limit=200))
    report = TokenizationReport()
    made = tokenize_rows(rows, tokenization(tokenizer), preference_texts, report)
    assert (report.num_usable, report.boundary_moved) == (200, 0)
    for row, stored in made:
        for (tokens, _), text in zip(stored.branches, (row.chosen, row.rejected), strict=True):
            assert tokenizer.decode([*stored.prefix, *tokens]) == row.prompt + text + "<|endoftext|>"
