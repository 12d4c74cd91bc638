"""What is printed, and how a run ends, where ranks run on several nodes; tests/faults/test_ranks_over_nodes.py has the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.launch import RayLaunchConfig
from rlhf.distributed import node_ranks, ray_ranks
from rlhf.distributed.actor_calls import ActorLostError
from rlhf.distributed.node_ranks import NodeRanks
from rlhf.errors import ConfigError, InterruptedRun, TrainingError

Said = list[Any]
"""What a node answers when it is asked for output, one after the other; an error is raised, a function called."""


class FakeCall:
    """Of a node."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.result = answer


class FakeNode:
    """An actor that answers from a list; its files are this machine's, in another folder where `folder` says so."""

    def __init__(self, said: Said, folder: Path | None) -> None:
        self.said = said
        self.ranks = NodeRanks(".")
        self.folder = folder
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, method: str, *arguments: Any) -> FakeCall:
        self.asked.append((method, *arguments))
        return FakeCall(lambda: getattr(self, method)(*arguments))

    def kill(self) -> None:
        raise AssertionError("the cluster does that")

    def check_files(self, files: dict[str, str]) -> None:
        self.ranks.check_files(
            {str(self.folder / Path(path).name) if self.folder else path: sha for path, sha in files.items()}
        )

    def begin(self, *arguments: Any) -> None:
        pass

    def output(self, seconds: float) -> Any:
        said = self.said.pop(0)
        said = said() if callable(said) else said
        if isinstance(said, Exception):
            raise said
        return said

    def stop(self, at_once: bool) -> None:
        pass


class FakeNodes:
    """Nodes that are there at once."""

    gcs_address = "10.0.0.1:6379"

    def __init__(self, *said: Said, folder: Path | None = None, version: str = ray_ranks.__version__) -> None:
        self.nodes = [FakeNode(each, folder if number else None) for number, each in enumerate(said)]
        self.version = version
        self.closed = False

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def places(self, role: str) -> list[tuple[int, str]]:
        return [(number, f"10.0.0.{number + 1}") for number in range(len(self.nodes))]

    def start_actor(self, role: str, replica: int, builds: str, arguments: Any) -> Any:
        return self.nodes[replica], FakeCall(lambda: {"version": self.version, "port": 29500 + replica})

    def wait(self, calls: Any, timeout_seconds: float) -> Any:
        return list(calls)


