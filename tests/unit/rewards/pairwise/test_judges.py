from __future__ import annotations

import json

import pytest

from rlhf.config.judge_types.function_judge import REWARD_NAMES, RULES
from rlhf.config.judge_types.human_judge import HumanJudgeConfig
from rlhf.config.judges import JUDGE_TYPES, read_judge
from rlhf.errors import ConfigError, DataError, RewardError
from rlhf.rewards.pairwise import function_judge
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.jury import Jury
from rlhf.rewards.pairwise.votes import Pair, PairwiseJudge, Vote, judge_hash

HERE = "tests.unit.rewards.pairwise.test_judges"
PAIR = Pair(prompt="p", first="aaa", second="b")


def scored(prompts, completions, *, ended, scale=1.0):
    return [{"score": scale * (len(text) + 10 * end), "other": 1} for text, end in zip(completions, ended, strict=True)]


def first_wins(prompts, first, second, **columns):
    return [1 for _ in prompts]


def odd(prompts, first, second):
    return [2.0]


def first_of(judge, pair=PAIR):
    (vote,) = build_judge(judge).votes([pair])
    return vote.first


def test_the_table_of_rules_is_that_of_the_settings():
    assert tuple(function_judge.RULES) == RULES
    assert len({cls.type_name() for cls in JUDGE_TYPES}) == len(JUDGE_TYPES)


def test_rules_functions_and_kinds_of_reward_by_name():
    assert (first_of("longer"), first_of("shorter")) == (1.0, 0.0)
    assert first_of(f"{HERE}:scored") == 1.0
    assert (
        first_of(
            {"type": "function", "function": "exact"}, Pair(prompt="p", first="7", second="8", columns={"answer": "8"})
        )
        == 0.0
    )
    assert "exact" in REWARD_NAMES


def test_a_cut_completion_is_told_to_a_function_that_asks():
    assert first_of(f"{HERE}:scored", Pair(prompt="p", first="aaa", second="b", ended=(False, True))) == 0.0


def test_scores_within_the_band_are_a_tie():
    judge = {"type": "function", "function": f"{HERE}:scored", "arguments": {"scale": 0.01}}
    assert first_of({**judge, "tie_band": 0.019}) == 1.0
    assert first_of({**judge, "tie_band": 0.021}) == 0.5


def test_a_function_that_sees_both_is_asked_in_both_orders():
    judge = build_judge(f"{HERE}:first_wins")
    assert not judge.symmetric
    assert [vote.first for vote in judge.votes([PAIR, PAIR.swapped()])] == [1.0, 1.0]
    assert build_judge("longer").symmetric


def test_an_outcome_that_is_none_is_an_error_that_names_the_judge():
    with pytest.raises(RewardError, match="odd"):
        first_of(f"{HERE}:odd")


def test_another_argument_or_band_is_another_judge():
    judge = {"type": "function", "function": f"{HERE}:scored"}
    hashes = {
        judge_hash(build_judge(settings))
        for settings in (judge, {**judge, "tie_band": 1}, {**judge, "arguments": {"scale": 2}})
    }
    assert len(hashes) == 3


class Says:
    """A member of a jury."""

    symmetric = True

    def __init__(self, first, cost=0.0):
        self.name, self.identity, self.vote = str(first), {"says": first}, Vote(first=first, cost=cost)

    def votes(self, pairs, on_vote=None):
        return [self.vote for _ in pairs]


@pytest.mark.parametrize(
    ("members", "majority", "mean"),
    [
        ((1, 1, 0), 1.0, 2 / 3),
        ((1, 0, 0.5), 0.5, 0.5),
        ((0, 0, None), 0.0, 0.0),
        ((1, None, None), None, None),
        ((1, None), None, None),
        ((1, 0), 0.5, 0.5),
        ((1, 1, 0.5, 0.5), 0.5, 0.75),  # two of four are no majority
    ],
)
def test_a_jury_by_hand(members, majority, mean):
    for combine, expected in (("majority", majority), ("mean", mean)):
        jury = Jury([Says(first, cost=0.5) for first in members], combine=combine)
        assert isinstance(jury, PairwiseJudge)
        (vote,) = jury.votes([PAIR])
        assert vote.first == (None if expected is None else pytest.approx(expected))
        assert vote.cost == 0.5 * len(members)


