"""What docs/cluster.md and docs/ranks.md tell to type on two machines, typed on two hosts that share nothing but files and a network cable.

Their names lead to 127.0.1.1, as Debian and Ubuntu set them up. In the end the cable is pulled in the middle of runs, and plugged in again.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.test_ranks import finished, online, start, write_recipe
from tests.faults.test_ranks_over_nodes import files_of, wait_for_checkpoint
from tests.fixtures.two_hosts import Host, two_hosts, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install ray"),
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces here: {why_not()}"),
]
CLUSTER = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "6" * 32,
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
RAY = (sys.executable, "-m", "ray.scripts.scripts")
RLHF = (sys.executable, "-m", "rlhf")
SOON = {"RAY_health_check_timeout_ms": "3000", "RAY_health_check_period_ms": "1000"}
"""Of the head: a node that can't be reached is given up after five checks of four seconds together; with Ray's own numbers it takes 65."""
NOTICED_SECONDS = 90.0
"""Of which ten are for the ranks of other nodes to end."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with two_hosts(tmp_path_factory.mktemp("shared")) as both:
        yield both


@pytest.fixture(scope="module")
def cluster(hosts):
    """The two as nodes of a Ray cluster; its address."""
    first, second = hosts
    address = f"{first.address}:6379"
    first.type(
        *RAY, "start", "--head", "--port", "6379", "--include-dashboard=false", "--num-cpus", "2", env=CLUSTER | SOON
    )
    join(second, address)
    return address


def join(host: Host, address: str) -> None:
    host.type(*RAY, "start", "--address", address, "--num-cpus", "2", env=CLUSTER)


