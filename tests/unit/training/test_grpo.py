from __future__ import annotations

import math
import statistics

import pytest
import torch

from rlhf.config.policy_losses import POLICY_LOSSES
from rlhf.data.pack import Branch, Group, pack
from rlhf.losses import aggregate
from rlhf.rewards.types import ScoreResult
from rlhf.training.algorithm import Totals
from rlhf.training.grpo import RLOOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from rlhf.training.policy_objective import policy_losses
from tests.fixtures import toy


class Given:
    """Scores from a list, in order."""

    name = "given"

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def score(self, prompts, completions):
        return ScoreResult(self.scores[: len(completions)])


SCORES = [1.0, 2.0, 6.0, 0.0, 0.0, 3.0, 5.0, 5.0, 5.0, 1.0, 0.0, 0.0]


def test_a_group_of_equal_scores_teaches_nothing():
    trainer = toy.build_trainer("grpo", scorer=toy.Constant(0.7), kl={"coef": 0.0}, rollouts=3)
    before = toy.weights_of(trainer)
    result = trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), before) == 0.0
    assert result.metrics["grad_norm"] == 0.0
    metrics = Metrics()
    trainer.collect(0, metrics)
    assert metrics.result()["grpo/equal_groups_frac"] == 1.0
    assert metrics.result()["grpo/reward_std"] == 0.0


def test_every_token_of_a_completion_has_its_advantage_over_its_siblings():
    metrics = Metrics()
    trainer = toy.build_trainer("grpo", scorer=Given(SCORES), advantage="group_mean")
    experience = trainer.collect(0, metrics)
    # less the means of each three: 3, 1, 5 and 1/3
    expected = torch.tensor([-2.0, -1.0, 3.0, -1.0, -1.0, 2.0, 0.0, 0.0, 0.0, 2 / 3, -1 / 3, -1 / 3])
    torch.testing.assert_close(experience.token_columns["advantages"], expected[experience.score_seq])
    means = metrics.result()
    assert means["grpo/reward_mean"] == pytest.approx(sum(SCORES) / 12)
    assert means["grpo/advantage_mean"] == pytest.approx(0, abs=1e-6)
    assert means["grpo/equal_groups_frac"] == 0.25


def test_dividing_by_the_deviation_makes_groups_alike():
    trainer = toy.build_trainer("grpo", scorer=Given(SCORES))
    experience = trainer.collect(0, Metrics())
    firsts = [int((experience.score_seq == s).nonzero()[0]) for s in range(12)]
    by_group = experience.token_columns["advantages"][firsts].view(4, 3)
    assert by_group.std(dim=1).tolist() == pytest.approx([1, 1, 0, 1], abs=1e-3)


def test_a_penalty_in_the_reward_is_paid_by_the_whole_completion():
    trainer = toy.build_trainer(
        "grpo", scorer=toy.Constant(0.0), advantage="group_mean", kl={"where": "reward", "estimator": "k1", "coef": 0.5}
    )
    toy.change_weights(trainer.policy.model, by=0.2)
    experience = trainer.collect(0, Metrics())
    columns = experience.token_columns
    gap = torch.zeros(12).index_add(0, experience.score_seq, columns["old_logprobs"] - columns["ref_logprobs"])
    rewards = -0.5 * gap
    expected = rewards - rewards.view(4, 3).mean(1).repeat_interleave(3)
    torch.testing.assert_close(columns["advantages"], expected[experience.score_seq])