def test_a_jury_s_members_are_settings_of_judges(tmp_path):
    path = tmp_path / "judge.yaml"
    path.write_text("type: jury\nmembers: [longer, {type: function, function: shorter}, longer]\n")
    assert first_of(str(path)) == 1.0
    with pytest.raises(ConfigError, match=r"members\.1\.typ"):
        read_judge({"type": "jury", "members": ["longer", {"typ": "function"}]})


def test_settings_may_be_changed_one_by_one(tmp_path):
    path = tmp_path / "judge.yaml"
    path.write_text("type: endpoint\nurl: http://h/v1\nmodel: m\n")
    judge = read_judge(str(path), ["model=other", "max_tokens=5"])
    assert (judge.model, judge.max_tokens, judge.url) == ("other", 5, "http://h/v1")
    assert read_judge(None, ["type=reward_model", "path=rm"]).tie_band == 0.1
    with pytest.raises(ConfigError, match="endpoint"):
        read_judge("http://h/v1")
    with pytest.raises(ConfigError, match="type"):
        read_judge({"type": "functoin"})


def vote(prompt, a, b, preference, **more):
    return {"prompt": prompt, "completion_a": a, "completion_b": b, "preference": preference, **more}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_votes_of_people_are_found_by_both_texts_in_either_order(tmp_path):
    rows = [vote("p", "aaa", "b", "a"), vote("p", "b", "aaa", "tie"), vote("q", "x", "y", "b")]
    judge = build_judge(HumanJudgeConfig(labels=write(tmp_path / "votes.jsonl", rows)))
    pairs = [PAIR, PAIR.swapped(), Pair(prompt="q", first="y", second="x"), Pair(prompt="q", first="x", second="z")]
    assert [v.first for v in judge.votes(pairs)] == [0.75, 0.25, 1.0, None]
    assert judge.symmetric


def test_chosen_and_rejected_are_votes_too(tmp_path):
    path = write(tmp_path / "pairs.jsonl", [{"prompt": "p", "chosen": "b", "rejected": "aaa"}])
    assert first_of({"type": "human", "labels": path}) == 0.0


def test_a_file_without_votes_and_settings_that_name_none_are_refused(tmp_path):
    with pytest.raises(DataError, match="prompts"):
        build_judge({"type": "human", "labels": write(tmp_path / "prompts.jsonl", [{"prompt": "p"}])})
    with pytest.raises(ConfigError, match="labels"):
        read_judge({"type": "human"})
    with pytest.raises(ConfigError, match="store"):
        build_judge({"type": "human", "store": str(tmp_path / "none.db")})


def test_votes_of_a_preference_store(tmp_path):
    pytest.importorskip("sqlalchemy")
    from rlhf.store import PreferenceStore
    from rlhf.store.items import ItemJudgment
    from rlhf.store.record import record_judgments
    from rlhf.store.values import Response, Task, TaskKind

    place = str(tmp_path / "votes.db")
    with PreferenceStore(place) as store:
        store.add_tasks(
            [
                Task(id="1", kind=TaskKind.PAIRWISE, prompt="p", responses=[Response(text="aaa"), Response(text="b")]),
                Task(id="2", kind=TaskKind.GRADED5, prompt="q", responses=[Response(text="x"), Response(text="y")]),
                Task(id="3", kind=TaskKind.BINARY, prompt="r", responses=[Response(text="x")]),
            ]
        )
        values = {"1": {"preference": "a"}, "2": {"grade": -2}, "3": {"label": True}}
        record_judgments(
            store, [(task, ItemJudgment(annotator="ann", value=value, where="here")) for task, value in values.items()]
        )
    judge = build_judge({"type": "human", "store": place})
    assert [v.first for v in judge.votes([PAIR, Pair(prompt="q", first="x", second="y")])] == [1.0, 0.0]


