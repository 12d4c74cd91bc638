"""vLLM's process over a whole run: started lazily, updated with every version of the weights, restarted once when it is lost."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rlhf.config.engines import VLLMEngineConfig
from rlhf.errors import ConfigError, MissingExtraError, ModelError, RLHFError, TrainingError, pip_line
from rlhf.rollout.vllm_process import WorkerLostError, WorkerProcess, WorkerRefusedError
from rlhf.rollout.vllm_weights import PushedWeights

logger = logging.getLogger(__name__)

WORKER = Path(__file__).with_name("vllm_worker.py")
OLDEST, BEFORE = (0, 32), (0, 34)
"""Versions of vLLM, from the first on and before the second, that have the calls the worker makes."""
TRIES = 2
"""Attempts per request, each in a new process."""

T = TypeVar("T")


class Session:
    """Asks vLLM's process, and holds it to the weights that it was given."""

    def __init__(
        self, config: VLLMEngineConfig, *, dtype: str, log: Path, options: Mapping[str, Any] | None = None
    ) -> None:
        """Nothing is started before the first push.

        Args:
            config: Which vLLM, and how.
            dtype: That it computes in.
            log: Gets what the process prints.
            options: Arguments of ``vllm.LLM`` beside those of ``config``.
        """
        self.config = config
        self._options = dict(options or {})
        self.dtype = dtype
        self.log = log
        self.notify: Callable[[str], None] = logger.warning
        """Called with a message when the process had to be restarted."""
        self.restarts = 0
        """How often it was lost."""
        self.vllm = ""
        """Version of vLLM, once it is known."""
        self.on_cpu = False
        """Whether that vLLM is one for CPUs."""
        self._process: WorkerProcess | None = None
        self._wanted: tuple[PushedWeights, int] | None = None
        self._state: Mapping[str, Any] = {}
        """The process's answer to the newest push."""

    @property
    def is_lost(self) -> bool:
        """Whether the process was started and has ended."""
        return self._process is not None and not self._process.is_alive

    def open(self) -> None:
        """Let the process begin, so that it is known which vLLM it has; raises as ``push`` does."""
        self._with_restart("hello", lambda process: None, ready=self._opened)

    def push(self, weights: PushedWeights, version: int) -> None:
        """Let it load weights, and hear that it did.

        Raises:
            ConfigError: There is no such interpreter, or its vLLM is of a version that is not known to work.
            MissingExtraError: There is no vLLM.
            ModelError: vLLM does not start with this model.
            TrainingError: It was lost twice, or has not the weights that it should have.
        """
        self._wanted = weights, version

        def load(process: WorkerProcess) -> None:
            if not self._is_in_step():  # a new process began with them
                self._accept(self._ask(process, "load", self._address()))

        self._with_restart("load", load)

    def ask(self, op: str, *, repeats: bool = True, **arguments: Any) -> dict[str, Any]:
        """Its answer to a request about the weights that were pushed last; raises as ``push`` does.

        Args:
            op: What is asked.
            repeats: Ask again in a new process where the first was lost; False where the answer rests on earlier requests.
            arguments: Of the request.
        """
        answer = self._with_restart(
            op, lambda process: self._ask(process, op, arguments), tries=TRIES if repeats else 1
        )
        weights, version = self._newest()
        if (answer["version"], answer["weights"]) != (version, weights.digest):
            raise self._failed(
                f"vLLM answered with weights of version {answer['version']} ({answer['weights'][:12]}...), and the trainer is at "
                f"{version} ({weights.digest[:12]}...): stale weights."
            )
        return answer

    def foreign(self) -> str | None:
        """A hash of the weights in its memory, where they are no longer those that it acknowledged; None where they are."""
        state = self.ask("state")
        return None if state == self._state else str(state["memory"])

    def close(self) -> None:
        """End the process; the next request would start it again."""
        if self._process is not None:
            self._process.close()
        self._process, self._state = None, {}

    def _newest(self) -> tuple[PushedWeights, int]:
        assert self._wanted is not None, "weights are pushed before anything is asked"
        return self._wanted

    def _address(self) -> dict[str, Any]:
        weights, version = self._newest()
        return {"folder": str(weights.folder), "files": dict(weights.files), "version": version}

    def _is_in_step(self) -> bool:
        weights, version = self._newest()
        return (self._state.get("version"), self._state.get("weights")) == (version, weights.digest)

    def _with_restart(
        self,
        op: str,
        action: Callable[[WorkerProcess], T],
        *,
        ready: Callable[[], WorkerProcess] | None = None,
        tries: int = TRIES,
    ) -> T:
        """``action``, once more in a new process where the first was lost; a new one begins with the newest weights."""
        why = ""
        for left in reversed(range(tries)):
            try:
                return action((ready or self._started)())
            except WorkerLostError as err:
                if not left:
                    before = f"{why}, and after a restart it " if why else ""
                    self.restarts += not why
                    self.close()
                    raise self._failed(f"vLLM's process {before}{err} (at {op!r}).") from None
                why = str(err)
                self._start_anew(why)
            except Exception:
                raise
            except BaseException:  # a signal; the process was ended in the middle of its request, by us
                self.close()
                raise
        raise AssertionError("the last loss raises")

    def _start_anew(self, why: str) -> None:
        self.restarts += 1
        newest = f" with the weights of version {self._wanted[1]}" if self._wanted else ""
        said = f" Its last output: {words}" if (words := self._last_words()) else ""
        self.close()
        self.notify(f"vLLM's process {why}; restarting it{newest}.{said}")

    def _opened(self) -> WorkerProcess:
        """A process that lives and has imported vLLM."""
        if self._process is None:
            self._process = WorkerProcess(self._interpreter(), WORKER, env=self.config.env, log=self.log)
            with self._closed_on_error():
                answer = self._ask(self._process, "hello", {})
                self.on_cpu = bool(answer["on_cpu"])
                self._check_version(str(answer["vllm"]))
        if not self._process.is_alive:
            raise WorkerLostError(self._process.how_it_ended())
        return self._process

    def _started(self) -> WorkerProcess:
        """A process whose vLLM has a model."""
        process = self._opened()
        if not self._state:
            config = self.config
            options = {"dtype": self.dtype, **self._options, **config.options}
            if config.max_model_len is not None:
                options["max_model_len"] = config.max_model_len
            arguments = {**self._address(), "options": options, "kv_cache_gib": config.kv_cache_gib}
            with self._closed_on_error():
                self._accept(self._ask(process, "start", arguments))
        return process

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close a process that failed to start."""
        try:
            yield
        except RLHFError:
            self.close()
            raise

    def _interpreter(self) -> str:
        if self.config.python is not None:
            return self.config.python
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtraError(
                "engine: vllm needs vLLM, which this environment does not have. Name the interpreter of one that has in "
                f"engine.python, or install it here with: {pip_line('vllm')}"
            )
        return sys.executable

    def _check_version(self, version: str) -> None:
        self.vllm = version
        match = re.match(r"(\d+)\.(\d+)", version)
        numbers = (int(match[1]), int(match[2])) if match else (0, 0)
        if self.config.any_version or OLDEST <= numbers < BEFORE:
            return
        old = "older" if numbers < OLDEST else "newer"
        first, last = ".".join(map(str, OLDEST)), f"{BEFORE[0]}.{BEFORE[1] - 1}"
        raise ConfigError(
            f"engine: vllm found vLLM {self.vllm}, {old} than what it works with, {first} to {last}. Install one of those, or set "
            "engine.any_version: true to try."
        )

    def _ask(self, process: WorkerProcess, op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        starting = op in ("hello", "start")
        seconds = self.config.start_timeout_seconds if starting else self.config.timeout_seconds
        try:
            return process.ask(op, arguments, timeout_seconds=seconds)
        except WorkerRefusedError as err:
            raise self._refusal(op, err) from None

    def _accept(self, state: Mapping[str, Any]) -> None:
        """Check what the process reports to have loaded."""
        (weights, version), before = self._newest(), self._state
        if (state["version"], state["weights"]) != (version, weights.digest):
            raise self._failed(
                f"vLLM was given weights of version {version} ({weights.digest[:12]}...) and says that it has version "
                f"{state['version']} ({state['weights'][:12]}...)."
            )
        changed = before and before["weights"] != state["weights"]
        # Where it rounds what it loads, a small step may be lost in that.
        if changed and before["memory"] == state["memory"] and weights.dtype == self.dtype:
            raise self._failed(
                f"vLLM reports that it loaded the weights of version {version}, but its memory still holds those of version "
                f"{before['version']}: stale weights. Can vLLM reload models of this family?"
            )
        self._state = state

    def _refusal(self, op: str, err: WorkerRefusedError) -> RLHFError:
        who = self.config.python or sys.executable
        if err.kind == "absent":
            return MissingExtraError(
                f"engine.python is {who}, and there is no vLLM in its environment. Install it there, or name another interpreter."
            )
        if err.kind == "broken":
            return ConfigError(f"The vLLM of {who} does not work: {err}. Its log is {self._kept_log()}.")
        if err.kind == "start":
            return ModelError(
                f"vLLM does not start with this model: {err} (engine.max_model_len, engine.kv_cache_gib and engine.options are what "
                f"can be changed.) Its log is {self._kept_log()}."
            )
        if err.kind == "checksum":
            _, version = self._newest()
            return TrainingError(
                f"The weights of version {version} were damaged on their way to vLLM: {err}. Look at that disk, or set TMPDIR to "
                "another."
            )
        self.close()  # it may be in the middle of the request; the next request gets a new process
        return self._failed(f"vLLM failed at {op!r}: {err}.")

    def _failed(self, message: str) -> TrainingError:
        return TrainingError(f"{message} Its log is {self._kept_log()}.")

    def _kept_log(self) -> str:
        """A copy that outlives this run's temporary folder."""
        with tempfile.NamedTemporaryFile(prefix="rlhf-vllm-", suffix=".log", delete=False) as kept:
            if self.log.is_file():
                kept.write(self.log.read_bytes())
        return kept.name

    def _last_words(self) -> str:
        """The last line of the log that is not empty."""
        if not self.log.is_file():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
