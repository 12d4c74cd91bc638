from __future__ import annotations

import os
import subprocess
import sys
import typing

import pytest
from pydantic import TypeAdapter

from rlhf.config.rewards import REWARD_KINDS, RewardSpec
from rlhf.config.service_reward import ServiceRewardConfig
from rlhf.errors import ConfigError, RewardError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import CompositeReward
from rlhf.rewards.factory import REWARDS, as_scorer, build_reward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lexicon import LexiconReward
from rlhf.rewards.rules import RuleBasedReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.service_calls import Patience
from rlhf.rewards.service_formats import FORMATS
from rlhf.rewards.shortcuts import RewardFunctionFactory
from rlhf.rewards.types import ScoreResult
from tests.unit.rewards import helpers
from tests.unit.rewards.helpers import HERE, samples


@pytest.fixture
def lexicon(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("good\t2\n")
    return str(path)


def test_the_table_knows_every_kind_that_a_recipe_may_name():
    union = typing.get_args(RewardSpec)[0]
    assert [member.model_fields["kind"].default for member in typing.get_args(union)] == list(REWARDS)


def test_building_a_reward_loads_what_it_needs_and_no_other_scorer():
    code = "import sys; from rlhf.rewards.factory import build_reward; build_reward('rules'); print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "rlhf.rewards.rules" in loaded
    assert not loaded & {"torch", "transformers", "rlhf.rewards.lexicon", "rlhf.rewards.service"}


def test_a_text_stands_for_the_setting_that_its_class_names():
    for text in ("models/rm", "mine:judge", "http://host/score"):
        spec = TypeAdapter(RewardSpec).validate_python(text)
        assert getattr(spec, spec.text_key) == text
    assert {kind.kind_name() for kind in REWARD_KINDS if kind.text_key} == {"function", "judge", "learned", "service"}


def test_each_kind_becomes_its_scorer(tmp_path, tiny_llama, tiny_tokenizer, lexicon):
    folder = RewardModel.from_policy(PolicyModel(tiny_llama, tiny_tokenizer)).save_pretrained(tmp_path / "rm")
    assert isinstance(build_reward(str(folder), tokenizer=tiny_tokenizer), LearnedReward)
    assert isinstance(build_reward(f"{HERE}:length"), FunctionReward)
    assert isinstance(build_reward("https://host:8000/score"), ServiceReward)
    assert isinstance(build_reward("rules"), RuleBasedReward)
    assert isinstance(build_reward([{"kind": "lexicon", "path": lexicon}]), LexiconReward)


def test_settings_reach_the_scorer(lexicon):
    rules = build_reward(
        {"kind": "rules", "target_words": 1, "capital_weight": 3, "punctuation_weight": 0, "name": "form"}
    )
    assert rules.score(*samples("Yes")).per_component == {"form": [3.0]}
    compound = build_reward({"kind": "lexicon", "path": lexicon, "scale": "compound", "negation": False})
    assert compound.score(*samples("not good")).scores == pytest.approx([2 / 19**0.5])
    service = build_reward(
        {"kind": "service", "url": "http://h/", "timeout_seconds": 5, "retries": 2, "headers": {"A": "b"}}
    )
    assert isinstance(service, ServiceReward)
    assert service._caller.patience == Patience(timeout_seconds=5, retries=2)
    assert service._caller.headers == {"A": "b"}
    function = build_reward(
        {"kind": "function", "function": f"{HERE}:length", "timeout_seconds": 5, "in_process": True}
    )
    assert isinstance(function, FunctionReward)
    assert function.timeout_seconds == 5


def test_a_list_is_a_weighted_sum(lexicon):
    reward = build_reward([
        {"kind": "lexicon", "path": lexicon, "weight": 10},
        {"kind": "function", "function": f"{HERE}:length", "in_process": True, "weight": -1, "name": "cost"},
    ])  # fmt: skip
    assert isinstance(reward, CompositeReward)
    result = reward.score(*samples("good", "so"))
    assert result.scores == [16.0, -2.0]
    assert result.per_component == {"lexicon": [2.0, 0.0], "cost": [4.0, 2.0]}


def test_a_weight_alone_makes_a_sum_too(lexicon):
    assert build_reward({"kind": "lexicon", "path": lexicon, "weight": 3}).score(*samples("good")).scores == [6.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "rules", "target_word": 3}, r"target_word: .*'target_words'"),
        ({"kind": "lexcion", "path": "x"}, "'lexcion'.*'lexicon'"),
        ("stage:reward", "names a stage; outside a recipe"),
        ({"kind": "function", "function": "nameless"}, "package.module:function"),
        ("http://", r"url: .*a full address such as http://127.0.0.1:8000/score"),
        ({"kind": "service", "url": "localhost:8000"}, r"url: .*a full address such as"),
        ({"kind": "service", "url": "http://host:port/score"}, r"url: .*a full address such as"),
        ("https://me:secret@host/score", r"put user and password into `headers`"),
        (
            {"kind": "service", "url": "http://h/", "headers": {"X-Api-Key": "hunter2"}},
            r"^(?!.*hunter2).*headers: .*the value of 'X-Api-Key' is a secret that would be written .* write \$NAME",
        ),
        ({"kind": "service", "url": "http://h/", "format": "trl"}, r"format: .*'rlhf', 'openrlhf'"),
    ],
)
def test_wrong_settings_are_told(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_reward(spec)


def test_the_defaults_of_a_recipe_are_those_of_the_classes():
    config = ServiceRewardConfig(url="http://h/")
    built = build_reward(config)
    assert built._caller.patience == Patience()
    assert built._caller.concurrency == config.concurrency == ServiceReward("http://h/")._caller.concurrency
    assert built.request_size == config.request_size == ServiceReward("http://h/").request_size


def test_failures_are_raised_or_reported_as_asked():
    spec = {"kind": "function", "function": f"{HERE}:nan_on_bad", "in_process": True}
    with pytest.raises(RewardError, match="sample 'p1'"):
        build_reward(spec).score(*samples("good", "bad"))
    for specs in (spec, [spec, {"kind": "rules", "normalize": True}]):
        assert list(build_reward(specs, on_error="report").score(*samples("good", "bad")).errors) == [1]


def test_the_formats_of_a_recipe_are_those_that_are_spoken():
    assert set(typing.get_args(ServiceRewardConfig.model_fields["format"].annotation)) == set(FORMATS)


def test_the_factory_remembers_the_tokenizer(tiny_llama, tiny_tokenizer, lexicon):
    factory = RewardFunctionFactory(tiny_tokenizer)
    model = RewardModel.from_policy(PolicyModel(tiny_llama, tiny_tokenizer))
    learned = factory.from_model(model)
    assert learned.tokenizer is tiny_tokenizer
    rules = factory.from_rules(target_words=1)
    function = factory.from_function(f"{HERE}:length", in_process=True)
    total = factory.combine({rules: 2.0, function: 1.0})
    assert total.score(*samples("Yes.")).scores == [2.0 * 1.0 + 4.0]
    assert isinstance(factory.build({"kind": "lexicon", "path": lexicon}), LexiconReward)


@pytest.fixture
def own_name():
    yield "mine"
    if "mine" in REWARDS.registered:
        REWARDS.remove("mine")


def test_the_table_builds_by_kind_and_settings():
    assert isinstance(REWARDS.build("rules", target_words=3), RuleBasedReward)
    assert isinstance(REWARDS.build("rules", weight=2.0), CompositeReward)
    by_hand = REWARDS.build(
        "function", function=lambda prompts, completions, *, factor: [factor] * 2, arguments={"factor": 3}
    )
    assert by_hand.score(*samples("a", "b")).scores == [3, 3]
    assert by_hand.name == "lambda"
    with pytest.raises(ConfigError, match="target_words"):
        REWARDS.build("rules", target_words=0)
    with pytest.raises(KeyError, match="rules"):
        REWARDS.build("ruels")


def test_a_registered_function_is_a_reward_of_this_process(own_name):
    prompts, completions = samples("ab", "abcd")
    REWARDS.register(own_name, lambda prompts, completions, factor=1, **_: [factor * len(c) for c in completions])
    assert REWARDS.build(own_name, factor=3).score(prompts, completions).scores == [6, 12]
    assert REWARDS.build(own_name, weight=-1.0).score(prompts, completions).scores == [-2, -4]
    assert build_reward(own_name).name == own_name
    REWARDS.register(own_name, f"{HERE}:length")
    assert isinstance(REWARDS.build(own_name), FunctionReward)
    with pytest.raises(ConfigError, match="'rules'"):
        REWARDS.register("rules", len)
    with pytest.raises(ConfigError, match="int"):
        REWARDS.register(own_name, 3)


def test_a_registered_class_makes_scorers(own_name):
    REWARDS.register(own_name, RuleBasedReward)
    assert REWARDS.build(own_name, target_words=5).target_words == 5
    with pytest.raises(ConfigError, match="target_word"):
        REWARDS.build(own_name, target_word=5)
    REWARDS.register(own_name, dict)
    with pytest.raises(ConfigError, match="dict"):
        REWARDS.build(own_name)


class OwnScorer:
    name = "own"

    def score(self, prompts, completions):
        return ScoreResult([1.0 for _ in completions])


def test_whatever_stands_for_a_reward_becomes_a_scorer():
    prompts, completions = samples("ab", "abcd")
    scorer = OwnScorer()
    assert as_scorer(scorer) is scorer
    assert isinstance(as_scorer(OwnScorer), OwnScorer)
    assert isinstance(as_scorer("rules"), RuleBasedReward)
    in_place = as_scorer(lambda prompts, completions: [len(c) for c in completions])
    assert in_place.score(prompts, completions).scores == [2, 4]
    assert in_place.name == "lambda"
    assert as_scorer([OwnScorer, lambda prompts, completions: [2.0, 3.0]]).score(prompts, completions).scores == [3, 4]
    for wrong in (7, object(), None):
        with pytest.raises(ConfigError, match="reward is"):
            as_scorer(wrong)


def test_only_a_function_of_an_importable_module_has_a_process_of_its_own():
    def inner(prompts, completions):
        return [os.getpid() for _ in completions]

    prompts, completions = samples("a")
    assert as_scorer(inner).score(prompts, completions).scores == [os.getpid()]
    with as_scorer(helpers.own_process) as scorer:
        assert scorer.score(prompts, completions).scores != [os.getpid()]
