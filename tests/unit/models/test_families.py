"""Every family's numbers and gradients, the way the library scores it, against the family's own code one row at a time.

What is measured is promised in docs/families.md; RLHF_WRITE_DOCS=1 writes that page anew.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf.config.model import LoRAConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError
from rlhf.models import paths
from rlhf.models.adapters import add_lora, enable_checkpointing
from rlhf.models.buckets import Bucket
from rlhf.models.load import disable_dropout
from rlhf.models.paths import choose_hidden_path, choose_path
from rlhf.models.policy import PolicyModel
from rlhf.models.score import backbone_of, hidden_at, score
from tests.fixtures.rounding import TIMES, assert_same_but_for_rounding, rounding_noise
from tests.unit.models.families import (
    FAMILIES,
    build,
    family,
    gradient_gap,
    loss_gradients,
    row_by_row,
    some_groups,
)

pytestmark = pytest.mark.numeric

PAGE = Path(__file__).resolve().parents[3] / "docs" / "families.md"
REWRITE = "Regenerate the page: RLHF_WRITE_DOCS=1 pytest tests/unit/models/test_families.py"
INTRODUCTION = f"""# Model families

Which way the batches of a family take through `rlhf.models.score`, and how far its numbers and gradients are from the family's
own code, run in float32 on one unpadded row at a time. A test measures every line on a tiny random model, with windows and
chunks shorter than its rows and prefixes shared by two or three completions. It fails where the path is another, or where a number
differs by more than {TIMES} times what rounding every weight once does to the family's own: that holds on every processor.

* *packed*: one row of distinct tokens without padding, a shared prompt computed once. The fast way.
* *padded*: one row for each sequence. For families whose attention can't be replaced, or that mix neighboring tokens.

A family that is not listed works too: every run compares the ways on a few of its own rows first, takes the fastest one that
agrees with the model's own numbers, and says so.

| family | path | log-probability, nats | gradient, share of the largest |
|---|---|---|---|
"""
FOOTER = f"""
Differences are those of the machine that wrote this page, as powers of ten at least twice what was measured. {REWRITE}
"""


def bound(measured: float) -> float:
    return 10.0 ** math.ceil(math.log10(2 * max(measured, 1e-9)))


def read_page() -> dict[str, tuple[str, float, float]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {title: (path, float(logprob), float(gradient)) for title, path, logprob, gradient in rows}


@pytest.fixture(scope="module")
def page():
    """The promises of the page by title; while it is rewritten, a table to fill instead."""
    if not os.environ.get("RLHF_WRITE_DOCS"):
        yield read_page()
        return
    rows = {}
    yield rows
    assert list(rows) == [one.title for one in FAMILIES], "run the whole file, in one process"
    table = "".join(f"| {title} | {path} | {a:.0e} | {b:.0e} |\n" for title, (path, a, b) in rows.items())
    PAGE.write_text(INTRODUCTION + table + FOOTER, encoding="utf-8")


def numbers_of(model, logprobs):
    return {"logprobs": logprobs.detach(), **loss_gradients(model, logprobs)}


def own_numbers(model, groups):
    model.set_attn_implementation("eager")
    return numbers_of(model, row_by_row(model, groups))


def assert_own_numbers(model, groups, ours, truth=None):
    """Log-probabilities and their gradients are the family's own, as near as rounding allows."""
    truth = own_numbers(model, groups) if truth is None else truth
    noise = rounding_noise(model, lambda: own_numbers(model, groups))
    assert_same_but_for_rounding(ours, {name: truth[name] for name in ours}, {name: noise[name] for name in ours})


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.title)
def test_scores_and_gradients_are_the_familys_own(kind, page):
    model, groups = build(kind), some_groups()
    truth = own_numbers(model, groups)
    choice = choose_path(model, groups)
    assert choice.path == kind.path, choice.reason

    ours = numbers_of(model, score(model, pack(groups), path=choice.path).logprobs)
    if os.environ.get("RLHF_WRITE_DOCS"):
        gradients, true_gradients = ({n: g for n, g in x.items() if n != "logprobs"} for x in (ours, truth))
        off = float((ours["logprobs"] - truth["logprobs"]).abs().max())
        page[kind.title] = (choice.path, bound(off), bound(gradient_gap(gradients, true_gradients)))
    assert_own_numbers(model, groups, ours, truth)
    assert kind.title in page, f"docs/families.md lacks {kind.title}. {REWRITE}"
    path = page[kind.title][0]
    assert path == choice.path, f"docs/families.md says {path} for {kind.title}. {REWRITE}"


