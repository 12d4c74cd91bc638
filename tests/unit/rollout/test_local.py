from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2

from rlhf.config.model import LoRAConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError, TrainingError
from rlhf.models.adapters import add_lora
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.models.score import score
from rlhf.rollout.continuous_batching import SamplingRun
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.types import Completion, RolloutEngine
from tests.fixtures.rounding import assert_same_but_for_rounding, rounding_noise
from tests.unit.rollout.helpers import (
    EOS_IDS,
    FAMILIES,
    FUSED_FAMILIES,
    PADDED_FAMILIES,
    build_family,
    build_prompts,
    continued_by_transformers,
)

pytestmark = pytest.mark.numeric

GREEDY = SamplingConfig(max_new_tokens=20, temperature=0.0)
SAMPLED = SamplingConfig(max_new_tokens=20)


@pytest.fixture
def policy(word_tokenizer) -> PolicyModel:
    return PolicyModel(build_family("llama"), word_tokenizer)


@pytest.fixture
def prompts() -> list[Prompt]:
    return build_prompts()


def ask(
    engine: LocalEngine, prompts: list[Prompt], sampling: SamplingConfig = SAMPLED, *, num_samples: int = 2
) -> list[list[Completion]]:
    return engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=3, rollout_index=1)


def tokens_of(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.tokens for completion in group] for group in groups]


def scored(policy: PolicyModel, prompts: list[Prompt], groups: list[list[Completion]], temperature: float = 1.0):
    """What the trainer says of the same tokens."""
    batch = pack([Group(p.ids, [Branch(c.tokens) for c in group]) for p, group in zip(prompts, groups, strict=True)])
    return policy.logprobs(batch, temperature=temperature)


def assert_the_trainers(policy, prompts, groups, **how):
    """What the engine reported is what the trainer computes, as near as rounding allows."""

    def trainers():
        return {"logprobs": scored(policy, prompts, groups, **how)}

    noise = rounding_noise(policy.model, trainers)
    assert_same_but_for_rounding({"logprobs": reported(groups)}, trainers(), noise)


def reported(groups: list[list[Completion]]) -> torch.Tensor:
    return torch.tensor([x for group in groups for c in group for x in c.logprobs], dtype=torch.float64)


BOTH_WAYS = [(family, True) for family in FAMILIES] + [(family, False) for family in FUSED_FAMILIES]
"""Families, and whether a model of Llama's shape is sampled from in few kernels."""


@pytest.mark.parametrize(("family", "fused"), BOTH_WAYS)
def test_greedy_completions_are_transformers_own(family, fused, word_tokenizer, prompts):
    policy = PolicyModel(build_family(family), word_tokenizer)
    groups = ask(LocalEngine(policy, fused=fused), prompts, GREEDY)
    assert policy.path == ("padded" if family in PADDED_FAMILIES else "packed")
    for prompt, group in zip(prompts, groups, strict=True):
        expected = continued_by_transformers(policy.model, prompt, GREEDY.max_new_tokens)
        assert [completion.tokens for completion in group] == [expected, expected]
    assert len({len(group[0].tokens) for group in groups}) > 1, "no row ended early: the test shows too little"


@pytest.mark.parametrize(("family", "fused"), BOTH_WAYS)
def test_log_probabilities_are_the_trainers(family, fused, word_tokenizer, prompts):
    policy = PolicyModel(build_family(family), word_tokenizer)
    groups = ask(LocalEngine(policy, fused=fused), prompts)
    assert_the_trainers(policy, prompts, groups)


def test_log_probabilities_are_the_trainers_at_another_temperature_and_under_filters(policy, prompts):
    settings = SAMPLED.updated(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.3)
    groups = ask(LocalEngine(policy), prompts, settings)
    assert_the_trainers(policy, prompts, groups, temperature=0.7)
    for completion in (c for group in groups for c in group):
        assert completion.sampling_logprobs is not None
        assert len(completion.sampling_logprobs) == len(completion.tokens)