@pytest.mark.parametrize("how", ["token", "sequence", "constant"])
def test_the_loss_is_brought_to_one_number_as_asked(how):
    trainer = toy.build_trainer("grpo", scorer=Given(SCORES), aggregation=how, kl={"coef": 0.0}, advantage="group_mean")
    experience = trainer.collect(0, Metrics())
    # cut some completions short, so that the three ways differ
    for number, group in enumerate(experience.groups):
        for place, branch in enumerate(group.branches):
            object.__setattr__(branch, "tokens", branch.tokens[: 1 + (number + place) % 4])
    fresh = type(experience)(experience.groups)
    advantages = torch.tensor([-2.0, -1.0, 3.0, -1.0, -1.0, 2.0, 0.0, 0.0, 0.0, 2 / 3, -1 / 3, -1 / 3])
    old = fresh.map(trainer.policy.logprobs, max_tokens=10**6)
    fresh.token_columns.update(old_logprobs=old, ref_logprobs=old, advantages=advantages[fresh.score_seq])
    batches = fresh.batches(range(4), max_tokens=10)
    loss = float(sum(trainer.loss(b, Totals.of(batches), Metrics()).detach() for b in batches))
    # the ratio is 1 everywhere, so a token's loss is minus its advantage
    lengths = [1 + (s // 3 + s % 3) % 4 for s in range(12)]
    weighted = sum(n * a for n, a in zip(lengths, advantages.tolist(), strict=True))
    expected = {"token": -weighted / sum(lengths), "sequence": 0.0, "constant": -weighted / (12 * 5)}[how]
    assert loss == pytest.approx(expected, abs=1e-5)


def test_groups_stay_whole_when_a_rollout_is_cut_into_steps():
    trainer = toy.build_trainer("grpo", prompts_per_rollout=5, minibatch_size=6)
    steps = list(trainer.steps(0, trainer.collect(0, Metrics())))
    assert trainer.steps_per_phase == len(steps) == 6  # 2 epochs of 5 groups, 2 to a step
    sizes = [[batch.num_groups for batch in step] for step in steps]
    assert sizes == [[2], [2], [1]] * 2
    assert all(batch.num_sequences == 3 * batch.num_groups for step in steps for batch in step)


# ---- credit: each advantage, by hand. The group means of SCORES are 3, 1, 5 and 1/3 ----


def credit(**settings) -> torch.Tensor:
    """[S] advantage of each completion's first token, from SCORES in 4 groups of 3 unless told otherwise."""
    scorer = settings.pop("scorer", Given(SCORES))
    experience = toy.build_trainer("grpo", scorer=scorer, **settings).collect(0, Metrics())
    firsts = [int((experience.score_seq == s).nonzero()[0]) for s in range(experience.num_sequences)]
    return experience.token_columns["advantages"][firsts]


def test_leave_one_out_is_the_mean_of_the_others_and_a_multiple_of_the_groups_mean():
    actual = credit(advantage="leave_one_out")
    # 1 - (2 + 6) / 2 = -3, 2 - 3.5 = -1.5, 6 - 1.5 = 4.5
    assert actual[:3].tolist() == pytest.approx([-3.0, -1.5, 4.5])
    torch.testing.assert_close(actual, 3 / 2 * credit(advantage="group_mean"))


def test_one_deviation_for_the_whole_rollout_keeps_easy_groups_small():
    actual = credit(advantage="batch_std")
    centered = credit(advantage="group_mean")
    # squares of the centered scores: 4 + 1 + 9 + 1 + 1 + 4 + 0 + 4/9 + 1/9 + 1/9 = 20.6667, over 12 - 1
    torch.testing.assert_close(actual, centered / (math.sqrt(20.6666667 / 11) + 1e-4))


def test_the_whole_rollout_whitens_returns_over_all_its_tokens():
    settings = {"advantage": "batch", "group_size": 1, "prompts_per_rollout": 12}
    experience = toy.build_trainer("grpo", scorer=Given(SCORES), **settings).collect(0, Metrics())
    # a token's return is its completion's score, so a completion counts once for each of its tokens
    returns = [SCORES[sequence] for sequence in experience.score_seq.tolist()]
    mean, deviation = statistics.mean(returns), statistics.stdev(returns)
    expected = [(value - mean) / deviation for value in returns]
    assert experience.token_columns["advantages"].tolist() == pytest.approx(expected, rel=1e-5)


def test_the_whole_rollout_against_siblings_takes_the_groups_mean_first():
    experience = toy.build_trainer("grpo", scorer=Given(SCORES), advantage="batch", baseline="group").collect(
        0, Metrics()
    )
    centered = [-2.0, -1.0, 3.0, -1.0, -1.0, 2.0, 0.0, 0.0, 0.0, 2 / 3, -1 / 3, -1 / 3]
    returns = [centered[sequence] for sequence in experience.score_seq.tolist()]
    mean, deviation = statistics.mean(returns), statistics.stdev(returns)
    expected = [(value - mean) / deviation for value in returns]
    assert experience.token_columns["advantages"].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_penalty_in_the_reward_reaches_back_to_the_tokens_before_it():
    settings = {"advantage": "batch", "group_size": 1, "prompts_per_rollout": 12, "scorer": toy.Constant(0.0)}
    trainer = toy.build_trainer("grpo", kl={"where": "reward", "estimator": "k1", "coef": 0.5}, **settings)
    toy.change_weights(trainer.policy.model, by=0.2)
    columns = trainer.collect(0, Metrics()).token_columns
    penalty = 0.5 * (columns["old_logprobs"] - columns["ref_logprobs"]).view(12, 5)
    returns = -penalty.flip(1).cumsum(1).flip(1).reshape(-1)
    expected = (returns - returns.mean()) / returns.std()
    torch.testing.assert_close(columns["advantages"], expected, rtol=1e-4, atol=1e-5)


class Judging:
    """Scores by a function of (prompt id, completion); remembers what it was asked."""

    name = "judging"

    def __init__(self, verdict) -> None:
        self.verdict = verdict
        self.asked: list[list[str]] = []

    def score(self, prompts, completions):
        self.asked.append([prompt.id for prompt in prompts])
        scores = [self.verdict(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        return ScoreResult(scores, errors={n: "no idea" for n, score in enumerate(scores) if math.isnan(score)})


def first_token(prompt, completion) -> float:
    return float(completion.tokens[0])


def test_a_completion_is_measured_against_its_prompts_greedy_one_that_nothing_is_learned_from():
    judge, metrics = Judging(first_token), Metrics()
    trainer = toy.build_trainer("remax", scorer=judge, kl={"where": "none"})
    experience = trainer.collect(0, metrics)
    assert experience.num_sequences == 12
    assert [len(asked) for asked in judge.asked] == [12, 12]
    assert judge.asked[0] == judge.asked[1]
    batch = experience.batch(range(12))
    with torch.no_grad():
        logits = trainer.policy.model(input_ids=torch.tensor([list(experience.groups[0].prefix)])).logits[0, -1]
    sampled = float(experience.groups[0].branches[0].tokens[0])
    assert float(batch.token_columns["advantages"][0]) == sampled - float(logits.argmax())
    assert metrics.result()["remax/greedy_score_mean"] == pytest.approx(
        float(experience.columns["greedy_scores"].mean())
    )
    assert metrics.result()["remax/score_mean"] == pytest.approx(float(experience.columns["scores"].mean()))


def test_the_greedy_completion_is_judged_as_the_others_are():
    greedy = toy.build_trainer("remax", missing_eos_penalty=0.25, clip_score=0.5, scorer=toy.Constant(0.9)).collect(
        0, Metrics()
    )
    assert greedy.columns["greedy_scores"].tolist() == pytest.approx([0.5] * 12), "cut and limited like the samples"


def test_a_prompt_whose_greedy_completion_has_no_score_is_left_out_with_an_alarm():
    def verdict(prompt, completion):
        greedy = len(judge.asked) == 2
        return math.nan if greedy and prompt.id == judge.asked[0][2] else first_token(prompt, completion)

    judge, log = Judging(verdict), TrainingLogger()
    trainer = toy.build_trainer("remax", scorer=judge, log=log, prompts_per_rollout=6, max_unscored_frac=0.2)
    experience = trainer.collect(0, Metrics())
    ids = [group.columns["id"] for group in experience.groups]
    assert ids == judge.asked[0][:2] + judge.asked[0][3:]
    for place, name in enumerate(ids):
        greedy = trainer.collector.engine.generate(
            [p for p in trainer.prompts if p.id == name], num_samples=1, rollout_index=0, seed=0,
            sampling=trainer.config.sampling.updated(temperature=0.0),
        )  # fmt: skip
        assert float(experience.columns["greedy_scores"][place]) == first_token(None, greedy[0][0])
    (alarm,) = [event for event in log.read("alarm") if event["guard"] == "unscored"]
    assert "gave no score for 1 of 6" in alarm["message"]


# ---- dynamic sampling ----


def only_some_teach(prompt, completion) -> float:
    """Prompts of odd number score alike, whatever is said."""
    return 1.0 if int(prompt.id) % 2 else first_token(prompt, completion)


def test_groups_that_teach_nothing_are_replaced_by_the_next_prompts_of_the_cycle():
    judge, metrics = Judging(only_some_teach), Metrics()
    trainer = toy.build_trainer("dapo", scorer=judge)
    experience = trainer.collect(0, metrics)
    assert len(experience.groups) == 4
    assert all(int(group.columns["id"]) % 2 == 0 for group in experience.groups)
    rounds = [asked[::3] for asked in judge.asked]
    flat = [name for names in rounds for name in names]
    order = [prompt.id for prompt in trainer.next_prompts(0, len(flat))]
    assert flat == order, "each round goes on where the one before ended"
    means = metrics.result()
    assert means["rollout/rounds"] == len(rounds) > 1
    assert means["rollout/prompts_asked"] == len(flat)
    assert means["rollout/prompts_kept"] == 4
    assert trainer.asked_again == len(flat) - 4
    assert means["dapo/equal_groups_frac"] == sum(int(name) % 2 for name in flat) / len(flat) > 0, (
        "of all that were judged"
    )
    trainer.collect(1, Metrics())
    again = judge.asked[len(rounds)][::3]
    assert again == [prompt.id for prompt in trainer.next_prompts(len(flat), 4)]


def test_the_mean_score_is_that_of_everything_asked():
    judge, metrics = Judging(lambda p, c: 100.0 if int(p.id) % 2 else float(c.sample)), Metrics()
    experience = toy.build_trainer("dapo", scorer=judge, overlong=None).collect(0, metrics)
    assert float(experience.columns["scores"].mean()) == 1.0, "0, 1 and 2 of each group that teaches"
    everything = [100.0 if int(name) % 2 else 1.0 for asked in judge.asked for name in asked]
    assert metrics.result()["dapo/score_mean"] == pytest.approx(sum(everything) / len(everything))


def test_a_rollout_goes_on_with_the_groups_it_has():
    judge, metrics = Judging(lambda p, c: first_token(p, c) if p.id == "6" else 0.0), Metrics()
    trainer = toy.build_trainer("dapo", scorer=judge, prompts_per_rollout=8, max_sampling_rounds=1)
    experience = trainer.collect(0, metrics)
    assert {group.columns["id"] for group in experience.groups} == {"6"}
    assert metrics.result()["rollout/rounds"] == 2, "the first, and one more"
    assert [len(step) for step in trainer.steps(0, experience)] == [1, 1]
    trainer.train()


def test_a_prompt_that_comes_again_in_a_later_round_says_something_else():
    judge = Judging(lambda p, c: first_token(p, c) if len(judge.asked) == 2 else 0.0)
    trainer = toy.build_trainer("dapo", scorer=judge, prompts_per_rollout=8)
    trainer.collect(0, Metrics())
    said = []
    original = trainer.collector.engine.generate

    def generate(*args, **kwargs):
        groups = original(*args, **kwargs)
        said.append({g[0].prompt_id: [c.tokens for c in g] for g in groups})
        return groups

    trainer.collector.engine.generate = generate
    judge.asked.clear()
    trainer.collect(1, Metrics())
    assert said[0].keys() == said[1].keys()
    assert all(said[0][name] != said[1][name] for name in said[0])


def test_no_group_that_teaches_is_an_alarm_and_no_crash():
    log = TrainingLogger()
    trainer = toy.build_trainer("dapo", scorer=toy.Constant(1.0), log=log, max_sampling_rounds=2, overlong=None)
    before = toy.weights_of(trainer)
    result = trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), before) == 0.0
    assert result.steps == 8
    alarm, *_ = log.read("alarm")
    assert "all rewards in every group are equal" in alarm["message"]
    assert alarm["guard"] == "equal_rewards"


# ---- what teaches nothing, for each kind ----


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("dr_grpo", {}, "in every group"),
        ("rloo", {}, "in every group"),
        ("reinforce_pp", {}, "of the rollout"),
        ("reinforce_pp", {"group_size": 3, "prompts_per_rollout": 4}, "of the rollout"),
        ("reinforce_pp", {"group_size": 3, "prompts_per_rollout": 4, "baseline": "group"}, "in every group"),
        ("remax", {}, "and those of the greedy completions"),
    ],
)
def test_equal_scores_are_told_in_the_words_of_what_is_compared(name, settings, words):
    log = TrainingLogger()
    settings = {"kl": {"where": "none"}, "rollouts": 2, **settings}
    trainer = toy.build_trainer(name, scorer=toy.Constant(0.5), log=log, **settings)
    before = toy.weights_of(trainer)
    trainer.train()
    alarm, _ = [event for event in log.read("alarm") if event["guard"] != "off_policy"]
    assert f"all rewards {words} are equal in rollout 1" in alarm["message"]
    assert toy.largest_difference(toy.weights_of(trainer), before) == 0.0


