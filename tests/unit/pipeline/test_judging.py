"""Whatever judges in training may judge where policies are measured."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from pydantic import TypeAdapter

from rlhf.config.file_stages import EvaluateStage
from rlhf.config.reasoning_stages import PassAtKStage
from rlhf.config.rewards import RewardSpec
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, RewardError
from rlhf.evaluation.judges import judge_completions, judge_name, run_judge
from rlhf.evaluation.overoptimization import judge_rollouts
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages.context import StageContext, resolved_reward
from rlhf.pipeline.stages.evaluate import run_evaluate
from rlhf.pipeline.stages.judging import open_judge
from rlhf.pipeline.stages.pass_at_k import run_pass_at_k
from rlhf.rewards.factory import REWARDS
from rlhf.rewards.learned import LearnedReward
from rlhf.training.log import TrainingLogger
from tests.fixtures import tiny
from tests.unit.rewards.helpers import HERE, samples
from tests.unit.rewards.servers import lengths, serving

COLUMNS = {"answer": ["7", "7"], "tests": ["assert answer == 7"] * 2, "verdict": ["A", "B"]}
TEXTS = ("7", "Eight.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_tokenizer):
    """A policy, two reward models, a process reward model, a lexicon and problems."""
    root = tmp_path_factory.mktemp("judging")
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer)), tiny_tokenizer)
    policy.save_pretrained(root / "policy")
    RewardModel.from_policy(policy, num_heads=2).save_pretrained(root / "rm")
    ProcessRewardModel.from_policy(policy).save_pretrained(root / "prm")
    (root / "lexicon.txt").write_text("good\t2\n")
    rows = [{"prompt": f"What is {n}?", "answer": str(n)} for n in range(3)]
    (root / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def judge_of(kind, folder, url):
    own = {
        "learned": {"source": str(folder / "rm"), "combine": "min"},
        "ensemble": {"sources": [str(folder / "rm")] * 2},
        "process": {"source": str(folder / "prm")},
        "lexicon": {"path": str(folder / "lexicon.txt")},
        "function": {"function": f"{HERE}:length"},
        "service": {"url": url},
        "judge": {"judge": {"type": "function", "function": f"{HERE}:length"}},
        "pattern": {"pattern": "7"},
        "constitution": {"principles": [{"name": "short", "judge": f"{HERE}:length"}]},
        "code": {"isolation": "available", "unfenced": True},
    }
    return {"kind": kind, **own.get(kind, {})}


def opened(spec, tmp_path):
    stage = PassAtKStage.of({"kind": "pass_at_k", "policy": "p", "prompts": "q.jsonl", "judge": spec})
    return open_judge(stage.judge, StageContext("z", tmp_path, TrainingLogger()))


@pytest.mark.parametrize("kind", REWARDS)
def test_every_kind_of_reward_judges(kind, folder, tmp_path):
    if kind == "math":
        pytest.importorskip("math_verify")
    if kind == "code" and not sys.platform.startswith("linux"):
        pytest.skip("the sandbox needs Linux")
    prompts, completions = samples(*TEXTS, **COLUMNS)
    with serving(lengths) as service:
        spec = judge_of(kind, folder, service.url)
        plain = judge_completions(opened(spec, tmp_path), prompts, completions)
        judge = opened({**spec, "weight": -2.0}, tmp_path)
        judged = judge_completions(judge, prompts, completions)
        texts = run_judge(judge, ["q", "q"], list(TEXTS), columns=COLUMNS)
    assert judged.scores == pytest.approx([-2.0 * score for score in plain.scores])
    assert len(texts.scores) == 2
    assert judge_name(judge)
    if kind in ("exact", "numeric", "math", "pattern"):
        assert plain.scores == [1.0, 0.0]


def test_stage_inputs_become_files_wherever_a_reward_names_them(tmp_path):
    at = StageContext("z", tmp_path, TrainingLogger())
    adapter = TypeAdapter(RewardSpec)
    ensemble = adapter.validate_python({"kind": "ensemble", "sources": ["stage:a", "models/b"]})
    assert resolved_reward(ensemble, at).sources == [str(tmp_path / "a" / "model"), "models/b"]
    lexicon = adapter.validate_python({"kind": "lexicon", "path": "stage:world/words.txt"})
    assert resolved_reward(lexicon, at).path == str(tmp_path / "world" / "words.txt")
    arguments = {"files": ["stage:world/a.jsonl", "plain"], "limit": 3}
    function = adapter.validate_python({"kind": "function", "function": "m:f", "arguments": arguments})
    files = [str(tmp_path / "world" / "a.jsonl"), "plain"]
    assert resolved_reward(function, at).arguments == {"files": files, "limit": 3}


def test_parts_of_a_score_are_metrics(tmp_path):
    judged = judge_completions(opened({"kind": "numeric"}, tmp_path), *samples("#### 7", "8", **COLUMNS))
    assert judged.scores == [1.0, 0.0]
    assert judged.metrics == {"numeric/format": [1.0, 0.0]}


def test_a_verifier_without_its_column_names_the_sample(tmp_path):
    with pytest.raises(RewardError, match="no column 'answer'"):
        judge_completions(opened({"kind": "numeric"}, tmp_path), *samples(*TEXTS))


@pytest.mark.parametrize(
    "judge", [{"kind": "numeric"}, {"kind": "rules", "weight": 2.0}, {"kind": "pattern", "pattern": "."}]
)
def test_policies_are_measured_by_rewards_that_are_no_functions(folder, tmp_path, judge):
    (tmp_path / "z").mkdir()
    at = StageContext("z", tmp_path, TrainingLogger())
    common = {
        "policy": str(folder / "policy"), "baseline": str(folder / "policy"), "prompts": str(folder / "problems.jsonl"),
        "judge": judge, "sampling": {"max_new_tokens": 4},
    }  # fmt: skip
    compared = run_evaluate(EvaluateStage.of({"kind": "evaluate", **common}), at)
    assert "win rate" in compared.headline
    solved = run_pass_at_k(PassAtKStage.of({"kind": "pass_at_k", "num_samples": 2, **common}), at)
    assert "pass@2" in solved.headline
    assert json.loads((at.folder / "evaluation.json").read_text())["solving"]["settings"]["judge"]


def test_a_judge_that_shifts_every_policy_to_the_same_mean_is_refused():
    tree = {
        "kind": "evaluate",
        "policy": "p",
        "baseline": "b",
        "prompts": "q",
        "judge": {"kind": "rules", "normalize": True},
    }
    with pytest.raises(ConfigError, match="normalize"):
        EvaluateStage.of(tree)


def rollout_rows(tokenizer, *, prompt_tokens=4):
    """Rows of which one holds bytes that are no UTF-8."""
    broken = [tokenizer.convert_tokens_to_ids(token) for token in ("\u00c3", "a", "\u00c3", "\u00c3")]
    assert "\ufffd" in tokenizer.decode(broken)
    prompt = tokenizer("What is 1?")["input_ids"]
    prompt = (prompt * prompt_tokens)[:prompt_tokens]
    plain = tokenizer(" The fox")["input_ids"]
    return [
        {"step": step, "prompt": tokenizer.decode(prompt), "completion": tokenizer.decode(said, skip_special_tokens=True),
         "ended": True, "score": 0.0, "kl": 0.0, "prompt_ids": prompt, "completion_ids": [*said, tokenizer.eos_token_id]}
        for step, said in enumerate((broken, plain, plain[:1]), 1)
    ]  # fmt: skip


def test_rollouts_are_judged_by_the_ids_that_were_sampled(folder, tiny_tokenizer):
    model = RewardModel.from_pretrained(str(folder / "rm"))
    with torch.no_grad():  # a fresh head may be all zeros
        for name, parameter in model.named_parameters():
            if "score" in name:
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    rows = rollout_rows(tiny_tokenizer)
    with torch.no_grad():
        groups = [Group(row["prompt_ids"], [Branch(row["completion_ids"])]) for row in rows]
        expected = [float(model.member_scores(pack([group])).mean()) for group in groups]
    judge = LearnedReward(model)
    assert [point["gold"] for point in judge_rollouts(rows, judge)] == pytest.approx(expected, abs=1e-5)
    old = [{k: v for k, v in row.items() if not k.endswith("_ids")} for row in rows]
    by_text = [point["gold"] for point in judge_rollouts(old, judge)]
    assert by_text[1:] == pytest.approx(expected[1:], abs=1e-5)
    assert by_text[0] != pytest.approx(expected[0], abs=1e-5), "what is lost as text; the test shows something"


def test_rollouts_that_are_too_long_for_the_judge_are_cut_counted_and_said(folder, tmp_path, tiny_tokenizer):
    rows = [*rollout_rows(tiny_tokenizer), *rollout_rows(tiny_tokenizer, prompt_tokens=600)]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    at = StageContext("z", tmp_path, TrainingLogger())
    (tmp_path / "z").mkdir()
    run_evaluate(
        EvaluateStage.of(
            {
                "kind": "evaluate", "policy": str(folder / "policy"), "baseline": str(folder / "policy"),
                "prompts": str(folder / "problems.jsonl"), "judge": judge_of("learned", folder, ""), "limit": 2,
                "reward_model": str(folder / "rm"), "rollouts": str(tmp_path / "rollouts.jsonl"),
                "sampling": {"max_new_tokens": 4},
            }
        ),
        at,
    )  # fmt: skip
    told = [event["message"] for event in at.log.events if event["event"] == "note"]
    assert any(text.startswith("3 of 10 samples are longer than the 512 tokens that the judge") for text in told)
    assert json.loads((tmp_path / "z" / "evaluation.json").read_text())["hacking"]["num_steps"] == 3