def test_a_double_precision_policy_agrees_to_its_own_precision(word_tokenizer, prompts):
    # The path is given: the family's own attention takes its softmax in float32, so no path agrees with it to 1e-8.
    policy = PolicyModel(build_family("llama").double(), word_tokenizer, choice=PathChoice("packed", 0.0, "given"))
    groups = ask(LocalEngine(policy), prompts)
    assert torch.allclose(reported(groups), scored(policy, prompts, groups), atol=1e-12)


def test_the_first_token_follows_the_softmax(policy):
    prompt = build_prompts((5,))[0]
    count = 3000
    (group,) = ask(LocalEngine(policy), [prompt], SAMPLED.updated(max_new_tokens=1), num_samples=count)
    batch = pack([Group(prompt.ids, [Branch([token]) for token in range(120)])])
    expected = policy.logprobs(batch).double().exp() * count
    observed = torch.bincount(torch.tensor([c.tokens[0] for c in group]), minlength=120)
    common = expected >= 5  # where the chi-square distribution holds; the rest is one class
    classes = [(observed[common], expected[common]), (observed[~common].sum()[None], expected[~common].sum()[None])]
    statistic = sum(float(((o - e) ** 2 / e).sum()) for o, e in classes)
    assert statistic < chi2.ppf(0.999, df=int(common.sum()))
    assert int(common.sum()) >= 5


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_oss", "gpt_neo", "mamba"])
def test_a_sample_hangs_on_nothing_beside_it(family, word_tokenizer, prompts):
    policy = PolicyModel(build_family(family), word_tokenizer)

    def sampled(asked, num_samples=3, **limits):
        short = SAMPLED.updated(max_new_tokens=12)
        return tokens_of(ask(LocalEngine(policy, **limits), asked, short, num_samples=num_samples))

    expected = sampled(prompts)
    assert len({len(tokens) for group in expected for tokens in group}) > 3, (
        "rows that end take turns with rows that wait"
    )
    for rows in (1, 4, 7):
        assert sampled(prompts, max_rows=rows) == expected
    for limits in ({"max_prefill_tokens": 12}, {"max_cache_tokens": 1}, {"max_cache_tokens": 100}):
        assert sampled(prompts, **limits) == expected
    assert sampled(prompts[::-1])[::-1] == expected
    for prompt, group in zip(prompts, expected, strict=True):
        assert sampled([prompt], num_samples=1) == [[group[0]]]


def test_an_engine_that_was_used_before_gives_the_same(policy, prompts):
    engine = LocalEngine(policy)
    expected = tokens_of(ask(LocalEngine(policy), prompts))
    ask(engine, build_prompts((30, 2), seed=9), SAMPLED.updated(max_new_tokens=70), num_samples=5)
    assert tokens_of(ask(engine, prompts)) == expected


def test_completions_longer_than_a_block_of_the_cache_are_whole(word_tokenizer, prompts):
    model = build_family("mistral")
    model.generation_config.eos_token_id = None
    policy = PolicyModel(model, word_tokenizer)  # its one EOS is the tokenizer's
    groups = ask(LocalEngine(policy), prompts[:3], SAMPLED.updated(max_new_tokens=100), num_samples=4)
    assert max(len(c.tokens) for group in groups for c in group) == 100
    assert_the_trainers(policy, prompts[:3], groups)


def test_an_end_token_ends_a_completion_and_stays_in_it(policy, prompts):
    groups = ask(LocalEngine(policy), prompts, num_samples=8)
    completions = [c for group in groups for c in group]
    assert {c.finish_reason for c in completions} == {"eos", "length"}
    for completion in completions:
        *before, last = completion.tokens
        assert not set(before) & set(EOS_IDS)
        assert (last in EOS_IDS) == (completion.finish_reason == "eos")
        assert completion.truncated == (completion.finish_reason == "length")
        assert completion.truncated == (last not in EOS_IDS and len(completion.tokens) == 20)