def test_the_page_lists_these_families_and_no_other():
    assert list(read_page()) == [one.title for one in FAMILIES], REWRITE


def test_the_truth_depends_on_what_makes_a_family_unusual():
    """Else the test above would prove nothing about windows, chunks, soft-caps and sinks."""
    groups = some_groups()
    changes = (
        ("mistral, sliding window", {"sliding_window": 1000}),
        ("gemma2, sliding window, soft-caps", {"attn_logit_softcapping": None}),
        ("gemma2, sliding window, soft-caps", {"final_logit_softcapping": None}),
        ("gemma2, sliding window, soft-caps", {"sliding_window": 1000}),
        ("cohere, scaled logits", {"logit_scale": 1.0}),
        ("granite, scaled logits", {"logits_scaling": 1.0}),
        ("llama4_text, chunks, experts", {"attention_chunk_size": 1000}),
        ("llama4_text, chunks, queries scaled by position", {"floor_scale": 8192}),
        ("gpt_oss, sliding window, sinks, experts", {"sliding_window": 1000}),
    )
    for title, change in changes:
        kind = family(title)
        other = type(kind)(kind.name, {**kind.settings, **change})
        assert (row_by_row(build(kind), groups) - row_by_row(build(other), groups)).abs().max() > 1e-2, (title, change)
    sinks = build(family("gpt_oss, sliding window, sinks, experts"))
    before = row_by_row(sinks, groups)
    for name, parameter in sinks.named_parameters():
        if name.endswith("sinks"):
            parameter.data.fill_(-1e4)
    assert (row_by_row(sinks, groups) - before).abs().max() > 1e-2


@pytest.mark.parametrize("title", ["llama", "gemma2, sliding window, soft-caps", "mamba"])
def test_hidden_states_are_the_familys_own(title):
    kind, groups = family(title), some_groups()
    model = build(kind)
    batch = pack(groups)
    choice = choose_hidden_path(model, groups)
    assert choice.path == kind.path
    sequences = torch.arange(batch.num_sequences)
    ours = hidden_at(backbone_of(model), batch, batch.last, sequences, path=choice.path)
    model.set_attn_implementation("eager")
    rows = [[*group.prefix, *branch.tokens] for group in groups for branch in group.branches]
    truth = [
        backbone_of(model)(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1] for ids in rows
    ]
    torch.testing.assert_close(ours, torch.stack(truth), rtol=1e-5, atol=2e-5)


def test_llama_4_is_not_packed_even_where_a_short_check_could_not_tell():
    kind = family("llama4_text, chunks, queries scaled by position")
    model = build(type(kind)(kind.name, {**kind.settings, "floor_scale": 8192}))
    choice = choose_path(model, some_groups())
    assert choice.path == "padded"
    assert "queries by their row" in choice.reason


@pytest.mark.parametrize("path", ["packed", "padded"])
def test_a_shared_prefix_gives_what_separate_rows_give(path):
    model, groups = build(family("llama")), some_groups()
    shared = score(model, pack(groups), path=path).logprobs
    alone = [Group(group.prefix, [branch]) for group in groups for branch in group.branches]

    def separate():
        return numbers_of(model, torch.cat([score(model, pack([group]), path=path).logprobs for group in alone]))

    assert_same_but_for_rounding(numbers_of(model, shared), separate(), rounding_noise(model, separate))


