from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf.config.cluster import ClusterConfig
from rlhf.config.fsdp import FSDPConfig
from rlhf.config.model import ModelConfig
from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, DataError, UnknownNameError
from rlhf.scale.cluster_plan import plan_on_cluster
from rlhf.scale.clusters import cluster_of, read_cluster
from rlhf.scale.communication import LINK_SHARE, START_SECONDS
from rlhf.scale.communication import Group as Ranks
from rlhf.scale.gpus import TABLE
from rlhf.scale.layout_seconds import LayoutSeconds, cut
from rlhf.scale.layouts import Layout, Models, layout_memory, layouts_for, sampling_memory
from rlhf.scale.links import LINKS, OF_GPUS
from rlhf.scale.plan import StageFacts
from rlhf.scale.sampled_lengths import read_sampled_lengths
from rlhf.scale.shape import known_family, shape_of
from rlhf.scale.work import Pass, Work

ROOT = Path(__file__).parents[3]
GIB = 1 << 30
FIGURES = {"memory_gib": 10, "bfloat16_tflops": 100, "float32_tflops": 10, "bandwidth_gb_per_second": 1000}


def cluster(**changes):
    tree = {
        "accelerator": FIGURES, "nodes": 2, "gpus_per_node": 4, "host_memory_gib": 512,
        "links": {"within_node": 100.0, "between_nodes": 10.0, "host": 20.0}, **changes,
    }  # fmt: skip
    return cluster_of(ClusterConfig.of(tree, source="test.yaml"), source="test.yaml")


@pytest.fixture
def recipe(tmp_path):
    def build(**stages):
        return RecipeConfig.of(
            {"name": "it", "output_dir": str(tmp_path), "stages": {"world": {"kind": "world"}, **stages}}, source="test"
        )

    return build


def llama(layers=8, hidden=1024):
    init = {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False,
    }  # fmt: skip
    return {"init": init, "tokenizer": "embedded"}


# -------------------------------------------------------------------------------------------------------------- clusters


def test_a_name_stands_for_nodes_of_published_accelerators_and_links():
    actual = read_cluster("2x8xH100")
    assert (actual.nodes, actual.gpus_per_node, actual.num_gpus, actual.name) == (2, 8, 16, "2x8xH100")
    assert (actual.within_node, actual.between_nodes, actual.host) == (450e9, 50e9, 63e9)
    assert read_cluster("4xL40S").between_nodes is None
    assert actual.part_sizes == [1, 2, 4, 8, 16]


def test_every_accelerator_has_links_and_every_link_a_source():
    assert set(OF_GPUS) == set(TABLE)
    for links in OF_GPUS.values():
        assert {links.within_node, links.host} <= set(LINKS)
        assert links.between_nodes is None or links.between_nodes in LINKS
    assert all(link.source and link.gb_per_second > 0 for link in LINKS.values())


@pytest.mark.parametrize(
    ("text", "error", "key"),
    [
        ("8xH1000", UnknownNameError, "accelerator"),
        ("2x4xL4", ConfigError, "links.between_nodes"),
        ("absent.yaml", ConfigError, "absent.yaml"),
        ("H100", ConfigError, "2x8xH100"),
    ],
)
def test_a_name_that_says_too_little_is_refused(text, error, key):
    with pytest.raises(error, match=key):
        read_cluster(text)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"accelerator": "H10O"}, "accelerator"),
        ({"gpus_per_nodes": 8}, "gpus_per_nodes"),
        ({"nodes": 0}, "nodes"),
        ({"links": {"within_node": "NVLink9"}}, "links.within_node"),
        ({"links": {"between_nodes": -1.0}}, "links"),
        ({"accelerator": {**FIGURES, "memory_gib": -1}}, "memory_gib"),
        ({"accelerator": FIGURES, "links": {}}, "links.within_node"),
    ],
)
def test_a_file_with_a_wrong_setting_is_refused_by_its_key(tmp_path, change, key):
    file = tmp_path / "cluster.yaml"
    file.write_text(json.dumps({"accelerator": "H100", "nodes": 2, "gpus_per_node": 8, **change}))
    with pytest.raises(ConfigError, match=key) as caught:
        read_cluster(str(file))
    assert "cluster.yaml" in str(caught.value)