def test_groups_that_agree_within_themselves_still_teach_where_all_are_compared():
    log = TrainingLogger()
    judge = Judging(lambda p, c: float(p.id))
    settings = {"group_size": 3, "prompts_per_rollout": 4, "kl": {"where": "none"}}
    toy.build_trainer("reinforce_pp", scorer=judge, log=log, **settings).train()
    assert log.read("alarm") == []
    toy.build_trainer("reinforce_pp", scorer=judge, log=log, baseline="group", **settings).train()
    assert {event["guard"] for event in log.read("alarm")} == {"equal_rewards"}


# ---- aggregation ----


def pushed_down(how: str) -> list[float]:
    """How hard each token of two wrong completions, of 1 and 4 tokens, is pushed down beside a good one."""
    lengths = [4, 1, 4]
    group = Group([3, 4], [Branch([5 + n] * length) for n, length in enumerate(lengths)])
    batch = pack([group])
    old = torch.full((9,), -2.0)
    advantages = torch.tensor([2.0] * 4 + [-1.0] + [-1.0] * 4)
    batch = batch.with_token_columns(old_logprobs=old, ref_logprobs=old, advantages=advantages)
    logprobs = old.clone().requires_grad_()
    totals = Totals.of([batch])
    losses = policy_losses(
        logprobs, batch, formula=POLICY_LOSSES["clip"], arguments={"clip_low": 0.2, "clip_high": 0.2}
    )
    aggregate(
        losses, batch.score_seq, how=how, num_tokens=totals.num_tokens, num_sequences=totals.num_sequences, constant=5.0
    ).backward()
    return logprobs.grad.tolist()


