"""A vocabulary in parts over ranks gives what a whole one gives, and no rank has it whole."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.model import LoRAConfig
from rlhf.errors import ModelError
from rlhf.models.adapters import add_lora
from rlhf.models.sharded_models import vocabulary_modules
from tests.fixtures import toy
from tests.fixtures import trained_over_ranks as cases
from tests.fixtures import vocabulary_in_parts as parts
from tests.fixtures.two_ranks import run_over_ranks
from tests.fixtures.vocabulary_memory import take_steps
from tests.invariants.test_ranks import furthest

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)], ids=["2 ranks", "3 ranks"])
def found(request, tmp_path_factory):
    """What each rank found of each form."""
    results = run_over_ranks(parts.all_forms, folder=tmp_path_factory.mktemp("parts"), size=request.param)
    for result in results:
        assert not isinstance(result, BaseException), result
    return results


@pytest.mark.parametrize("name", parts.FORMS)
def test_results_and_gradients_are_those_of_the_whole_table_of_logits(name, found):
    table, gradients = parts.plainly(parts.FORMS[name], len(found))
    torch.testing.assert_close(torch.cat([of_rank[name][0] for of_rank in found]), table, rtol=1e-12, atol=1e-12)
    by_hidden = torch.cat([of_rank[name][1].pop("hidden") for of_rank in found])
    torch.testing.assert_close(by_hidden, gradients.pop("hidden"), rtol=1e-12, atol=1e-12)
    for of_rank in found:
        assert of_rank[name][1].keys() == gradients.keys()
        for key, gradient in gradients.items():
            torch.testing.assert_close(of_rank[name][1][key], gradient, rtol=1e-12, atol=1e-12)


def test_no_tensor_is_as_large_as_the_weight(found):
    vocabulary = parts.FORMS["several tiles and runs"]["vocabulary"]
    per_rank = -(-vocabulary // len(found))
    for of_rank in found:
        assert of_rank["several tiles and runs"][2] <= per_rank * parts.WIDTH


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("target", ["lm_head", "wte"])
def test_an_adapter_on_the_vocabulary_is_refused_by_name(target):
    model = toy.build_policy().model
    add_lora(model, LoRAConfig(rank=2, alpha=4, target_modules=[target]), task="CAUSAL_LM", seed=0)
    with pytest.raises(ModelError, match=r"vocab_parallel.*target_modules"):
        vocabulary_modules(model)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_bits_and_in_one_process_and_back(tmp_path):
    assert cases.train_with_checkpoints(tmp_path / "of-one", name="ppo", killed_at=7) is None
    (found, _) = run_over_ranks(cases.train_vocabulary, tmp_path, folder=tmp_path)
    assert not isinstance(found, BaseException), found
    assert all(torch.equal(value, found["resumed"][name]) for name, value in found["uninterrupted"].items())
    assert furthest(found["uninterrupted"], found["from one"]) < 1e-9
    assert furthest(found["uninterrupted"], cases.train_with_checkpoints(tmp_path / "of-two", name="ppo")) < 1e-9


@pytest.mark.slow
def test_a_step_takes_less_memory_where_the_vocabulary_is_large(tmp_path):
    whole, in_parts = (
        max(run_over_ranks(take_steps, wanted, folder=tmp_path), key=lambda of_rank: of_rank["peak"])
        for wanted in (False, True)
    )
    print(f"whole {whole}\nin parts {in_parts}")
    assert in_parts["peak"] < 0.7 * whole["peak"]