def test_an_empty_file_is_told_what_a_cluster_needs(tmp_path):
    (tmp_path / "cluster.yaml").touch()
    with pytest.raises(ConfigError, match="at least `accelerator:`"):
        read_cluster(str(tmp_path / "cluster.yaml"))


# ---------------------------------------------------------------------------------------------------------- collectives


def test_inside_a_node_each_rank_receives_what_the_others_hold():
    # 4 ranks, 100 GB/s: three quarters of 8e9 bytes in 0.06 s, at 80 % of the link
    assert Ranks.over(cluster(), 4).gather(8e9) == pytest.approx(0.06 / LINK_SHARE + START_SECONDS)
    assert Ranks.over(cluster(), 1).gather(8e9) == 0


def test_between_nodes_every_accelerator_brings_its_own_adapter():
    # 8 ranks of 2 nodes: half of 8e9 bytes over 4 adapters of 10 GB/s take 0.1 s; inside 7/8 of it 0.07 s
    ranks = Ranks.over(cluster(), 8)
    assert ranks.gather(8e9) == pytest.approx(0.1 / LINK_SHARE + 2 * START_SECONDS)
    assert ranks.all_reduce(8e9) == 2 * ranks.gather(8e9)
    # ranks that each stand for a tensor-parallel pair have half as many adapters
    assert Ranks.over(cluster(), 4, stride=2).gather(8e9) == pytest.approx(0.2 / LINK_SHARE + 2 * START_SECONDS)


# --------------------------------------------------------------------------------------------------------------- memory


def stage(*, vocab_parallel=False, **settings):
    return SimpleNamespace(
        autocast="none", ema_decay=None, early_stopping=None, l2_coef=0, model=ModelConfig.of(llama()),
        fsdp=FSDPConfig(vocab_parallel=vocab_parallel), **settings,
    )  # fmt: skip


def memory_of(shape, layout, *, vocab_parallel=False, **models):
    models = Models(trained=(shape,), copies=1, **{"reference": None, "rewards": (), **models})
    settings = stage(vocab_parallel=vocab_parallel)
    return layout_memory(
        models, layout, cluster(), parts={"batch": 7.0}, tokens=100.0, scored_share=0.5, stage=settings
    )


def test_components_of_a_rank_by_hand():
    shape = shape_of(ModelConfig.of(llama()))
    weights = 4.0 * shape.num_parameters
    alone, _ = memory_of(shape, Layout(num_gpus=1))
    assert (alone["weights"], alone["gradients"], alone["optimizer"], alone["batch"]) == (
        weights,
        weights,
        2 * weights,
        7,
    )
    sharded, _ = memory_of(shape, Layout(num_gpus=8, sharding="full_shard"), reference=shape)
    assert (sharded["weights"], sharded["gradients"], sharded["optimizer"]) == (weights / 8, weights / 8, weights / 4)
    assert sharded["reference"] == weights / 8
    in_layers = 4.0 * shape.num_body
    assert sharded["gathered weights"] == pytest.approx(
        (weights - in_layers + in_layers / 4) * 7 / 8
    )  # two of eight layers
    in_parts, _ = memory_of(shape, Layout(num_gpus=8, sharding="full_shard"), vocab_parallel=True)
    assert in_parts["gathered weights"] == pytest.approx(in_layers / 4 * 7 / 8)
    hybrid, _ = memory_of(shape, Layout(num_gpus=8, sharding="hybrid_shard"))
    assert hybrid["weights"] == weights / 4
    offloaded, host = memory_of(shape, Layout(num_gpus=8, sharding="zero-1", offload=True))
    assert "optimizer" not in offloaded
    assert host == 2 * weights / 8
    pair, _ = memory_of(shape, Layout(num_gpus=8, sharding="zero-2", tensor_size=2))
    assert (pair["weights"], pair["gradients"], pair["optimizer"]) == (weights / 2, weights / 8, weights / 4)
    assert pair["activations"] == alone["activations"] / 2


