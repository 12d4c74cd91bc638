from __future__ import annotations

from rlhf.data.write import write_rows
from rlhf.feedback.training_overlap import known_completions, normalized, without_known


def test_texts_are_compared_without_case_white_space_and_forms_of_letters():
    assert normalized("  The\u00a0COW\n eats ") == normalized("the cow eats")
    assert normalized("\ufb01sh") == normalized("fish")
    assert normalized([{"role": "user", "content": "A"}, {"role": "user", "content": "B"}]) == normalized("a\nb")
    assert normalized("cow.") != normalized("cow")


def test_a_row_is_known_where_all_its_completions_are(tmp_path):
    file = tmp_path / "rows.jsonl"
    write_rows(
        file, [{"prompt": "q", "chosen": "x", "rejected": "y"}, {"prompt": "p", "completion": "z", "label": True}]
    )
    chat = tmp_path / "chat.jsonl"
    write_rows(chat, [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}])
    known = known_completions(str(file), str(chat))
    rows = [
        {"prompt": "Q", "completion": "X ", "label": True},
        {"prompt": "q", "chosen": "y", "rejected": "x"},
        {"prompt": "q", "chosen": "new", "rejected": "x"},
        {"prompt": "p", "completion": "x", "label": True},
        {
            "prompt": [{"role": "user", "content": "hi"}],
            "completion_a": "ho",
            "completion_b": "ho",
            "preference": "tie",
        },
    ]
    kept, number = without_known(rows, known)
    assert (kept, number) == ([rows[2], rows[3]], 3)
