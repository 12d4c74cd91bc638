"""Engines in Ray's actors are killed, stopped, given wrong weights and no room; what the run does, and within how many seconds.

    python tools/ray_drills.py                                  every drill, about six minutes
    python tools/ray_drills.py --only engine_killed --write docs/results/ray_drills.md      this row again, the others stay

Each drill is either a run of `recipes/cluster_ppo.yaml` in short, to whose processes something is done from outside, or a pool of
engines in this process. "Same bits" compares every file and every metric of the stage `ppo` with the undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, what lies beside this file is a package too

from tools.ray_drill_runs import (  # noqa: E402
    PATIENCE_SECONDS,
    DrillRun,
    caught,
    marked,
    same_bits,
    sampling,
    undisturbed,
    wait_until_gone,
)  # fmt: skip
from tools.ray_nodes import ray_nodes  # noqa: E402


@dataclass(frozen=True)
class Outcome:
    """Of one drill."""

    what: str
    """That was done."""
    became: str
    seconds: float
    measured: str
    """From what to what the seconds are."""
    good: bool


def engine_killed(work: Path) -> Outcome:
    """SIGKILL in the middle of a rollout, after weights were changed."""
    undisturbed(work)
    run, seconds = caught(work, "engine_killed", signal.SIGKILL)
    same = same_bits(run, work)
    return Outcome(
        "an engine is killed (SIGKILL) while it samples rollout 3",
        f"named, replaced; {same or 'OTHER BITS'}",
        seconds,
        "kill to alarm",
        bool(same),
    )


def engine_hangs(work: Path) -> Outcome:
    """SIGSTOP of the only engine: the process lives and does not answer, and no other engine can do its work."""
    undisturbed(work)
    settings = ("launch.pools.engines.timeout_seconds=5", "launch.pools.engines.replicas=1")
    run, seconds = caught(work, "engine_hangs", signal.SIGSTOP, *settings)
    same = same_bits(run, work)
    return Outcome(
        "the only engine hangs (SIGSTOP), `timeout_seconds: 5`",
        f"named, replaced; {same or 'OTHER BITS'}",
        seconds,
        "stop to alarm",
        bool(same),
    )


def engine_is_slow(work: Path) -> Outcome:
    """SIGSTOP for longer than the run takes: its work is given to the other engine."""
    undisturbed(work)
    run, stopped = sampling(work, "engine_is_slow")
    os.kill(stopped, signal.SIGSTOP)
    before, began = len(run.scored()), time.monotonic()
    while len(run.scored()) == before and run.process.poll() is None:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    same = same_bits(run, work)
    return Outcome(
        "an engine stands still (SIGSTOP), `timeout_seconds: 600`",
        f"its unit is given to the other engine; {same or 'OTHER BITS'}",
        seconds,
        "stop to the end of the rollout",
        bool(same) and seconds < 60,
    )


def engines_keep_dying(work: Path) -> Outcome:
    """One that samples is killed, and then whatever lives or starts."""
    run, engine = sampling(work, "engines_keep_dying", "launch.pools.engines.max_restarts=2")
    began = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    while run.process.poll() is None and time.monotonic() - began < PATIENCE_SECONDS:
        for number in run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.05)
    seconds = time.monotonic() - began
    code, said = run.finish()
    good = code == 6 and "in a row" in said and not marked(run.mark)
    return Outcome(
        "every engine is killed again and again, `max_restarts: 2`",
        f"ends with exit code {code}, the cause and a checkpoint",
        seconds,
        "first kill to end",
        good,
    )


def trainer_stopped(work: Path) -> Outcome:
    """SIGTERM, and the same command again."""
    undisturbed(work)
    run, _ = sampling(work, "trainer_stopped")
    run.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code, _ = run.finish()
    wait_until_gone(run.mark)
    seconds = time.monotonic() - began
    same = same_bits(DrillRun(work, run.name), work)
    return Outcome(
        "the run is asked to stop (SIGTERM), then started again",
        f"exit code {code}, no process left; {same or 'OTHER BITS'}",
        seconds,
        "signal to last process gone",
        code == 75 and bool(same),
    )


def trainer_killed(work: Path) -> Outcome:
    """SIGKILL: the process can't clean up."""
    undisturbed(work)
    run, _ = sampling(work, "trainer_killed")
    run.process.kill()
    run.process.wait()
    began = time.monotonic()
    while run.processes() and time.monotonic() - began < PATIENCE_SECONDS:
        time.sleep(0.05)
    seconds = time.monotonic() - began
    wait_until_gone(run.mark)  # Ray's agents take up to a minute to see that they are alone
    same = same_bits(DrillRun(work, run.name), work)
    return Outcome(
        "the process that trains is killed (SIGKILL), then started again",
        f"no process left; {same or 'OTHER BITS'}",
        seconds,
        "kill to last actor gone",
        bool(same),
    )