def test_reward_models_are_in_shards_and_a_teacher_is_whole_on_each_rank():
    shape = shape_of(ModelConfig.of(llama()))
    ranks, _ = memory_of(shape, Layout(num_gpus=8, sharding="full_shard"), rewards=(shape,), teacher=shape)
    assert ranks["reward models"] == 4 * shape.num_parameters / 8
    assert ranks["teacher"] == 4 * shape.num_parameters


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        (Layout(num_gpus=8, sharding="full_shard"), []),
        (
            Layout(num_gpus=8, sharding="hybrid_shard", gradient_checkpointing=True),
            ["model.gradient_checkpointing=true", "fsdp.replicate=2"],
        ),
        (Layout(num_gpus=4, sharding="replicated"), ["fsdp.replicate=4"]),
        (Layout(num_gpus=8, sharding="zero-2"), ["deepspeed=FILE"]),
        (Layout(num_gpus=1), []),
        (
            Layout(num_gpus=8, sharding="full_shard", placement="service"),
            [
                "launch.launcher=ray",
                "launch.pools.engines.replicas=8",
                "launch.pools.engines.gpus=1",
                "launch.address=auto",
            ],
        ),
        (
            Layout(num_gpus=8, sharding="full_shard", placement="service", engine_size=4),
            [
                "engine.kind=vllm",
                "engine.options.tensor_parallel_size=4",
                "launch.launcher=ray",
                "launch.pools.engines.replicas=2",
                "launch.pools.engines.gpus=4",
                "launch.address=auto",
            ],
        ),
    ],
)
def test_a_layout_says_which_settings_do_it(layout, settings):
    assert layout.settings(cluster()) == settings


def test_only_the_policy_is_whole_on_each_rank_while_completions_are_sampled():
    shape = shape_of(ModelConfig.of(llama()))
    layout = Layout(num_gpus=8, sharding="full_shard")
    models = Models(trained=(shape, shape), copies=1, reference=shape, rewards=())
    found, _ = layout_memory(models, layout, cluster(), parts={}, tokens=100.0, scored_share=0.5, stage=stage())
    sampling = sampling_memory(models, layout, found, cached_bytes=5.0, lowered=0.0)
    assert sampling["policy whole for sampling"] == 4 * shape.num_parameters
    assert sampling["reference"] == 4 * shape.num_parameters / 8
    assert sampling["KV cache"] == 5
    assert "activations" not in sampling
    engines = sampling_memory(
        models, replace(layout, placement="service", engine_size=4), found, cached_bytes=8.0, lowered=0.0
    )
    assert (engines["rollout engine"], engines["KV cache"]) == (shape.num_parameters, 2)


def test_no_layout_crosses_nodes_with_tensor_parallelism_or_offloads_into_unknown_memory():
    layouts = list(layouts_for(cluster(host_memory_gib=None), 8, recomputed=False, adapters=False, samples=True))
    assert max(layout.tensor_size for layout in layouts) == 4
    assert not any(layout.offload for layout in layouts)
    assert len(set(layouts)) == len(layouts)
    assert all(
        layout.gradient_checkpointing
        for layout in layouts_for(cluster(), 4, recomputed=True, adapters=True, samples=False)
    )


# -------------------------------------------------------------------------------------------------------------- seconds


@pytest.mark.parametrize(
    ("tokens", "ranks", "turns", "each"),
    [(1000, 1, 3, 1000 / 3), (1000, 2, 2, 250), (1000, 4, 1, 250), (100, 8, 1, 50)],  # a group of 50 tokens is not cut
)
def test_every_rank_takes_as_many_micro_batches(tokens, ranks, turns, each):
    dealt = cut(tokens, limit=400, ranks=ranks, unit=50)
    assert (dealt.turns, dealt.tokens) == (turns, pytest.approx(each))