def test_a_wrong_answer_of_four_times_the_length_is_pushed_down_a_quarter_as_hard_under_sequence_alone():
    gradients = pushed_down("sequence")
    assert gradients[4] == pytest.approx(4 * gradients[5]), "GRPO's bias by length: long wrong answers get off lightly"
    for how in ("token", "constant"):
        gradients = pushed_down(how)
        assert gradients[4] == pytest.approx(gradients[5]), how


# ---- presets ----

FAMILY = ("grpo", *toy.GROUPS)


@pytest.mark.parametrize("name", FAMILY)
def test_a_first_step_has_ratio_1_and_kl_0_and_clips_nothing(name):
    log = TrainingLogger()
    toy.build_trainer(name, log=log, epochs_per_rollout=1, minibatch_size=12).train()
    assert log.read("alarm") == []
    (note,) = [event["message"] for event in log.read("note") if "Self-checks" in event["message"]]
    assert "first ratio's distance from 1" in note
    for event in log.read("metrics"):
        metrics = event["metrics"]
        assert metrics[f"{name}/ratio_mean"] == pytest.approx(1, abs=1e-5)
        assert metrics[f"{name}/kl_mean"] < 1e-10
        assert metrics.get(f"{name}/clip_frac", 0.0) == 0
        assert metrics["loss/ratio_overflows"] == 0
    assert log.read("metrics")[0]["metrics"][f"{name}/ref_kl"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_dropout_left_on_is_found_whatever_the_ratio_in_use(name):
    log = TrainingLogger()
    toy.build_trainer(name, log=log, dropout=0.5, rollouts=1).train()
    assert [m for event in log.read("alarm") if "first ratio" in (m := event["message"])]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*toy.GROUPS])
