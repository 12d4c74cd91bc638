from __future__ import annotations

import pytest
import torch

from rlhf.data.pack import Branch, Group, pack
from rlhf.models.policy import PolicyModel
from rlhf.models.value import ValueModel
from rlhf.training.experience import RolloutExperience
from tests.fixtures import toy

GROUPS = [
    Group([5, 6], [Branch([7, 8, 9]), Branch([10])], {"id": "a"}),
    Group([11], [Branch([12, 13])], {"id": "b"}),
    Group([14, 15, 16], [Branch([17]), Branch([18, 19]), Branch([20])], {"id": "c"}),
]
LENGTHS = [3, 1, 2, 1, 2, 1]


@pytest.fixture
def experience():
    return RolloutExperience(
        GROUPS,
        columns={"scores": torch.arange(6.0)},
        token_columns={"old": torch.arange(10.0), "ids": torch.tensor([7, 8, 9, 10, 12, 13, 17, 18, 19, 20])},
    )


def test_completions_and_tokens_know_where_they_belong(experience):
    assert experience.num_sequences == 6
    assert experience.group.tolist() == [0, 0, 1, 2, 2, 2]
    assert experience.score_seq.tolist() == [s for s, length in enumerate(LENGTHS) for _ in range(length)]


@pytest.mark.parametrize("numbers", [[0, 1, 2], [2, 0], [1], [2, 1, 0]])
def test_columns_travel_with_their_completions(experience, numbers):
    batch = experience.batch(numbers)
    batch.check()
    assert torch.equal(batch.token_columns["ids"], batch.score_token), "every token has the column of that very token"
    firsts = [0, 2, 3, 6]
    assert batch.columns["scores"].tolist() == [float(s) for n in numbers for s in range(firsts[n], firsts[n + 1])]


def test_steps_visit_every_group_once_in_order_and_in_micro_batches(experience):
    steps = list(experience.steps([2, 0, 1], groups_per_step=2, max_tokens=8))
    assert [[batch.num_groups for batch in step] for step in steps] == [[1, 1], [1]]  # 7 + 6 tokens are more than 8
    ids = [batch.score_token.tolist() for step in steps for batch in step]
    assert ids == [[17, 18, 19, 20], [7, 8, 9, 10], [12, 13]]


def test_numbers_of_all_tokens_come_in_order_however_they_are_cut(experience):
    for limit in (1, 8, 10**6):
        actual = experience.map(lambda batch: batch.score_token.double(), max_tokens=limit)
        assert actual.tolist() == experience.token_columns["ids"].tolist()


def test_it_goes_through_a_checkpoint(experience, tmp_path):
    torch.save(experience.state_dict(), tmp_path / "state.pt")
    back = RolloutExperience.from_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for mine, theirs in zip(
        experience.batches([1, 2, 0], max_tokens=8), back.batches([1, 2, 0], max_tokens=8), strict=True
    ):
        assert torch.equal(mine.tokens, theirs.tokens)
        assert torch.equal(mine.token_columns["old"], theirs.token_columns["old"])
        assert torch.equal(mine.columns["scores"], theirs.columns["scores"])
    assert [group.columns["id"] for group in back.groups] == ["a", "b", "c"]


@pytest.mark.parametrize("shared", [False, True])
def test_the_state_after_the_last_token_is_the_one_that_predicts_a_token_behind_it(shared):
    policy: PolicyModel = toy.build_policy()
    value = ValueModel.shared(policy, head="random") if shared else ValueModel.from_policy(policy, head="random")

    def values(batch):
        return value.values(batch, policy.score(batch, with_hidden=True).hidden if shared else None)

    longer = [
        Group(g.prefix, [Branch([*b.tokens, 30], [False] * len(b.tokens) + [True]) for b in g.branches]) for g in GROUPS
    ]
    with torch.no_grad():
        actual = values(pack(GROUPS).at_last_tokens())
        torch.testing.assert_close(actual, values(pack(longer)))
        assert len(actual) == 6
        assert float((actual - values(pack(GROUPS))[[2, 3, 5, 6, 8, 9]]).abs().min()) > 1e-4, "not the state before it"