def seconds_of(layout, *, links=None, tokens=4096.0, settings=None):
    shape = shape_of(ModelConfig.of(llama(hidden=2048)))
    rows = [Group(list(range(64)), [Branch(list(range(64)))])]
    work = Work(1.0, [Pass("forward", "policy", tokens, 512)], [], {"policy": 1.0})
    facts = StageFacts(work=work, groups=rows, steps=1, said="", parts={}, scored_share=0.5)
    where = cluster(links={"within_node": 100.0, "between_nodes": 10.0, "host": 20.0, **(links or {})})
    return LayoutSeconds(facts, {"policy": shape}, layout, where, settings or stage()).learning()


def test_ranks_share_the_work_and_pay_for_it_in_communication():
    one, four = seconds_of(Layout(num_gpus=1)), seconds_of(Layout(num_gpus=4, sharding="full_shard"))
    assert four["backward"] == pytest.approx(one["backward"] / 4)
    assert four["optimizer"] == pytest.approx(one["optimizer"] / 4)
    assert one["communication"] == 0 < four["communication"]


def test_slow_links_between_nodes_are_seen_and_hybrid_sharding_uses_them_less():
    def communication(sharding, between):
        return seconds_of(Layout(num_gpus=8, sharding=sharding), links={"between_nodes": between})["communication"]

    assert communication("full_shard", 0.1) > 10 * communication("full_shard", 100.0)
    assert communication("hybrid_shard", 0.1) < communication("full_shard", 0.1)


def test_checkpointing_computes_again_and_the_host_is_slower_than_the_accelerator():
    plain, again = seconds_of(Layout(num_gpus=1)), seconds_of(Layout(num_gpus=1, gradient_checkpointing=True))
    assert again["backward"] > 1.3 * plain["backward"]
    assert seconds_of(Layout(num_gpus=1, offload=True))["optimizer"] > 3 * plain["optimizer"]


def test_a_teacher_that_is_whole_on_each_rank_is_not_gathered():
    shape = shape_of(ModelConfig.of(llama(hidden=2048)))
    rows = [Group(list(range(64)), [Branch(list(range(64)))])]
    facts = StageFacts(work=Work(1.0, [], [], {}), groups=rows, steps=1, said="", parts={}, scored_share=0.5)

    def communication(whose):
        read = [Pass("reward", whose, 4096.0, 512, "scalar")]
        layout = Layout(num_gpus=8, sharding="full_shard")
        return LayoutSeconds(facts, {whose: shape}, layout, cluster(), stage()).reading(read)["communication"]

    assert communication("teacher") == 0 < communication("reward 1")


def test_a_host_with_too_little_memory_holds_no_optimizer(recipe):
    sft = {
        "kind": "sft",
        "model": llama(24, 2048),
        "data": "stage:world/sft.jsonl",
        "batch_size": 64,
        "max_length": 512,
    }
    one = {"accelerator": {**FIGURES, "memory_gib": 26}, "nodes": 1, "gpus_per_node": 1}
    enough, little = (
        plan_on_cluster(recipe(sft=sft), cluster(**one, host_memory_gib=gib)).stages[0] for gib in (64, 4)
    )
    assert (enough.cheapest.layout.offload, enough.verdict) == (True, "fits")
    assert not little.cheapest.layout.offload


def test_tensor_parallelism_computes_faster_and_sums_activations():
    one, pair = seconds_of(Layout(num_gpus=1)), seconds_of(Layout(num_gpus=2, tensor_size=2))
    assert pair["backward"] < 0.6 * one["backward"]
    slow = seconds_of(Layout(num_gpus=2, tensor_size=2), links={"within_node": 1.0})
    assert slow["communication"] > 50 * pair["communication"]


# ---------------------------------------------------------------------------------------------------------------- plans