def test_a_stop_text_ends_a_completion_and_stays_in_it(policy, prompts):
    free = ask(LocalEngine(policy), prompts, num_samples=4)
    seen = Counter(token for group in free for c in group for token in c.tokens[2:-2])
    token = next(t for t, _ in seen.most_common() if t not in EOS_IDS)
    stopped = ask(LocalEngine(policy), prompts, SAMPLED.updated(stop=[f"w{token}", "never"]), num_samples=4)
    pairs = [pair for groups in zip(free, stopped, strict=True) for pair in zip(*groups, strict=True)]
    assert {b.finish_reason for _, b in pairs} == {"eos", "length", "stop"}
    for without, cut in pairs:
        # "w1" is in "w10" too: whatever the first word is that contains the text, there it ends
        end = next((i for i, t in enumerate(without.tokens) if f"w{t}".startswith(f"w{token}")), None)
        if end is None:
            assert (cut.tokens, cut.finish_reason) == (without.tokens, without.finish_reason)
        else:
            assert cut.tokens == without.tokens[: end + 1]
            assert cut.finish_reason == ("eos" if without.tokens[end] in EOS_IDS else "stop")


def test_the_text_is_what_the_tokens_say(policy, prompts):
    for completion in (c for group in ask(LocalEngine(policy), prompts) for c in group):
        words = [f"w{token}" for token in completion.tokens if token > 2]
        assert completion.text.split() == words


def test_the_samples_of_a_group_differ(policy, prompts):
    (group, *_) = ask(LocalEngine(policy), prompts, num_samples=8)
    assert len({tuple(c.tokens) for c in group}) == 8


def test_a_repetition_penalty_counts_the_prompt_and_the_completion(policy, prompts):
    strong = GREEDY.updated(repetition_penalty=1e6)
    for prompt, (completion, _) in zip(prompts, ask(LocalEngine(policy), prompts, strong), strict=True):
        assert len(set(completion.tokens)) == len(completion.tokens)
        assert not set(completion.tokens) & set(prompt.ids)


def test_weights_are_those_of_the_moment(policy, prompts):
    engine = LocalEngine(policy)
    before, print_before = tokens_of(ask(engine, prompts)), engine.fingerprint()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(-1)
    assert tokens_of(ask(engine, prompts)) != before
    assert engine.fingerprint() != print_before


def test_an_adapter_that_was_changed_reaches_the_sampler(word_tokenizer, prompts):
    model = add_lora(build_family("llama"), LoRAConfig(rank=2), task="CAUSAL_LM", seed=0)
    policy = PolicyModel(model, word_tokenizer)
    engine = LocalEngine(policy)
    before = tokens_of(ask(engine, prompts))
    with torch.no_grad():
        for name, parameter in policy.trainable_parameters().items():
            if "lora_B" in name:
                parameter.fill_(0.2)
    groups = ask(engine, prompts)
    assert tokens_of(groups) != before
    assert_the_trainers(policy, prompts, groups)


def test_sampling_leaves_the_model_as_it_was(policy, prompts):
    policy.model.train()
    policy.model.model.layers[0].eval()
    modes = [module.training for module in policy.model.modules()]
    state = torch.random.get_rng_state()
    ask(LocalEngine(policy), prompts)
    assert [module.training for module in policy.model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in policy.model.parameters())


def test_dropout_does_not_act_while_sampling(word_tokenizer, prompts):
    model = build_family("llama")
    expected = tokens_of(ask(LocalEngine(PolicyModel(model, word_tokenizer)), prompts, GREEDY))
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    model.train()
    assert tokens_of(ask(LocalEngine(PolicyModel(model, word_tokenizer)), prompts, GREEDY)) == expected


def test_a_rollout_can_be_learned_from_at_once(policy, prompts):
    # Tensors made in inference mode would be refused by autograd here, if a module had kept one.
    groups = ask(LocalEngine(policy), prompts)
    batch = pack([Group(p.ids, [Branch(c.tokens) for c in group]) for p, group in zip(prompts, groups, strict=True)])
    score(policy.model, batch).logprobs.sum().backward()
    assert all(parameter.grad is not None for parameter in policy.model.parameters())