def head_restarted(work: Path) -> Outcome:
    """The head of a cluster that others started is killed and started again: it has no database, and knows no run."""
    settings = ("stages.ppo.rollouts=40",)
    with ray_nodes(1, 2) as cluster:
        how = (*settings, f"launch.address={cluster.address}")
        run = DrillRun(work, "head_restarted", *how, variables=cluster.variables)
        run.wait_for_score(2)
        cluster.tell("kill head")
        began = time.monotonic()
        cluster.tell("start head")
        code, said = run.finish()
        seconds = time.monotonic() - began
        told = code == 6 and "was started again" in said and "all of it is saved" in said
    with ray_nodes(1, 2) as cluster:
        how = (*settings, f"launch.address={cluster.address}")
        again, said = DrillRun(work, "head_restarted", *how, variables=cluster.variables).finish()
    return Outcome(
        "the head of a cluster that runs already is killed and started again",
        f"ends with exit code {code}{', the cause and a checkpoint' if told else ', as Ray ended it first'}; on another cluster the same "
        "command goes on",
        seconds,
        "kill to end",
        again == 0 and ("resumed from step" in said if told else code == 1),
    )


def placement_impossible(work: Path) -> Outcome:
    """More GPUs than there are: nothing is written but an empty folder."""
    run = DrillRun(
        work,
        "placement_impossible",
        "launch.pools.engines.gpus=64",
        "launch.address=null",
        "launch.placement_timeout_seconds=5",
    )
    began = time.monotonic()
    code, said = run.finish()
    seconds = time.monotonic() - began
    good = code == 2 and "GPU" in said
    return Outcome(
        "pools need 64 GPUs for each engine",
        f"exit code {code}; says what is asked and what there is",
        seconds,
        "start of the command to its end",
        good,
    )


@contextlib.contextmanager
def engines(worker: str | None = None, *, hidden: int = 0, **launch: Any) -> Iterator[tuple[Any, Any]]:
    """A pool of engines over the embedded model, or a random one of this width, and its policy."""
    from rlhf.config.engines import LocalEngineConfig
    from rlhf.config.launch import RayLaunchConfig
    from rlhf.distributed.ray_cluster import RayCluster
    from rlhf.models.policy import PolicyModel
    from rlhf.rollout.engine_pool import WORKER, PooledEngine

    policy = PolicyModel.from_pretrained("embedded")
    if hidden:
        from transformers import AutoModelForCausalLM

        config = policy.model.config
        config.update(
            {
                "hidden_size": hidden,
                "intermediate_size": 4 * hidden,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "head_dim": hidden // 8,
            }
        )
        policy = PolicyModel(AutoModelForCausalLM.from_config(config).eval(), policy.tokenizer)
    settings = RayLaunchConfig(
        **{"launcher": "ray", "pools": {"engines": {"replicas": 2, "cpus": 0.5, "max_restarts": 1}}, **launch}
    )
    cluster = RayCluster(settings)
    assert settings.pools.engines is not None
    pool = PooledEngine(cluster, settings.pools.engines, policy, LocalEngineConfig(), worker=worker or WORKER)
    try:
        cluster.open()
        yield pool, policy
    finally:
        pool.close()
        cluster.close()


def sample(pool: Any, policy: Any, *, count: int = 16, max_new_tokens: int = 16) -> list[Any]:
    """Completions of a few prompts."""
    from rlhf.config.policy import SamplingConfig
    from rlhf.data.contracts import Prompt

    texts = [f"What is number {number}?" for number in range(count)]
    prompts = [Prompt(text, policy.tokenizer(text)["input_ids"], text) for text in texts]
    groups: list[Any] = pool.generate(
        prompts, num_samples=2, sampling=SamplingConfig(max_new_tokens=max_new_tokens), seed=1, rollout_index=0
    )
    return groups