def test_the_cheapest_costs_least_of_all_that_fit_and_a_price_only_scales_it(recipe):
    sft = {
        "kind": "sft",
        "model": llama(24, 2048),
        "data": "stage:world/sft.jsonl",
        "batch_size": 64,
        "max_steps": 100,
        "max_length": 512,
    }
    free = plan_on_cluster(recipe(sft=sft), cluster(accelerator={**FIGURES, "memory_gib": 24})).stages[0]
    assert free.verdict == "fits"
    assert free.cheapest.cost is None
    assert free.cheapest.layout.num_gpus > 1  # 16 bytes of 1.6e9 weights are more than 70 % of 24 GiB
    assert all(free.cheapest.gpu_seconds_per_step <= other.gpu_seconds_per_step for other in free.others)
    assert free.fastest.seconds_per_step <= free.cheapest.seconds_per_step
    priced = plan_on_cluster(
        recipe(sft=sft), cluster(accelerator={**FIGURES, "memory_gib": 24}, price_per_gpu_hour=2.0)
    )
    [stage] = priced.stages
    assert stage.cheapest.layout == free.cheapest.layout
    hours = 100 * stage.cheapest.seconds_per_step * stage.cheapest.layout.num_gpus / 3600
    assert stage.cheapest.cost == pytest.approx(2 * hours) == priced.cost


def test_the_memory_of_the_host_is_used_where_there_is_no_other_way(recipe):
    sft = {
        "kind": "sft",
        "model": llama(24, 2048),
        "data": "stage:world/sft.jsonl",
        "batch_size": 64,
        "max_length": 512,
    }

    def offloads(gib):
        one = cluster(accelerator={**FIGURES, "memory_gib": gib}, nodes=1, gpus_per_node=1)
        return plan_on_cluster(recipe(sft=sft), one).stages[0].cheapest.layout.offload

    assert [offloads(gib) for gib in (60, 26)] == [
        False,
        True,
    ]  # 16 bytes of 1.6e9 weights, 13 of them without averages


def test_what_runs_now_is_nothing_that_a_run_would_refuse(recipe):
    sft = {
        "kind": "sft",
        "model": llama(24, 2048),
        "data": "stage:world/sft.jsonl",
        "batch_size": 64,
        "max_length": 512,
    }

    def planned(gib, gpus, **settings):
        where = cluster(accelerator={**FIGURES, "memory_gib": gib}, nodes=1, gpus_per_node=gpus)
        return plan_on_cluster(recipe(sft=sft | settings), where).stages[0]

    alone = planned(26, 1)  # DeepSpeed keeps the optimizer on the host over ranks only
    assert alone.cheapest.needs == ["DeepSpeed in one process"]
    assert alone.cheapest_now is None
    assert planned(24, 4).cheapest_now is not None
    compiled = planned(24, 4, compiled=True)
    assert compiled.cheapest.needs == ["compiled over ranks"]
    assert compiled.cheapest_now is None
    averaged = planned(24, 4, ema_decay=0.9).cheapest_now
    assert averaged is not None
    assert not averaged.layout.by_deepspeed


def test_less_memory_takes_more_accelerators_until_nothing_fits(recipe):
    sft = {
        "kind": "sft",
        "model": llama(24, 2048),
        "data": "stage:world/sft.jsonl",
        "batch_size": 64,
        "max_length": 512,
    }

    def planned(gib):
        return plan_on_cluster(
            recipe(sft=sft), cluster(accelerator={**FIGURES, "memory_gib": gib}, host_memory_gib=None)
        ).stages[0]

    sizes = [planned(gib).cheapest.layout.num_gpus for gib in (200, 24, 12)]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert [planned(gib).verdict for gib in (200, 6, 2)] == ["fits", "tight", "constrained"]
    nothing = planned(2)
    assert nothing.cheapest_now is None
    assert nothing.cheapest.memory_frac > 1