@pytest.fixture
def run(monkeypatch, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: run\n")

    def run(cluster: FakeNodes, *, is_stopped: Callable[[], bool] = lambda: False, **launch: Any) -> int:
        monkeypatch.setattr(ray_ranks, "RayCluster", lambda launch, **how: cluster)
        how = {"launcher": "ray", "nodes": 2, "processes_per_node": 4, **launch}
        arguments = ("run", "recipe.yaml")
        try:
            return ray_ranks.run_over_nodes(
                RayLaunchConfig.of(how), arguments, folder=tmp_path, files=[recipe], is_stopped=is_stopped
            )
        finally:
            assert cluster.closed
            assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["recipe.yaml"], "no probe is left"

    return run


def line(text: str, stream: str = "stdout") -> tuple[str, str]:
    return stream, f"{text}\n"


def test_rank_0_prints_as_ever_and_other_nodes_with_their_name(run, capsys):
    cluster = FakeNodes([([line("step 1")], None), ([], 0)], [([line("no such file", "stderr")], None), ([], 0)])
    assert run(cluster) == 0
    printed = capsys.readouterr()
    assert printed.out == "step 1\n"
    assert printed.err == "[node 1 (10.0.0.2)] no such file\n"
    begun = [next(asked for asked in node.asked if asked[0] == "begin") for node in cluster.nodes]
    assert [place for _, place, *_ in begun] == [("0", "2", "10.0.0.1", "29500"), ("1", "2", "10.0.0.1", "29500")]
    assert begun[0][2:] == (
        4,
        ["run", "recipe.yaml"],
        {"RAY_ADDRESS": "10.0.0.1:6379", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def test_gpus_are_those_that_ray_gave(run):
    cluster = FakeNodes([([], 0)], [([], 0)])
    run(cluster, processes_per_node=None, gpus_per_node=8, cpus_per_process=4)
    begun = next(asked for asked in cluster.nodes[1].asked if asked[0] == "begin")
    assert begun[2] == 8
    assert begun[4] == {"RAY_ADDRESS": "10.0.0.1:6379", "OMP_NUM_THREADS": "4"}


def test_the_first_node_that_fails_ends_the_others_and_gives_the_exit_code(run):
    cluster = FakeNodes([([], None), ([], None), ([], 75)], [([], None), ([], 5)])
    assert run(cluster) == 5
    assert [asked for asked in cluster.nodes[0].asked if asked[0] == "stop"] == [("stop", False)]


def test_a_node_that_is_lost_is_named_and_the_others_are_killed_where_they_wait_for_it(run, monkeypatch):
    monkeypatch.setattr(ray_ranks, "GRACE_SECONDS", 0.0)
    cluster = FakeNodes([*[([], None)] * 3, ([], 1)], [ActorLostError("ended (node died)")])
    with pytest.raises(TrainingError, match=r"node 1 \(10\.0\.0\.2\) was lost.*ended \(node died\).*newest checkpoint"):
        run(cluster)
    assert [asked[1] for asked in cluster.nodes[0].asked if asked[0] == "stop"] == [False, True]


def test_a_request_to_stop_is_passed_on_once_and_is_no_fault_of_a_node(run):
    cluster = FakeNodes([([], None), ([], None), ([], 75)], [([], None), ([], -15)])
    assert run(cluster, is_stopped=lambda: True) == InterruptedRun.exit_code
    assert [asked for asked in cluster.nodes[1].asked if asked[0] == "stop"] == [("stop", False)]


def test_a_node_that_does_not_see_the_run_folder_or_the_recipe_is_refused_before_ranks_start(
    run, monkeypatch, tmp_path
):
    monkeypatch.setattr(node_ranks, "SEEN_SECONDS", 0.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for text, said in (
        (None, r"recipe\.yaml is not there"),
        ("name: other\n", r"another content"),
        ("name: run\n", "output_dir"),
    ):
        if text is not None:
            (elsewhere / "recipe.yaml").write_text(text)
        cluster = FakeNodes([], [], folder=elsewhere)
        with pytest.raises(ConfigError, match=rf"node 1 \(10\.0\.0\.2\).*{said}"):
            run(cluster)
        assert all(asked[0] != "begin" for node in cluster.nodes for asked in node.asked)


def test_a_node_without_the_working_folder_is_refused_before_ranks_start(run, tmp_path):
    cluster = FakeNodes([], [])
    cluster.nodes[1].ranks.folder = str(tmp_path / "typed-here")
    with pytest.raises(ConfigError, match=r"node 1 \(10\.0\.0\.2\).*typed-here.*working folder"):
        run(cluster)
    assert all(asked[0] != "begin" for node in cluster.nodes for asked in node.asked)


def test_another_version_on_a_node_is_refused(run):
    with pytest.raises(ConfigError, match=r"node 0 .* has rlhf 0\.0\.1"):
        run(FakeNodes([], [], version="0.0.1"))


def ended(ranks: NodeRanks) -> tuple[list[tuple[str, str]], int]:
    lines: list[tuple[str, str]] = []
    while True:
        more, code = ranks.output(0.5)
        lines += more
        if code is not None:
            return lines, code


def test_the_launcher_of_a_node_ends_with_its_ranks_or_when_its_starter_is_gone():
    ranks = NodeRanks(os.getcwd())
    ranks.begin(("0", "1", "127.0.0.1", str(ranks.started()["port"])), 1, ["--version"], {})
    assert ended(ranks) == ([line(ray_ranks.__version__)], 0)
    ranks = NodeRanks(os.getcwd())
    ranks.begin(("1", "2", "127.0.0.1", "1"), 1, ["--version"], {})  # nobody is there to be met
    ranks.stop(at_once=False)
    assert ended(ranks)[1] != 0
