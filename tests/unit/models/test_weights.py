from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlhf.errors import ModelError
from rlhf.models.weights import check_complete, check_finite


def complete(**names):
    return check_complete("folder", nn.Linear(2, 2), **{"missing": (), "mismatched": (), "unexpected": (), **names})


@pytest.mark.parametrize(
    "name",
    [
        "model.rotary_emb.inv_freq",
        "model.layers.3.self_attn.rotary_emb.inv_freq",
        "transformer.h.0.attn.bias",
        "transformer.h.0.attn.masked_bias",
        "embeddings.position_ids",
        "lm_head.weight",
        "embed_out.weight",
        "v_head.summary.weight",
        "vision_tower.blocks.0.weight",
        "model.visual.merger.mlp.0.weight",
        "mtp.layers.0.weight",
    ],
)
def test_what_a_language_model_may_leave_unread_is_let_pass(name):
    complete(unexpected=[name])


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.7.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.bias",
        "model.layers.0.output.weight",
        "model.norm.bias",
        "model.embed_tokens.lora_A",
    ],
)
def test_a_part_of_the_model_is_never_left_unread(name):
    with pytest.raises(ModelError, match=r"1 weights.*Linear"):
        complete(unexpected=[name, "lm_head.weight"])


def test_three_names_are_shown_and_the_rest_counted():
    with pytest.raises(ModelError, match=r"lacks 5 .*Linear needs: a, b, c and 2 more"):
        complete(missing=list("edcba"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_weight_that_is_no_number_is_found(dtype, value):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(dtype)
    check_finite("folder", model)
    with torch.no_grad():
        model[1].weight[2, 1] = value
    with pytest.raises(ModelError, match=r"1 of its weights: 1\.weight\."):
        check_finite("folder", model)


def test_the_largest_number_of_a_type_is_a_number():
    model = nn.Linear(2, 2).half()
    with torch.no_grad():
        model.weight.fill_(torch.finfo(torch.float16).max)
    check_finite("folder", model)