@pytest.mark.parametrize(("name", "where"), [("ppo_7b", "8xH100"), ("ppo_70b", "4x8xA100-80GB")])
def test_the_recipes_of_large_models_are_planned_without_their_files(name, where):
    plan = plan_on_cluster(load_recipe(ROOT / "recipes" / "large" / f"{name}.yaml"), read_cluster(where))
    assert [stage.kind for stage in plan.stages] == ["sft", "reward", "ppo"]
    assert {stage.verdict for stage in plan.stages} == {"fits"}
    ppo = plan.stages[-1]
    assert ppo.num_trainable < ppo.num_parameters / 100
    assert (ppo.pipelines[0].result.kind, ppo.pipelines[0].num_sampling) == ("synchronous", 0)
    assert any("its files were not read" in sentence for sentence in ppo.assumed)
    document = json.loads(json.dumps(plan.as_dict()))
    assert document["stages"][2]["cheapest"]["memory_bytes"] == pytest.approx(sum(ppo.cheapest.memory.values()))


def test_the_staleness_of_the_recipe_is_simulated_too(recipe):
    grpo = {
        "kind": "grpo", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "reward": "rlhf.testing:constant",
        "async_rollouts": {"max_staleness": 3},
    }  # fmt: skip
    (stage,) = plan_on_cluster(recipe(grpo=grpo), cluster()).stages
    assert [(one.result.kind, one.result.max_staleness) for one in stage.pipelines][-1] == ("asynchronous", 3)


def test_a_hub_name_of_a_known_family_has_a_shape_and_others_have_not():
    config = ModelConfig.of({"path": "meta-llama/Meta-Llama-3.1-8B-Instruct"})
    assert known_family(config) == "Llama-3.1-8B"
    assert shape_of(config).num_parameters == 8_030_261_248
    assert known_family(ModelConfig.of({"path": "someone/Llama-3.1-9B"})) is None
    assert known_family(ModelConfig.of({"path": "embedded"})) is None


# ------------------------------------------------------------------------------------------------------ sampled lengths


def write_rollouts(path, rows):
    keys = ("step", "prompt", "completion", "prompt_ids", "completion_ids")
    lines = [
        dict(zip(keys, (step, "p", "c", [prompt] * 3, list(range(length))), strict=True), ended=True, score=0.0, kl=0.0)
        for step, prompt, length in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_lengths_of_a_file_keep_siblings_together_and_decide_a_plan(tmp_path, recipe):
    file = tmp_path / "rollouts.jsonl"
    write_rollouts(file, [(1, 1, 4), (1, 1, 6), (1, 2, 100), (1, 2, 100), (2, 2, 4)])
    sampled = read_sampled_lengths(file)
    assert sampled.groups == [(3, [4, 6]), (3, [100, 100]), (3, [4])]
    [batch] = sampled.batches(1, groups=50, group_size=2, longest=64, seed=0)
    assert {tuple(row.length for row in group) for group in batch} == {(4, 6), (64, 64)}
    grpo = {
        "kind": "grpo", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "reward": "rlhf.testing:constant",
        "group_size": 2, "minibatch_size": 4,
        "prompts_per_rollout": 8, "rollouts": 3, "sampling": {"max_new_tokens": 64},
    }  # fmt: skip
    short = tmp_path / "short.jsonl"
    write_rollouts(short, [(1, 1, 4), (1, 1, 6)])
    long, brief = (
        plan_on_cluster(recipe(grpo=grpo), cluster(), sampled=read_sampled_lengths(name)).stages[0]
        for name in (file, short)
    )
    assert brief.cheapest.seconds["rollout"] < long.cheapest.seconds["rollout"]
    assert str(short) in brief.lengths


def test_a_file_that_holds_no_token_ids_is_refused_by_its_row(tmp_path):
    file = tmp_path / "rollouts.jsonl"
    write_rollouts(file, [(1, 1, 4), (1, 1, 0)])
    with pytest.raises(DataError, match="row 2"):
        read_sampled_lengths(file)
    file.write_text("")
    with pytest.raises(DataError, match="no row"):
        read_sampled_lengths(file)