@pytest.mark.parametrize("family", ["llama", "gpt_neo"])
def test_half_precision_products_change_little(family, word_tokenizer, prompts):
    policy = PolicyModel(build_family(family), word_tokenizer)
    groups = ask(LocalEngine(policy, autocast="bfloat16"), prompts)
    difference = (reported(groups) - scored(policy, prompts, groups)).abs()
    assert 0 < float(difference.mean()) < 0.05


def test_a_prompt_of_one_token_and_one_new_token(policy):
    (group,) = ask(LocalEngine(policy), [Prompt("p", [11], "")], SAMPLED.updated(max_new_tokens=1), num_samples=2)
    assert [len(c.tokens) for c in group] == [1, 1]


def test_no_prompts_give_no_completions(policy):
    assert ask(LocalEngine(policy), []) == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "'odd' has no tokens"),
        ([11, 120], "'odd' holds the token 120, but the model's vocabulary has 120"),
        ([11, -1], "'odd' holds the token -1"),
        ([11] * 109, "'odd' has 109 tokens and may grow by 20, but the model was made for 128"),
    ],
)
def test_a_prompt_that_the_model_cannot_take_is_named(policy, prompts, ids, message):
    with pytest.raises(DataError, match=message):
        ask(LocalEngine(policy), [prompts[0], replace(prompts[1], id="odd", ids=ids)])


def count_steps(monkeypatch) -> list[int]:
    """Rows of every decoding step from now on."""
    steps: list[int] = []
    step = PackedDecoder.step
    monkeypatch.setattr(PackedDecoder, "step", lambda self, tokens: steps.append(len(tokens)) or step(self, tokens))
    monkeypatch.setattr(
        "rlhf.rollout.fused_selection.compare", lambda *args, **how: None
    )  # it decodes a few rows of its own
    return steps


@pytest.mark.parametrize(
    "limits", [{"max_rows": 6}, {"max_cache_tokens": 500}, {"max_rows": 5, "max_prefill_tokens": 9}]
)
@pytest.mark.parametrize("stop", [[], ["w7"]])
def test_who_waits_takes_the_place_of_who_ended_and_says_the_same(limits, stop, word_tokenizer, monkeypatch):
    choice = PathChoice("packed", 0.0, "given")
    policy = PolicyModel(build_family("llama").double(), word_tokenizer, choice=choice)
    prompts = build_prompts((11, 3, 1, 17, 8, 8, 5, 9, 2, 13, 4, 6))
    sampling = SAMPLED.updated(max_new_tokens=80, stop=stop)  # longer than a block of the cache, so that it grows too
    steps = count_steps(monkeypatch)
    refilled = ask(LocalEngine(policy, **limits), prompts, sampling, num_samples=2)
    with_refill = len(steps)
    steps.clear()
    monkeypatch.setattr(SamplingRun, "_refilled", lambda self, logits: logits)  # the next begin when all have ended
    expected = ask(LocalEngine(policy, **limits), prompts, sampling, num_samples=2)
    assert with_refill < 0.8 * len(steps)
    lengths = [len(c.tokens) for group in expected for c in group]
    assert max(lengths) > 4 * min(lengths), "no short and long completions: the test shows too little"
    assert [[replace(c, logprobs=[]) for c in group] for group in refilled] == [
        [replace(c, logprobs=[]) for c in group] for group in expected
    ]
    assert torch.allclose(reported(refilled), reported(expected), atol=1e-12)
    assert [[(c.prompt_id, c.sample) for c in group] for group in refilled] == [
        [(prompt.id, sample) for sample in range(2)] for prompt in prompts
    ]


def test_an_ended_row_is_not_computed_on_past_its_room_in_the_cache(word_tokenizer, prompts, monkeypatch):
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    expected = tokens_of(ask(LocalEngine(policy), prompts, num_samples=3))
    monkeypatch.setattr(
        "rlhf.rollout.continuous_batching.COMPACT_FRAC", 0.7
    )  # ended rows stay long beside those that came late
    for max_rows in (3, 4, 7):
        assert tokens_of(ask(LocalEngine(policy, max_rows=max_rows), prompts, num_samples=3)) == expected


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
def test_log_probabilities_of_rows_that_came_late_are_the_trainers(family, word_tokenizer, prompts):
    policy = PolicyModel(build_family(family), word_tokenizer)
    sampling = SAMPLED.updated(max_new_tokens=90)
    groups = ask(LocalEngine(policy, max_rows=3), prompts, sampling, num_samples=3)
    assert_the_trainers(policy, prompts, groups)


