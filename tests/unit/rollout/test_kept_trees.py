"""A tree's requests: the same samples whether their beginnings are kept or read again, and less to read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from rlhf.config.engines import PromptLookupConfig
from rlhf.config.policy import SamplingConfig
from rlhf.models.policy import PolicyModel
from rlhf.rollout import kept_trees
from rlhf.rollout.local import LocalEngine
from tests.unit.rollout.helpers import PADDED_FAMILIES, build_family, build_prompts

SAMPLING = SamplingConfig(max_new_tokens=6)


@dataclass
class Asked:
    id: str
    ids: list[int]
    tree: str


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
    return tiny_tokenizer


def grow(engine, *, rounds=4, at_once=2, sampling=SAMPLING):
    """Trees that grow by all samples of a node at a time; gives what was sampled and, where it is kept, what was read."""
    nodes = [Asked(f"{prompt.id}", list(prompt.ids), prompt.id) for prompt in build_prompts((11, 5, 19))]
    said, reads = [], []
    for step in range(rounds):
        groups = engine.generate(nodes, num_samples=at_once, sampling=sampling, seed=3, rollout_index=0)
        said.append([[completion.tokens for completion in group] for group in groups])
        reads.append((list(engine._trees.read_tokens) if engine._trees is not None else None, nodes))
        nodes = [
            Asked(f"{node.id}/{step}{child}", [*node.ids, *completion.tokens[:3]], node.tree)
            for node, group in zip(nodes, groups, strict=True)
            for child, completion in enumerate(group)
        ]
    return said, reads


def engine_of(family, tokenizer, **how):
    return LocalEngine(PolicyModel(build_family(family), tokenizer), **how)


@pytest.mark.parametrize(
    "how", [{}, {"compiled": True}, {"fused": False}, {"autocast": "bfloat16"}, {"weights": "int8"}]
)
def test_samples_are_the_same_and_a_child_reads_its_own_step_alone(tokenizer, how):
    own, _ = grow(engine_of("llama", tokenizer, **how))
    engine = engine_of("llama", tokenizer, **how)
    with engine.keeping() as trees:
        kept, reads = grow(engine)
        assert kept == own
        first, *later = reads
        assert first[0] == [len(node.ids) for node in first[1]]
        for read, nodes in later:
            # three tokens of its own; of a sibling that says the same nothing but the last one
            assert all(number <= 3 for number in read)
            assert sum(read) < sum(len(node.ids) for node in nodes) / 4
        assert trees.num_bytes > 0
    assert trees.num_bytes == 0
    again, _ = grow(engine)
    assert again == own


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss", "gpt2"])
def test_other_families_say_the_same(tokenizer, family):
    own, _ = grow(engine_of(family, tokenizer))
    engine = engine_of(family, tokenizer)
    with engine.keeping():
        kept, reads = grow(engine)
    assert kept == own
    assert sum(reads[-1][0]) < sum(len(node.ids) for node in reads[-1][1]) / 4


@pytest.mark.parametrize("family", PADDED_FAMILIES)
def test_a_model_that_keeps_nothing_reads_everything(tokenizer, family):
    engine = engine_of(family, tokenizer)
    own, _ = grow(engine, rounds=2)
    with engine.keeping():
        kept, reads = grow(engine, rounds=2)
    assert kept == own
    assert all(read == [len(node.ids) for node in nodes] for read, nodes in reads)


def test_guesses_keep_nothing(tokenizer):
    engine = engine_of("llama", tokenizer, speculate=PromptLookupConfig())
    with engine.keeping():
        kept, reads = grow(engine, rounds=2)
    assert kept == grow(engine, rounds=2)[0]
    assert all(read == [len(node.ids) for node in nodes] for read, nodes in reads)


@pytest.mark.parametrize("blocks", [0, 1, 3, 6])
def test_memory_is_bounded_and_samples_do_not_depend_on_it(tokenizer, blocks, monkeypatch):
    own, _ = grow(engine_of("llama", tokenizer))
    engine = engine_of("llama", tokenizer)
    block = 16 * 2 * 2 * 2 * 8 * 4  # tokens, keys and values, layers, heads, width, bytes
    monkeypatch.setattr(kept_trees.KeptTrees.__init__, "__defaults__", (blocks * block,))
    with engine.keeping() as trees:
        kept, _ = grow(engine)
        assert trees.num_bytes <= blocks * block
    assert kept == own


def test_trees_share_nothing_with_each_other_and_what_is_forgotten_is_read_again(tokenizer):
    engine = engine_of("llama", tokenizer)
    (prompt,) = build_prompts((40,))

    def read(tree):
        engine.generate([Asked("x", list(prompt.ids), tree)], num_samples=1, sampling=SAMPLING, seed=0, rollout_index=0)
        return engine._trees.read_tokens

    with engine.keeping() as trees:
        assert [read("a"), read("a"), read("b")] == [[40], [1], [40]]
        trees.forget("a")
        assert [read("a"), read("b")] == [[40], [1]]
        trees.forget("unknown")


@pytest.mark.parametrize("fused", [True, False])
def test_a_prompt_of_more_samples_than_rows_is_kept_once(tokenizer, fused):
    """It is read for each part of its samples."""
    own, _ = grow(engine_of("llama", tokenizer, fused=fused, max_rows=2), rounds=3, at_once=5)
    engine = engine_of("llama", tokenizer, fused=fused, max_rows=2)
    with engine.keeping() as trees:
        kept, _ = grow(engine, rounds=3, at_once=5)
        trees.forget("p0")
        assert kept == own


@pytest.mark.parametrize(
    "how",
    [{"repetition_penalty": 2.0, "temperature": 0}, {"repetition_penalty": 1.5, "temperature": 0.7, "top_p": 0.9}],
)
def test_penalties_know_the_tokens_that_were_not_read(tokenizer, how):
    sampling = SamplingConfig(max_new_tokens=6, **how)
    own, _ = grow(engine_of("llama", tokenizer), sampling=sampling)
    engine = engine_of("llama", tokenizer)
    with engine.keeping():
        assert grow(engine, sampling=sampling)[0] == own


def test_nothing_of_other_weights_is_used_again(tokenizer):
    engine = engine_of("llama", tokenizer)
    with engine.keeping():
        before, _ = grow(engine, rounds=2)
        with torch.no_grad():
            for weight in engine.policy.model.parameters():
                weight.mul_(-1.3)
        engine.load_weights(1)
        kept, _ = grow(engine, rounds=2)
    assert kept == grow(engine, rounds=2)[0] != before


def test_a_fused_model_that_is_given_up_within_a_tree(tokenizer):
    """Some families prove to scale positions only once a beginning is long."""
    engine = engine_of("llama", tokenizer)
    own, _ = grow(engine, rounds=2)
    with engine.keeping():
        grow(engine, rounds=2)
        engine._choice = None
        assert grow(engine, rounds=2)[0] == own


def test_what_is_of_no_tree_takes_no_room(tokenizer):
    """A critic asks the same engine."""
    prompts = build_prompts((30, 20))
    how = {"num_samples": 1, "sampling": SAMPLING, "seed": 3, "rollout_index": 0}
    own = engine_of("llama", tokenizer).generate(prompts, **how)
    engine = engine_of("llama", tokenizer)
    with engine.keeping() as trees:
        for _ in range(2):
            assert engine.generate(prompts, **how) == own
            assert trees.read_tokens == [30, 20]
        assert trees.num_bytes == 0