def test_only_marked_tokens_are_scored():
    model = build(family("llama"))
    ids, marks = list(range(10, 16)), [True, False, False, True, True, False]
    everything = score(model, pack([Group([5, 6], [Branch(ids)])])).logprobs
    some = score(model, pack([Group([5, 6], [Branch(ids, marks)])])).logprobs
    torch.testing.assert_close(some, everything[torch.tensor(marks)])


@pytest.mark.parametrize("title", ["llama", "gemma2, sliding window, soft-caps", "granite, scaled logits"])
def test_all_paths_agree_on_temperature_and_entropy(title):
    model, batch = build(family(title)), pack(some_groups())
    choose_path(model, some_groups())
    packed = score(model, batch, temperature=0.6, with_entropy=True, path="packed")
    padded = score(model, batch, temperature=0.6, with_entropy=True, path="padded")
    model.set_attn_implementation("eager")
    logits = score(model, batch, temperature=0.6, with_entropy=True, path="logits")

    def numbers(scores):
        return {"logprobs": scores.logprobs, "entropy": scores.entropy}

    how = {"temperature": 0.6, "with_entropy": True, "path": "logits"}
    noise = rounding_noise(model, lambda: numbers(score(model, batch, **how)))
    for other in (padded, logits):
        assert_same_but_for_rounding(numbers(packed), numbers(other), noise)
    assert (packed.logprobs - score(model, batch).logprobs).abs().max() > 0.1


@pytest.mark.parametrize("title", ["llama", "gemma2, sliding window, soft-caps", "granite, scaled logits"])
def test_all_paths_agree_on_means_and_collisions(title):
    model, batch = build(family(title)), pack(some_groups())
    choose_path(model, some_groups())
    wanted = {"temperature": 0.6, "with_mean": True, "with_collision": True}
    packed = score(model, batch, path="packed", **wanted)
    padded = score(model, batch, path="padded", **wanted)
    model.set_attn_implementation("eager")
    logits = score(model, batch, path="logits", **wanted)

    def numbers(scores):
        actual = {"means": scores.mean_logprobs.detach(), "collisions": scores.log_collision_probs}
        return actual | loss_gradients(model, scores.mean_logprobs)

    assert not any(scores.log_collision_probs.requires_grad for scores in (packed, padded, logits))
    assert packed.entropy is None
    ours, *theirs = (numbers(scores) for scores in (packed, padded, logits))  # before their weights are rounded
    noise = rounding_noise(model, lambda: numbers(score(model, batch, path="logits", **wanted)))
    for other in theirs:
        assert_same_but_for_rounding(ours, other, noise)


def test_an_adapter_on_the_output_projection_has_the_same_means_and_collisions_as_its_merged_weight():
    lora = LoRAConfig(rank=3, alpha=6, target_modules=["lm_head"])
    model, batch = add_lora(build(family("llama")), lora, task="CAUSAL_LM", seed=0), pack(some_groups())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(1))
    wanted = {"with_entropy": True, "with_mean": True, "with_collision": True}
    adapted = score(model, batch, **wanted)
    adapted.mean_logprobs.sum().backward()
    assert any(p.grad is not None and bool(p.grad.any()) for name, p in model.named_parameters() if "lora_" in name)
    merged = model.merge_and_unload()

    def numbers(scores):
        return {name: getattr(scores, name) for name in ("logprobs", "entropy", "mean_logprobs", "log_collision_probs")}

    noise = rounding_noise(merged, lambda: numbers(score(merged, batch, **wanted)))
    assert_same_but_for_rounding(numbers(adapted), numbers(score(merged, batch, **wanted)), noise)


def test_hidden_states_come_along_when_asked_for():
    model, batch = build(family("llama")), pack(some_groups())
    scores = score(model, batch, with_hidden=True)
    logits = model.lm_head(scores.hidden)
    expected = torch.log_softmax(logits, -1).gather(1, batch.score_token[:, None]).squeeze(1)
    torch.testing.assert_close(scores.logprobs, expected)
    assert score(model, batch).hidden is None


