"""Rows that Python gives where a file could be named."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.config.sft import SFTConfig
from rlhf.data.datasets import SFTDataset
from rlhf.data.read import open_rows
from rlhf.data.streaming import StreamingSFTDataset
from rlhf.errors import DataError
from rlhf.pipeline.provenance import made_from
from rlhf.pipeline.validate import check
from rlhf.training.sft import SFTTrainer
from tests.fixtures import toy

CODE = """
drawn = []


class Rows:
    def __iter__(self):
        for number in range({count}):
            drawn.append(number)
            yield {{"prompt": f"q{{number}}", "completion": f" a{{number}}"}}


class Stateful(Rows):
    made = 0

    def __init__(self):
        Stateful.made += 1
        self.at = 0

    def __iter__(self):
        while self.at < {count}:
            drawn.append(self.at)
            self.at += 1
            yield {{"prompt": f"q{{self.at - 1}}", "completion": f" a{{self.at - 1}}"}}

    def state_dict(self):
        return {{"at": self.at}}

    def load_state_dict(self, state):
        self.at = state["at"]


def bad():
    yield {{"prompt": "q", "completion": " a"}}
    yield {{"question": "q"}}


def breaks():
    yield {{"text": "a"}}
    raise KeyError("shard 7")


def number():
    return 5
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "rows_of_mine.py"
    path.write_text(CODE.format(count=30), encoding="utf-8")
    return path


def stream(code, name="Stateful", **options):
    return StreamingSFTDataset(f"{code}:{name}", toy.TOKENIZER, shuffle_buffer=4, seed=3, **options)


def tokens(groups):
    return [group.branches[0].tokens for group in groups]


def test_rows_of_a_class_are_those_of_a_file(code, tmp_path):
    rows = [{"prompt": f"q{n}", "completion": f" a{n}"} for n in range(30)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    of_file = SFTDataset(str(path), toy.TOKENIZER)
    for name in ("Rows", "Stateful"):
        sftdataset = SFTDataset(f"{code}:{name}", toy.TOKENIZER)
        assert tokens(sftdataset) == tokens(of_file)
    assert sftdataset[0].columns["id"] == "Stateful:row 1"
    assert len(SFTDataset([str(path), f"{code}:Rows"], toy.TOKENIZER)) == 60


@pytest.mark.parametrize("name", ["Rows", "Stateful"])
@pytest.mark.parametrize("taken", [1, 5, 8, 29])
def test_a_stream_goes_on_where_it_was(code, name, taken):
    whole = stream(code, name)
    two_epochs = tokens([*whole, *whole])
    first = stream(code, name)
    items = iter(first)
    before = tokens([next(items) for _ in range(taken)])
    state = json.loads(json.dumps(first.state_dict()))
    second = stream(code, name)
    second.load_state_dict(state)
    assert before + tokens([*second, *second]) == two_epochs


def test_rows_with_a_state_are_not_drawn_twice(code):
    first = stream(code)
    items = iter(first)
    for _ in range(13):
        next(items)
    state = first.state_dict()
    assert state["cursor"] == [0, {"row": 12, "state": {"at": 12}}]
    second = stream(code)
    module = second._stream.parts[0].read.__self__._made.__iter__.__globals__
    module["drawn"].clear()
    second.load_state_dict(state)
    rest = list(second)
    assert module["drawn"] == list(range(12, 30))
    assert len(rest) == 30 - 13


def test_one_object_gives_all_blocks_of_an_epoch(code):
    data = stream(code)
    made = data._stream.parts[0].read.__self__._made
    before = made.made
    list(data)
    assert made.made == before + 1


def test_what_is_wrong_is_named_with_its_row(code):
    with pytest.raises(DataError, match=r"rows_of_mine\.py:bad:row 2"):
        SFTDataset(f"{code}:bad", toy.TOKENIZER)
    with pytest.raises(DataError, match=r"breaks.*after 1 rows.*KeyError.*shard 7"):
        list(open_rows(f"{code}:breaks"))
    with pytest.raises(DataError, match=r"int, .*iterable"):
        list(open_rows(f"{code}:number"))
    with pytest.raises(DataError, match="'Rows'"):
        open_rows(f"{code}:Row")
    with pytest.raises(DataError, match="can't be imported"):
        open_rows("no_such_package.rows:Rows")


def recipe(data):
    tree = {"name": "a", "stages": {"s": {"kind": "sft", "model": "embedded", "data": data, "max_steps": 1}}}
    return RecipeConfig.of(tree)


def test_their_code_is_part_of_the_key_of_a_stage(code):
    (code.parent / "helper.py").write_text("x = 1\n", encoding="utf-8")
    code.write_text("import helper\n" + code.read_text(encoding="utf-8"), encoding="utf-8")
    asked = recipe(f"{code}:Rows")
    before = made_from("s", asked, {}).key
    assert made_from("s", asked, {}).key == before
    (code.parent / "helper.py").write_text("x = 2\n", encoding="utf-8")
    helped = made_from("s", asked, {}).key
    code.write_text(code.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert len({before, helped, made_from("s", asked, {}).key}) == 3


def test_validate_looks_for_the_name_without_running_it(code):
    def problems(name):
        return [
            problem.key
            for problem in check.find_problems(recipe(f"{code}:{name}"), deep=False)
            if problem.level == "error"
        ]

    assert problems("Rows") == []
    assert problems("Row") == ["data"]


def test_a_run_that_broke_off_ends_with_the_weights_of_one_that_did_not(code, tmp_path):
    def trained(where, *, breaks_at=None):
        policy, config = toy.build_policy(), SFTConfig(max_steps=8, batch_size=3, save_every=2, learning_rate=1e-2)
        trainer = SFTTrainer(policy, config, stream(code), checkpoint_dir=where)
        taken = trainer.rows.take

        def take(step):
            if step == breaks_at:
                raise KeyboardInterrupt
            return taken(step)

        trainer.rows.take = take
        trainer.train()
        return toy.weights_of(trainer)

    whole = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "broken", breaks_at=5)
    assert toy.largest_difference(whole, trained(tmp_path / "broken")) == 0
