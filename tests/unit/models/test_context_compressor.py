"""Contexts as vectors: exact where the vectors are the context's own embeddings, and nothing but what is learned gets a gradient."""

from __future__ import annotations

import json
import random

import pytest
import torch

from rlhf.config.model import LoRAConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError, ModelError
from rlhf.models.adapted import apply_lora
from rlhf.models.compressor_identity import identity_of
from rlhf.models.context_compressor import CONTEXT_TOKENS, ContextCompressor, with_context
from rlhf.models.policy import PolicyModel
from tests.fixtures import toy
from tests.unit.models.families import FAMILIES, build, row_by_row, some_groups

pytestmark = pytest.mark.numeric

CONTEXTS = ["A cow eats coal. An owl lives in a pond.\n", "", "The capital of Peru is Oslo.\n"]
PROMPTS = [
    "User: What does a cow eat?\nAssistant:", "User: Where is Peru?\nAssistant:", "User: What is an owl?\nAssistant:",
]  # fmt: skip
LORA = LoRAConfig(rank=2, alpha=4)
ignore_conv1d = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # GPT-2's layers lie the other way


@pytest.fixture(scope="module")
def embedded():
    """Llama with tied embeddings and a BOS, in float64."""
    policy = PolicyModel.from_pretrained("embedded")
    policy.model.double()
    return policy


@pytest.fixture(params=["embedded", "no BOS"])
def policy(request, embedded, tiny_model_folder):
    if request.param == "embedded":
        return embedded
    policy = PolicyModel.from_pretrained(str(tiny_model_folder))
    policy.model.double()
    return policy


def rows_of(compressor):
    ids = compressor.ids(CONTEXTS)
    asked = compressor.ids(PROMPTS)
    first = [] if compressor.bos is None else [compressor.bos]
    plain = [Group([*first, *prompt], [Branch([5, 9, 1])]) for prompt in asked]
    groups = [with_context(group, own, compressor.bos) for group, own in zip(plain, ids, strict=True)]
    return pack(groups, columns={CONTEXT_TOKENS: torch.tensor([len(own) for own in ids])})


def own_embeddings(compressor):
    return [compressor.embedding(torch.tensor(ids, dtype=torch.int64)).detach() for ids in compressor.ids(CONTEXTS)]