@pytest.mark.parametrize("name", ["llama", "gemma2, sliding window, soft-caps"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "lm_head"]], ids=["every layer", "output projection too"])
def test_lora_is_scored_packed_with_its_own_gradients(targets, name):
    """A soft-cap bends the logits of an adapted projection on a way of their own."""
    lora = LoRAConfig(rank=3, alpha=6, target_modules=targets)
    kind = family(name)
    untied = replace(kind, settings=kind.settings | {"tie_word_embeddings": False})
    model = add_lora(build(untied), lora, task="CAUSAL_LM", seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    groups = some_groups()
    base = model.get_base_model()
    truth = own_numbers(base, groups)
    assert choose_path(model, groups).path == "packed"
    ours = numbers_of(base, score(model, pack(groups)).logprobs)
    assert ours.keys() == truth.keys()
    assert all("lora_" in name for name in ours if name != "logprobs")
    assert_own_numbers(base, groups, ours, truth)
    with model.disable_adapter():
        assert (score(model, pack(groups)).logprobs - truth["logprobs"]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("title", "path"),
    [("llama", "packed"), ("gpt_oss, sliding window, sinks, experts", "packed"), ("stablelm", "padded")],
)
def test_gradient_checkpointing_changes_no_gradient(title, path):
    """A layer that is recomputed in the backward pass must find the layout again; stablelm's layers do not get it."""
    model, groups = build(family(title)), some_groups()
    disable_dropout(model)
    truth = own_numbers(model, groups)
    noise = rounding_noise(model, lambda: own_numbers(model, groups))
    enable_checkpointing(model)
    choice = choose_path(model, groups)
    assert choice.path == path
    model.train()
    ours = numbers_of(model, score(model, pack(groups), path=path).logprobs)
    assert_same_but_for_rounding(ours, truth, noise)


def test_float64_is_exact_and_packed():
    """gpt2 computes in float64 throughout; its own eager softmax would round to float32, so the truth takes torch's."""
    model, groups = build(family("gpt2"), dtype=torch.float64), some_groups()
    model.set_attn_implementation("sdpa")
    truth = row_by_row(model, groups)
    true_gradients = loss_gradients(model, truth)
    assert choose_path(model, groups).path == "packed"
    ours = score(model, pack(groups)).logprobs
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-12)
    assert gradient_gap(loss_gradients(model, ours), true_gradients) <= 1e-12


@pytest.mark.parametrize("title", ["llama", "gemma2, sliding window, soft-caps", "mistral, sliding window"])
def test_float64_policies_take_the_packed_path(title):
    model, groups = build(family(title), dtype=torch.float64), some_groups()
    assert choose_path(model, groups).path == "packed"
    packed, padded = (score(model, pack(groups), path=path).logprobs for path in ("packed", "padded"))
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-12)


def test_bfloat16_weights_and_autocast_stay_close_to_float32():
    model, groups = build(family("llama")), some_groups()
    batch = pack(groups)
    exact = score(model, batch).logprobs.detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = score(model, batch).logprobs
    assert mixed.dtype == torch.float32
    assert 0 < (mixed - exact).abs().mean() < 0.05
    mixed.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())

    model.bfloat16()
    assert choose_path(model, groups).path == "packed"
    low = score(model, batch).logprobs
    assert low.dtype == torch.float32
    assert (low - exact).abs().mean() < 0.05


def test_a_trained_model_in_bfloat16_is_judged_in_float32_and_keeps_its_bits():
    policy = PolicyModel.from_pretrained("embedded")
    model = policy.model.bfloat16()
    model.register_buffer("kept_wide", torch.tensor([1 / 3]))
    before = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    choice = choose_path(model, some_groups())
    assert choice.path == "packed"
    assert choice.max_difference < 1e-4, "two kernels that are both right differ by tenths of a nat in bfloat16"
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert after.keys() == before.keys()
    assert all(after[name].dtype == kept.dtype and torch.equal(after[name], kept) for name, kept in before.items())