def change(policy: Any, *, seed: int) -> None:
    """Move all weights a little."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def build_corrupt(*arguments: Any) -> Any:
    """An engine to which every set of weights but the first arrives with a turned bit."""
    from rlhf.rollout.engine_worker import EngineWorker

    class Corrupt(EngineWorker):
        def take(self, version: int, checksum: str, sent: Any) -> Any:
            if version > 0 and not isinstance(sent, str):
                name = next(iter(sent))
                turned = sent[name].copy()
                turned[0] ^= 1
                sent = {**sent, name: turned}
            return super().take(version, checksum, sent)

    return Corrupt(*arguments)


def weights_corrupt(work: Path) -> Outcome:
    """What an engine computes of its memory is not what was sent."""
    from rlhf.errors import TrainingError

    with engines("tools.ray_drills:build_corrupt") as (pool, policy):
        pool.notify = lambda text: None
        pool.load_weights(0)
        sample(pool, policy)
        change(policy, seed=1)
        began = time.monotonic()
        pool.load_weights(1)
        try:
            sample(pool, policy)
            said = ""
        except TrainingError as err:
            said = str(err)
        seconds = time.monotonic() - began
    return Outcome(
        "a bit of the weights turns on the way to every engine, `max_restarts: 1`",
        "no prompt is asked; both replaced, then ends and names engine, version and checksums",
        seconds,
        "push to end",
        "acknowledged version 1" in said,
    )


def store_too_small(work: Path) -> Outcome:
    """Weights of 100 MiB and more, and an object store of 80 MiB."""
    from rlhf.rollout.local import LocalEngine

    with engines(hidden=1024, object_store_gib=0.08) as (pool, policy):
        said: list[str] = []
        pool.notify = said.append
        size = sum(parameter.nbytes for parameter in policy.parameters())
        began = time.monotonic()
        ours = sample(pool, policy, count=4)
        seconds = time.monotonic() - began
        theirs = sample(LocalEngine(policy), policy, count=4)
    same = [[c.tokens for c in group] for group in ours] == [[c.tokens for c in group] for group in theirs]
    good = same and len(said) == 1 and "object store" in said[0]
    return Outcome(
        f"weights of {size / 2**20:.0f} MiB, object store of {0.08 * 1024:.0f} MiB",
        "says so, goes through files; same tokens as the local engine",
        seconds,
        "start of the engines to their completions",
        good,
    )


DRILLS: dict[str, Callable[[Path], Outcome]] = {
    drill.__name__: drill
    for drill in (
        engine_killed, engine_hangs, engine_is_slow, engines_keep_dying, weights_corrupt, store_too_small, placement_impossible,
        trainer_stopped, trainer_killed, head_restarted,
    )
}  # fmt: skip


def page(outcomes: Sequence[tuple[str, Outcome]], command: str) -> str:
    """The table."""
    from importlib import metadata

    from rlhf.pipeline.manifest import _cpu_name

    lines = [
        "# Engines in Ray's actors: what happens when something dies",
        "",
        "<!-- written by tools/ray_drills.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {_cpu_name()}, {os.cpu_count()} cores that other programs used as well; "
        f"Ray {metadata.version('ray')}, torch {metadata.version('torch')}, Python {platform.python_version()}.",
        "",
        "Runs are `recipes/cluster_ppo.yaml` in short (two engines, six rollouts). Same bits: every file and metric of the stage",
        "`ppo` is that of the undisturbed run.",
        "",
        "| drill | done | became | seconds | measured |",
        "|---|---|---|---|---|",
    ]
    for name, one in outcomes:
        became = one.became if one.good else f"NOT AS IT SHOULD BE: {one.became}"
        lines.append(f"| `{name}` | {one.what} | {became} | {one.seconds:.1f} | {one.measured} |")
    return "\n".join(lines) + "\n"


def with_rows_of(old: str, new: str) -> str:
    """A page with the rows of an older one, of drills that were not done now, in the table's order."""
    rows = {line.split("`")[1]: line for text in (old, new) for line in text.splitlines() if line.startswith("| `")}
    head = [line for line in new.splitlines() if not line.startswith("| `")]
    return "\n".join([*head, *(rows[name] for name in DRILLS if name in rows)]) + "\n"


def main() -> None:
    """Run drills and print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(DRILLS), default=list(DRILLS))
    parser.add_argument("--write", type=Path)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only:
            outcome = DRILLS[name](Path(folder))
            print(f"{name}: {'good' if outcome.good else 'BAD'}, {outcome.seconds:.1f} s: {outcome.became}", flush=True)
            outcomes.append((name, outcome))
    only = "" if chosen.only == list(DRILLS) else f" --only {' '.join(chosen.only)}"
    write = f" --write {chosen.write}" if chosen.write else ""
    text = page(outcomes, f"python tools/ray_drills.py{only}{write}")
    if chosen.write:
        old = chosen.write.read_text(encoding="utf-8") if chosen.write.exists() else ""
        chosen.write.write_text(with_rows_of(old, text), encoding="utf-8")
    else:
        print(text)
    if not all(outcome.good for _, outcome in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