def typed(host: Host, *words: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`rlhf` with these words, on a host of the cluster."""
    return host.run(*RLHF, *words, env={**CLUSTER, **(variables or {})})


@pytest.fixture(scope="module")
def recipe(hosts):
    folder = hosts[0].folder
    return write_recipe(folder, grpo=online(folder, "grpo") | {"rollouts": 3})


@pytest.fixture(scope="module")
def on_one_host(recipe):
    """The run folder of two ranks on this machine."""
    code, printed = finished(start(recipe, recipe.parent / "one", ranks=2))
    assert code == 0, printed
    return recipe.parent / "one" / "run"


def type_torchrun(
    hosts: Sequence[Host], recipe: Path, output: str, *settings: str, **variables: str
) -> list[tuple[int, str]]:
    """Type torchrun on both, as docs/ranks.md has it; exit code and words of each."""
    launched = []
    for number, host in enumerate(hosts):
        where = (
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--node-rank",
            str(number),
            "--master-addr",
            hosts[0].address,
        )
        torchrun = (sys.executable, "-m", "torch.distributed.run", *where, "--master-port", "29500", "-m", "rlhf")
        launched.append(
            host.run(*torchrun, "run", str(recipe), f"output_dir={recipe.parent / output}", *settings, env=variables)
        )
    return [finished(process) for process in launched]


def assert_same(mine: Path, theirs: Path) -> None:
    for stage in ("sft", "dpo", "grpo"):
        assert files_of(mine / stage) == files_of(theirs / stage), stage


def test_torchrun_typed_on_both_gives_the_bits_of_ranks_on_one(hosts, recipe, on_one_host):
    for code, printed in type_torchrun(hosts, recipe, "torchrun"):
        assert code == 0, printed
    assert_same(recipe.parent / "torchrun" / "run", on_one_host)


def test_ranks_that_can_not_connect_end_on_both_and_name_the_network_interface(hosts, recipe):
    for code, printed in type_torchrun(hosts, recipe, "nowhere", GLOO_SOCKET_IFNAME="lo"):
        assert code != 0, printed
        assert "GLOO_SOCKET_IFNAME" in printed
        assert "fault of rlhf" not in printed


def test_an_address_or_a_token_that_is_wrong_is_one_error(hosts, cluster, recipe):
    second = hosts[1]
    tried = [
        ("No route to host", "10.77.0.99:6379", {}),
        ("Connection refused", f"{hosts[0].address}:6380", {}),
        ("refuses the token", cluster, {"RAY_AUTH_TOKEN": "7" * 32}),
    ]
    engine = ("launch=ray", "launch.pools.engines.replicas=1")
    runs = []
    for number, (_, address, variables) in enumerate(tried):
        settings = (f"output_dir={recipe.parent / f'refused-{number}'}", *engine, f"launch.address={address}")
        runs.append(typed(second, "run", str(recipe), *settings, variables=variables))
    for run, (words, _, _) in zip(runs, tried, strict=True):
        code, printed = finished(run)
        assert (code, words in printed) == (2, True), printed


def over_ranks(host: Host, recipe: Path, output: str, *settings: str) -> subprocess.Popen[str]:
    ranks = ("launch.launcher=ray", "launch.nodes=2", "launch.processes_per_node=1", "launch.cpus_per_process=0.5")
    return typed(host, "run", str(recipe), f"output_dir={recipe.parent / output}", *ranks, *settings)


def with_engines(output: Path, address: str) -> list[str]:
    """Settings of a run with an engine on each host."""
    return [
        f"output_dir={output}", "launch.launcher=ray", f"launch.address={address}", "launch.pools.engines.replicas=2",
        "launch.pools.engines.cpus=0.5", "launch.pools.engines.prompts_per_unit=2", "stages.grpo.rollouts=40",
    ]  # fmt: skip


def test_ranks_that_ray_starts_on_both_give_the_bits_of_ranks_on_one(hosts, cluster, recipe, on_one_host):
    code, printed = finished(over_ranks(hosts[0], recipe, "ray"))
    assert code == 0, printed
    assert_same(recipe.parent / "ray" / "run", on_one_host)


def learned(run: Path) -> bool:
    """Whether a rollout was learned from."""
    log = run / "events.jsonl"
    return log.exists() and '"stage": "grpo", "event": "metrics"' in log.read_text()


def test_a_cable_that_is_pulled_costs_no_result(hosts, cluster, recipe):
    first, second = hosts
    tree = json.loads(recipe.read_text())
    online_alone = recipe.with_name("online.yaml")
    online_alone.write_text(json.dumps({**tree, "stages": {"grpo": {**tree["stages"]["grpo"], "model": "embedded"}}}))
    until_sft = ("--until", "sft", "stages.sft.max_steps=100000")
    ranks = over_ranks(first, recipe, "cut", *until_sft)
    pooled = recipe.parent / "pooled" / "run"
    wait_for_checkpoint(ranks, recipe.parent / "cut" / "run" / "sft")
    pool = typed(first, "run", str(online_alone), *with_engines(pooled.parent, "auto"))
    while not learned(pooled) and pool.poll() is None:
        time.sleep(0.05)
    assert [pool.poll(), ranks.poll()] == [None, None]
    for host, other in ((first, second), (second, first)):
        host.cut_off(other)
    began = time.monotonic()
    code, printed = finished(ranks)
    assert code == 6, printed
    assert "node 1 (10.77.0.2) was lost" in printed, printed
    print(f"the loss of a node ended its run after {time.monotonic() - began:.0f} seconds")
    assert time.monotonic() - began < NOTICED_SECONDS
    code, printed = finished(pool)
    assert code == 0, printed
    for host, other in ((first, second), (second, first)):
        host.reach_again(other)
    alone = recipe.parent / "alone" / "run"
    code, printed = finished(start(online_alone, alone.parent, *with_engines(alone.parent, "null"), ranks=1))
    assert code == 0, printed
    assert files_of(pooled / "grpo") == files_of(alone / "grpo")
    second.type(*RAY, "stop", "--force", env=CLUSTER)
    join(second, cluster)
    again = over_ranks(first, recipe, "cut", *until_sft)
    assert again.stdout is not None
    assert any("resumed from step" in line for line in again.stdout)
    again.kill()  # what runs on the host ends with it
    again.wait()
    again.stdout.close()