def test_every_member_of_the_family_raises_the_reward(name):
    log = TrainingLogger()
    size = (
        {"prompts_per_rollout": 32}
        if name in ("reinforce_pp", "remax")
        else {"group_size": 4, "prompts_per_rollout": 8}
    )
    if name == "gspo":
        size |= {"clip_low": 0.1, "clip_high": 0.1}
    toy.build_trainer(
        name,
        log=log,
        rollouts=40,
        minibatch_size=16,
        epochs_per_rollout=1,
        learning_rate=2e-2,
        guards="off",
        **size,
    ).train()
    scores = [e["metrics"][f"{name}/score_mean"] for e in log.read("metrics") if f"{name}/score_mean" in e["metrics"]]
    assert len(scores) == 40
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 0.15


def test_two_steps_of_one_rollout_see_the_same_whitening_as_one():
    """Whitened per step or per micro-batch, the two halves would each have mean 0."""
    settings = {"group_size": 1, "prompts_per_rollout": 12, "scorer": Given(SCORES), "microbatch_tokens": 1}
    trainer = toy.build_trainer("reinforce_pp", minibatch_size=6, epochs_per_rollout=1, **settings)
    experience = trainer.collect(0, Metrics())
    assert float(experience.token_columns["advantages"].mean()) == pytest.approx(0, abs=1e-6)
    halves = [torch.cat([b.token_columns["advantages"] for b in step]) for step in trainer.steps(0, experience)]
    assert len(halves) == 2
    assert abs(float(halves[0].mean())) > 0.01
    torch.testing.assert_close(torch.cat(halves).sort().values, experience.token_columns["advantages"].sort().values)


def test_rloo_is_grpo_with_its_settings():
    own = toy.build_trainer("rloo")
    base = toy.build_trainer("rloo")
    named = RLOOTrainer(base.policy, base.config, base.prompts, base.inputs.scorer, reference=base.reference)
    assert named.name == own.name == "rloo"
    own.train()
    named.train()
    assert toy.largest_difference(toy.weights_of(own), toy.weights_of(named)) == 0.0