@pytest.fixture
def short_template(tmp_path):
    """That fits into the context of a tiny model."""
    path = tmp_path / "short.txt"
    path.write_text("{prompt} {first} {second}")
    return str(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A language model, and a reward model made of it."""
    from rlhf.models.policy import PolicyModel
    from rlhf.models.reward import RewardModel
    from tests.fixtures.tiny import build_llama, build_tokenizer

    folder = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer()
    build_llama(vocab_size=len(tokenizer)).save_pretrained(folder / "lm")
    tokenizer.save_pretrained(folder / "lm")
    RewardModel.from_policy(PolicyModel.from_pretrained(str(folder / "lm"))).save_pretrained(folder / "rm")
    return folder


def test_a_reward_model_judges_by_its_scores_and_its_band(models):
    from rlhf.models.reward import RewardModel
    from rlhf.rewards.learned import LearnedReward

    path = str(models / "rm")
    first, second = LearnedReward(RewardModel.from_pretrained(path))(["p", "p"], ["aaa", "b"])
    assert first != second
    assert first_of({"type": "reward_model", "path": path, "tie_band": 0}) == float(first > second)
    assert first_of({"type": "reward_model", "path": path, "tie_band": 2 * abs(first - second)}) == 0.5
    assert build_judge(path).tie_band == 0.1, "a folder stands for a reward model"


def test_a_local_model_that_says_nothing_that_can_be_read_has_no_verdict(models, tmp_path):
    template = tmp_path / "short.txt"
    template.write_text("{prompt} {first} {second}")
    settings = {"type": "local", "path": str(models / "lm"), "max_tokens": 4, "template": str(template)}
    judge = build_judge(settings, cache=tmp_path / "v.jsonl")
    votes = judge.votes([PAIR, PAIR.swapped()])
    assert [v.first for v in votes] == [None, None]
    again = build_judge(settings, cache=tmp_path / "v.jsonl")
    assert again.votes([PAIR]) == votes[:1]
    assert "model" not in vars(again.judge), "it is not even loaded where all verdicts are there"


def test_a_local_model_s_words_are_read_as_those_of_an_endpoint(models, short_template, monkeypatch):
    from types import SimpleNamespace

    from rlhf.models.policy import PolicyModel

    seen = []

    def generate(self, prompts, **settings):
        seen.extend(prompts)
        return [[SimpleNamespace(text="so\n[[B]]", truncated=place == 1)] for place, _ in enumerate(prompts)]

    monkeypatch.setattr(PolicyModel, "generate", generate)
    judge = build_judge({"type": "local", "path": str(models / "lm"), "template": short_template, "max_tokens": 20})
    assert [v.first for v in judge.votes([PAIR, PAIR])] == [0.0, None]
    assert seen[0][0]["role"] == "user", "its chat template is used"


def test_a_pair_that_is_too_long_for_a_local_judge_has_no_verdict_and_the_others_have(
    models, short_template, monkeypatch
):
    from types import SimpleNamespace

    from rlhf.models.policy import PolicyModel

    monkeypatch.setattr(
        PolicyModel,
        "generate",
        lambda self, prompts, **settings: [[SimpleNamespace(text="[[A]]", truncated=False)] for _ in prompts],
    )
    judge = build_judge({"type": "local", "path": str(models / "lm"), "template": short_template, "max_tokens": 20})
    long = Pair(prompt="p", first="a b " * 2000, second="c")
    told = []
    votes = judge.votes([PAIR, long, PAIR], lambda place, vote: told.append(place))
    assert [vote.first for vote in votes] == [1.0, None, 1.0]
    assert "context" in votes[1].reason
    assert told == [0, 1, 2]


def test_a_copy_of_a_model_is_the_same_judge_and_other_weights_are_another(models, tmp_path):
    import shutil

    def identity(folder):
        return judge_hash(build_judge({"type": "local", "path": str(folder)}))

    copy = shutil.copytree(models / "lm", tmp_path / "copy")
    assert identity(copy) == identity(models / "lm")
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    assert identity(copy) != identity(models / "lm")