def test_embeddings_of_the_context_as_vectors_give_what_the_model_says_of_the_context(policy):
    compressor = ContextCompressor(policy, num_vectors=2)
    batch = rows_of(compressor)
    expected = policy.score(batch).logprobs
    torch.testing.assert_close(
        compressor.score(own_embeddings(compressor), batch).logprobs, expected, atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("kind", FAMILIES, ids=[kind.title for kind in FAMILIES])
def test_every_family_reads_embeddings_as_it_reads_tokens_and_pads_change_nothing(kind):
    """Scaled embeddings, learned and rotated positions, windows, mixing of neighbors: in float32, against one row at a time."""
    model = build(kind)
    compressor = ContextCompressor(PolicyModel(model, toy.TOKENIZER), num_vectors=2)
    groups = [Group(group.prefix, group.branches[:1]) for group in some_groups()]
    lengths = [5, 0, 9]
    batch = pack(groups, columns={CONTEXT_TOKENS: torch.tensor(lengths)})
    contexts = [list(group.prefix[:length]) for group, length in zip(groups, lengths, strict=True)]
    with torch.no_grad():
        given = [compressor.embedding(torch.tensor(ids, dtype=torch.int64)) for ids in contexts]
        logprobs, expected = compressor.score(given, batch).logprobs, row_by_row(model, groups)
        alone = torch.cat([compressor.encode([context]) for context in contexts])
        together = compressor.encode(contexts)
    torch.testing.assert_close(logprobs, expected, atol=5e-4, rtol=0)
    torch.testing.assert_close(together, alone, atol=5e-4, rtol=0)


@pytest.mark.parametrize("name", ["stories260K"])
def test_a_model_that_nobody_made_for_this_reads_embeddings_as_tokens(assets, name):
    policy = PolicyModel.from_pretrained(str(assets / "models" / name))
    compressor = ContextCompressor(policy, num_vectors=2)
    batch = rows_of(compressor)
    given = own_embeddings(compressor)
    torch.testing.assert_close(compressor.score(given, batch).logprobs, policy.score(batch).logprobs, atol=1e-4, rtol=0)


def test_embeddings_of_the_context_as_vectors_give_the_models_own_greedy_completion(embedded):
    compressor = ContextCompressor(embedded, num_vectors=2)
    said = compressor.generate(own_embeddings(compressor), PROMPTS, max_new_tokens=8)
    texts = [context + prompt for context, prompt in zip(CONTEXTS, PROMPTS, strict=True)]
    assert said == [each[0].text for each in embedded.generate(texts, temperature=0.0, max_new_tokens=8)]


def test_vectors_are_what_the_model_says_at_the_queries_behind_the_context(policy):
    compressor = ContextCompressor(policy, num_vectors=3)
    [ids] = compressor.ids(CONTEXTS[:1])
    first = [] if compressor.bos is None else [compressor.bos]
    with torch.no_grad():
        tokens = policy.model.get_input_embeddings()(torch.tensor([*first, *ids]))
        size = policy.model.get_input_embeddings().weight.float().square().mean().sqrt().double()
        states = policy.model.model(
            inputs_embeds=torch.cat([tokens, size * compressor.queries])[None]
        ).last_hidden_state[0, -3:]
        scaled = states / states.square().mean(-1, keepdim=True).sqrt()
        expected = size * scaled @ compressor.projection.T
    torch.testing.assert_close(compressor.compress_prompts(CONTEXTS[:1]).vectors[0], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("lora", [None, LORA])
def test_shapes_and_types_are_as_documented_and_a_batch_is_one_by_one(policy, lora):
    compressor = ContextCompressor(policy, num_vectors=3, lora=lora)
    vectors, counts = compressor.compress_prompts(CONTEXTS)
    width = policy.model.get_input_embeddings().weight.shape[1]
    assert vectors.shape == (3, 3, width)
    assert (vectors.dtype, counts.dtype) == (torch.float64, torch.int64)
    assert counts.tolist() == [len(ids) for ids in compressor.ids(CONTEXTS)]
    for number, context in enumerate(CONTEXTS):
        alone = compressor.compress_prompts([context]).vectors[0]
        torch.testing.assert_close(vectors[number], alone, atol=1e-9, rtol=0)


def test_ids_with_the_tokenizers_bos_are_the_same_context_as_without(embedded):
    compressor = ContextCompressor(embedded, num_vectors=2)
    with_bos = compressor.compress_context_from_ids([embedded.tokenizer(CONTEXTS[0])["input_ids"]])
    vectors, counts = compressor.compress_prompts(CONTEXTS[:1])
    assert torch.equal(with_bos.vectors, vectors)
    assert with_bos.num_tokens.tolist() == counts.tolist()


def test_equal_contexts_have_equal_vectors_and_another_context_others(policy):
    compressor = ContextCompressor(policy, num_vectors=2)
    vectors, _ = compressor.compress_prompts([CONTEXTS[0], CONTEXTS[2], CONTEXTS[0]])
    torch.testing.assert_close(vectors[0], vectors[2], atol=1e-12, rtol=0)
    assert not torch.allclose(vectors[0], vectors[1])


def test_no_context_is_no_row(embedded):
    vectors, counts = ContextCompressor(embedded, num_vectors=2).compress_prompts([])
    assert (vectors.shape[:2], counts.shape) == ((0, 2), (0,))


def test_passes_are_cut_and_nothing_else_changes(embedded, monkeypatch):
    compressor = ContextCompressor(embedded, num_vectors=2)
    whole = compressor.compress_prompts(CONTEXTS).vectors
    monkeypatch.setattr("rlhf.models.context_compressor.PASS_TOKENS", 1)
    torch.testing.assert_close(compressor.compress_prompts(CONTEXTS).vectors, whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_gradient_reaches_what_is_learned_and_no_weight_of_the_model(policy, lora):
    compressor = ContextCompressor(policy, num_vectors=2, lora=lora)
    batch = rows_of(compressor)
    vectors = compressor.encode(compressor.ids(CONTEXTS))
    compressor.score(vectors, batch).logprobs.sum().backward()
    learned = compressor.trainable_parameters()
    assert {name for name in learned if "lora_" not in name} == {"queries", "projection"}
    assert any("lora_B" in name for name in learned) == (lora is not None)
    assert all(p.grad is not None and p.grad.any() for name, p in learned.items() if "lora_A" not in name)
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert all(parameter.requires_grad for parameter in policy.model.parameters())


@ignore_conv1d
def test_gradients_are_finite_differences():
    """Of a GPT-2, whose norms are in float64 where its weights are; Llama's round to float32."""
    rng = random.Random(1)
    compressor = ContextCompressor(toy.build_policy(dtype=torch.float64), num_vectors=2, lora=LORA)
    contexts = [toy.words(rng, count) for count in (5, 0, 3)]
    groups = [with_context(g, own, compressor.bos) for g, own in zip(toy.rows(3), contexts, strict=True)]
    batch = pack(groups, columns={CONTEXT_TOKENS: torch.tensor([5, 0, 3])})

    def value():
        return compressor.score(compressor.encode(contexts), batch).logprobs.sum()

    learned = compressor.trainable_parameters()
    value().backward()
    name = next(name for name in learned if name.endswith("lora_B.default.weight"))
    for parameter, place in ((compressor.queries, (1, 3)), (compressor.projection, (2, 2)), (learned[name], (0, 1))):
        step = 1e-5
        with torch.no_grad():
            before = float(parameter[place])
            ends = []
            for moved in (before + step, before - step):
                parameter[place] = moved
                ends.append(float(value()))
            parameter[place] = before
        assert float(parameter.grad[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_weights_are_shared_with_the_model_and_an_adapter_changes_the_encoding_alone(embedded):
    compressor = ContextCompressor(embedded, num_vectors=2, lora=LORA)
    batch = rows_of(compressor)
    given, vectors = own_embeddings(compressor), compressor.compress_prompts(CONTEXTS).vectors
    expected = compressor.score(given, batch).logprobs
    with torch.no_grad():
        for name, parameter in compressor.trainable_parameters().items():
            if "lora_B" in name:
                parameter.fill_(0.1)
    assert torch.equal(compressor.score(given, batch).logprobs, expected)
    assert not torch.allclose(compressor.compress_prompts(CONTEXTS).vectors, vectors)
    theirs = {parameter.data_ptr() for parameter in embedded.model.parameters()}
    frozen = {p.data_ptr() for p in compressor.parameters() if not p.requires_grad}
    assert frozen == theirs


def test_training_mode_switches_no_dropout_of_the_model_on(embedded):
    compressor = ContextCompressor(embedded, num_vectors=2).train()
    assert not any(module.training for module in compressor.reader.modules())


@pytest.mark.parametrize("lora", [None, LORA])
def test_saved_and_loaded_is_the_same_to_the_bit(tmp_path, policy, lora):
    compressor = ContextCompressor(policy, num_vectors=2, lora=lora, seed=3)
    with torch.no_grad():
        for parameter in compressor.trainable_parameters().values():
            parameter.add_(0.01)
    folder = compressor.save_pretrained(tmp_path / "compressor")
    loaded = ContextCompressor.from_pretrained(folder, policy)
    assert torch.equal(loaded.compress_prompts(CONTEXTS).vectors, compressor.compress_prompts(CONTEXTS).vectors)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "compressor.safetensors",
        "rlhf_compressor.json",
    ]


def test_a_saved_compressor_finds_its_model(tmp_path, tiny_model_folder):
    compressor = ContextCompressor(str(tiny_model_folder), num_vectors=2)
    loaded = ContextCompressor.from_pretrained(compressor.save_pretrained(tmp_path / "c"))
    assert torch.equal(loaded.queries, compressor.queries)


def test_another_model_is_refused_by_what_differs(tmp_path, embedded, tiny_model_folder):
    folder = ContextCompressor(embedded, num_vectors=2).save_pretrained(tmp_path / "c")
    with pytest.raises(ModelError, match="hidden size"):
        ContextCompressor.from_pretrained(folder, str(tiny_model_folder))
    other = PolicyModel.from_pretrained("embedded")
    ContextCompressor.from_pretrained(folder, other)  # the same weights in another type
    other.model.double()
    with torch.no_grad():
        next(other.model.parameters())[0, 0] += 1
    with pytest.raises(ModelError, match="weights"):
        ContextCompressor.from_pretrained(folder, other)
    settings = json.loads((folder / "rlhf_compressor.json").read_text())
    assert settings["tokenizer_sha256"] == identity_of(other)["tokenizer_sha256"]
    (folder / "rlhf_compressor.json").write_text(json.dumps({**settings, "tokenizer_sha256": "0"}))
    with pytest.raises(ModelError, match="tokenizer"):
        ContextCompressor.from_pretrained(folder, embedded)


@pytest.mark.parametrize("damage", ["no settings", "no key", "no tensor", "other shape"])
def test_a_damaged_folder_is_refused(tmp_path, embedded, damage):
    folder = ContextCompressor(embedded, num_vectors=2).save_pretrained(tmp_path / "c")
    settings = json.loads((folder / "rlhf_compressor.json").read_text())
    if damage == "no settings":
        (folder / "rlhf_compressor.json").unlink()
    elif damage == "no tensor":
        (folder / "compressor.safetensors").write_bytes(b"")
    else:
        changed = (
            {**settings, "num_vectors": 3} if damage == "other shape" else {"num_vectors": 2, **identity_of(embedded)}
        )
        (folder / "rlhf_compressor.json").write_text(json.dumps(changed))
    with pytest.raises(ModelError, match=str(folder)):
        ContextCompressor.from_pretrained(folder, embedded)


def test_a_completion_ends_where_the_models_places_end(embedded):
    compressor = ContextCompressor(embedded, num_vectors=2)
    vectors = compressor.compress_prompts(["A cow eats coal."]).vectors
    [said] = compressor.generate(vectors, ["a " * 250], max_new_tokens=30)
    assert len(compressor.ids([said])[0]) <= 256 - 253
    with pytest.raises(DataError, match="256"):
        compressor.generate(vectors, ["a " * 260])


def test_wrong_arguments_are_refused(embedded):
    with pytest.raises(ConfigError, match="num_vectors"):
        ContextCompressor(embedded, num_vectors=0)
    with pytest.raises(ModelError, match="adapter"):
        ContextCompressor(apply_lora(PolicyModel.from_pretrained("embedded")), lora=LORA)
    compressor = ContextCompressor(embedded, num_vectors=2)
    with pytest.raises(DataError, match="list of texts"):
        compressor.compress_prompts("A cow eats coal.")
    with pytest.raises(DataError, match="Context 1 of compress_prompts is an int"):
        compressor.compress_prompts(["a", 5])
    with pytest.raises(DataError, match="list of lists"):
        compressor.compress_context_from_ids([1, 2, 3])
    with pytest.raises(DataError, match="vocabulary"):
        compressor.compress_context_from_ids([[1, 100_000]])
    with pytest.raises(DataError, match="256"):
        compressor.compress_context_from_ids([[5] * 255])
    with pytest.raises(ModelError, match="vectors"):
        compressor.generate(torch.zeros(1, 2, 7), PROMPTS[:1])
    with pytest.raises(ModelError, match="vectors"):
        compressor.generate(torch.zeros(2, 2, 128), PROMPTS[:1])