def test_a_repetition_penalty_follows_rows_that_came_late(policy, prompts):
    sampling = SAMPLED.updated(repetition_penalty=1.4, top_k=30)
    expected = ask(LocalEngine(policy), prompts, sampling, num_samples=3)
    reply = ask(LocalEngine(policy, max_rows=3), prompts, sampling, num_samples=3)
    assert tokens_of(reply) == tokens_of(expected)
    assert [len(c.sampling_logprobs) for group in reply for c in group] == [
        len(c.tokens) for group in reply for c in group
    ]


def test_rows_and_cache_stay_within_their_limits(policy, prompts, monkeypatch):
    held, begun = [], []
    step, read = PackedDecoder.step, PackedDecoder._read_all

    def noted_step(decoder, tokens):
        logits = step(decoder, tokens)
        for layer in decoder.cache.layers.values():
            room = (
                layer.prompt_keys.shape[0] * layer.prompt_keys.shape[2] + layer.keys.shape[0] * SAMPLED.max_new_tokens
            )
            held.append((len(tokens), layer.keys.shape[2], room))
        return logits

    def noted_read(decoder, ids, group, *args, **how):
        begun.append(len(group))
        return read(decoder, ids, group, *args, **how)

    monkeypatch.setattr(PackedDecoder, "step", noted_step)
    monkeypatch.setattr(PackedDecoder, "_read_all", noted_read)
    monkeypatch.setattr(
        "rlhf.rollout.fused_selection.compare", lambda *args, **how: None
    )  # it decodes a few rows of its own
    ask(LocalEngine(policy, max_rows=5, max_cache_tokens=90), prompts, num_samples=6)
    assert sum(begun) == 36
    assert len(begun) > 8
    assert max(rows for rows, _, _ in held) <= 5
    assert max(room for _, room, _ in held) <= 20
    assert max(tokens for _, _, tokens in held) <= 90
    begun.clear()
    ask(LocalEngine(policy), prompts, num_samples=6)
    assert begun == [36]


def test_senseless_limits_are_refused(policy):
    with pytest.raises(ConfigError, match="max_rows is 0"):
        LocalEngine(policy, max_rows=0)


def test_no_samples_are_refused(policy, prompts):
    with pytest.raises(ConfigError, match="num_samples is 0"):
        ask(LocalEngine(policy), prompts, num_samples=0)


def test_weights_that_are_no_numbers_are_noticed(policy, prompts):
    ask(LocalEngine(policy), prompts)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[7] = float("nan")
    for max_rows in (100, 2):
        with pytest.raises(TrainingError, match=r"'prompt-0' .*not finite"):
            ask(LocalEngine(policy, max_rows=max_rows), prompts)


def test_it_is_a_rollout_engine(policy):
    assert isinstance(LocalEngine(policy), RolloutEngine)


def test_the_real_story_model_continues_as_transformers_does(assets):
    policy = PolicyModel.from_pretrained(str(assets / "models" / "stories260K"))
    texts = ["Once upon a time", "Lily", "The dog was"]
    prompts = [Prompt(text, policy.tokenizer(text)["input_ids"], text) for text in texts]
    sampling = SamplingConfig(max_new_tokens=60, temperature=0.0)
    groups = LocalEngine(policy).generate(prompts, num_samples=1, sampling=sampling, seed=0, rollout_index=0)
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        ids = torch.tensor([prompt.ids])
        out = policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False
        )
        assert completion.tokens == out[0, len(prompt.ids) :].tolist()
        assert completion.text.startswith((" ", ",", "'"))  # the space between prompt and completion is kept