def test_weights_too_large_to_be_widened_are_compared_in_their_own_type(monkeypatch):
    monkeypatch.setattr("rlhf.models.paths.WIDENED_BYTES", 0)
    model = build(family("llama")).bfloat16()
    most = 0

    def watch(module, given, actual):
        nonlocal most
        most = max(most, max(p.element_size() for p in model.parameters()))

    model.model.register_forward_hook(watch)
    choice = choose_path(model, some_groups())
    assert most == 2, "nothing was widened"
    assert choice.path == "packed"
    assert 1e-4 < choice.max_difference < 0.3


def test_noise_excuses_no_more_than_its_bound(monkeypatch):
    """Padded and unpadded runs that differ by 5 nats are not noise, and would excuse 15."""
    monkeypatch.setattr("rlhf.models.paths.WIDENED_BYTES", 0)
    right, wrong = paths.score, {"packed": 1.0, "padded": 1.0, "logits": 5.0}

    def shifted(model, batch, *, path):
        scores = right(model, batch, path=path)
        return type(scores)(scores.logprobs + wrong[path])

    monkeypatch.setattr(paths, "score", shifted)
    with pytest.raises(ModelError, match=r"more than 3\.0e-01"):
        choose_path(build(family("llama")).bfloat16(), some_groups())


def test_a_wrong_attention_is_found_in_half_precision_too(monkeypatch):
    mask = Bucket.mask
    monkeypatch.setattr(Bucket, "mask", lambda self, window, chunk: mask(self, None, chunk))
    assert choose_path(build(family("mistral, sliding window")).bfloat16(), some_groups()).path == "padded"


def test_a_wrong_attention_is_found_and_avoided(monkeypatch, caplog):
    """Masks that forget the window: the check must notice on rows longer than it."""
    mask = Bucket.mask
    monkeypatch.setattr(Bucket, "mask", lambda self, window, chunk: mask(self, None, chunk))
    model, groups = build(family("mistral, sliding window")), some_groups()
    choice = choose_path(model, groups)
    assert choice.path == "padded"
    assert "packed: differs by" in choice.reason
    assert "padded path" in caplog.text
    ours = score(model, pack(groups), path=choice.path).logprobs
    assert_own_numbers(model, groups, {"logprobs": ours})


def test_a_model_that_no_path_scores_rightly_is_refused(monkeypatch):
    right = paths.score

    def wrong(*args, **kwargs):
        scores = right(*args, **kwargs)
        return type(scores)(scores.logprobs + 0.01)

    monkeypatch.setattr(paths, "score", wrong)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM .*1\.0e-02"):
        choose_path(build(family("llama")), some_groups())


def test_the_check_leaves_every_module_in_its_own_mode():
    model = build(family("llama")).train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    choose_path(model, some_groups())
    assert [module.training for module in model.modules()] == before


def test_the_check_ignores_dropout():
    kind = family("gpt2")
    model = build(type(kind)(kind.name, {**kind.settings, "attn_pdrop": 0.5, "resid_pdrop": 0.5})).train()
    assert choose_path(model, some_groups()).path == "packed"


def test_disabled_dropout_makes_training_mode_deterministic():
    kind = family("gpt2")
    model = build(type(kind)(kind.name, {**kind.settings, "attn_pdrop": 0.5, "resid_pdrop": 0.5})).train()
    batch = pack(some_groups())
    assert not torch.equal(score(model, batch).logprobs, score(model, batch).logprobs)
    disable_dropout(model)
    assert torch.equal(score(model, batch).logprobs, score(model, batch).logprobs)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ModelError, match="temperature is"):
        score(build(family("llama")), pack(some_groups()), temperature=temperature)


def test_a_model_without_output_projection_is_refused_by_name():
    with pytest.raises(ModelError, match=r"LlamaModel.*head"):
        score(build(family("llama")).model, pack(some_groups()))


def test_a_family_with_its_own_attention_is_never_packed_behind_its_back():
    with pytest.raises(ModelError, match=r"BloomModel.*padded"):
        score(build(family("bloom")), pack(some_groups()), path="packed")
