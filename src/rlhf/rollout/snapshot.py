"""A copy of the policy that samples with exactly the weights it received, independent of further training.

``rlhf.rollout.sampler_process`` runs one in a separate process. Its samples depend only on the weights received, on the
request, and on its number of threads: not on timing, nor on what the trainer does meanwhile.

Messages over the pipe, pickled: first ``sys.path``, then ``Start``; then for each rollout a ``Job``, followed by the bytes of
every weight that training changes, and back ``Sampled`` or ``Refusal``. Jobs that come while one is sampled wait here, with their
weights, and answers wait until they are read, so that neither side waits for the other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Literal

import torch

from rlhf.config.engines import LocalEngineConfig
from rlhf.config.policy import SamplingConfig
from rlhf.errors import RLHFError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, PromptLike

Autocast = Literal["none", "bfloat16", "float16"]
LOOK_SECONDS = 1.0
"""Between two looks at whether the process that started this one still lives."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a prompt a sampler needs; see ``PromptLike``."""

    id: str
    ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that completions depend on in addition to the weights: the arguments of ``RolloutEngine.generate``."""

    prompts: Sequence[PromptLike]
    num_samples: int
    sampling: SamplingConfig
    seed: int
    rollout_index: int

    def slim(self) -> Request:
        """The same without what prompts carry for judges, which may be large and need not fit through a pipe."""
        asked = [Asked(prompt.id, list(prompt.ids)) for prompt in self.prompts]
        return Request(
            prompts=asked,
            num_samples=self.num_samples,
            sampling=self.sampling,
            seed=self.seed,
            rollout_index=self.rollout_index,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """What a sampler is made of."""

    policy: PolicyModel
    changing: tuple[str, ...]
    """Names of the parameters that training changes, in the order in which they will come."""
    autocast: Autocast
    threads: int
    config: LocalEngineConfig = LocalEngineConfig()  # noqa: RUF009 (frozen)
    """Of the engine."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout; the weights come behind it."""

    version: int
    """Of the weights."""
    request: Request
    wants_fingerprint: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a job gave."""

    groups: list[list[Completion]]
    """One for each prompt, in order."""
    fingerprint: str | None
    """Hash of the weights that sampled, where the job wanted it."""
    figures: dict[str, float] = field(default_factory=dict)
    """The metrics that the engine reported."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job gave nothing."""

    kind: str
    """Class of ``rlhf.errors``."""
    text: str


class SnapshotSampler:
    """The copy, in whatever process it is."""

    def __init__(self, start: Start) -> None:
        """Take ownership of a copy of the policy, which must not be shared."""
        self.policy = start.policy.eval()
        parameters = dict(self.policy.model.named_parameters())
        self._changing = [parameters[name] for name in start.changing]
        self.policy.requires_grad_(False)
        config = start.config
        self.engine = LocalEngine(
            self.policy,
            autocast=start.autocast,
            weights=config.weights,
            speculate=config.speculate,
            compiled=config.compiled,
        )

    @torch.no_grad()
    def load(self, read: Callable[[memoryview], object]) -> None:
        """Take the weights of this moment.

        Args:
            read: Fills a buffer with the bytes of the next weight.
        """
        read_weights(self._changing, read)

    def sample(self, job: Job) -> Sampled:
        """Completions of the newest weights."""
        request = job.request
        self.engine.load_weights(job.version)
        groups = self.engine.generate(
            request.prompts,
            num_samples=request.num_samples,
            sampling=request.sampling,
            seed=request.seed,
            rollout_index=request.rollout_index,
        )
        return Sampled(groups, self.policy.fingerprint() if job.wants_fingerprint else None, self.engine.figures)


@torch.no_grad()
def read_weights(parameters: Sequence[torch.Tensor], read: Callable[[memoryview], object]) -> None:
    """Overwrite parameters with bytes as ``weight_bytes`` gives them.

    Args:
        parameters: In the order in which their bytes come.
        read: Fills a buffer with the bytes of the next one.
    """
    size = max((parameter.nbytes for parameter in parameters), default=0)
    staging = torch.empty(size, dtype=torch.uint8)
    for parameter in parameters:
        part = staging[: parameter.nbytes]
        read(part.numpy().data)
        parameter.copy_(part.view(parameter.dtype).view(parameter.shape))


def weight_bytes(parameter: torch.Tensor) -> memoryview:
    """A parameter's numbers as ``SnapshotSampler.load`` takes them; a view of its memory where that is possible."""
    flat = parameter.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data


def main(descriptor: int, parent: int) -> None:
    """Serve jobs until the other end of the pipe closes or its process ends.

    Args:
        descriptor: Of the pipe.
        parent: The other process's number.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    pipe = Connection(descriptor)
    try:
        sys.path[:] = pipe.recv()
        start: Start = pipe.recv()
        torch.set_num_threads(start.threads)
        sampler = SnapshotSampler(start)
        jobs, answers = _Jobs(pipe, num_weights=len(start.changing)), _Answers(pipe)
        while True:
            job = jobs.next()
            sampler.load(jobs.read_weight)
            answers.send(_answer(sampler, job))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


class _Jobs:
    """What comes through the pipe, taken out of it by a thread at once: the trainer does not wait while a rollout is sampled."""

    def __init__(self, pipe: Connection, *, num_weights: int) -> None:
        self._pipe = pipe
        self._num_weights = num_weights
        self._received: SimpleQueue[Job | bytes | None] = SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def next(self) -> Job:
        """The oldest one, whose weights come next; EOFError where the other side has gone."""
        job = self._received.get()
        if job is None:
            raise EOFError
        assert isinstance(job, Job)
        return job

    def read_weight(self, buffer: memoryview) -> None:
        """Fill a buffer with the next weight of the job."""
        weight = self._received.get()
        if weight is None:
            raise EOFError
        assert isinstance(weight, bytes)
        buffer[:] = weight

    def _receive(self) -> None:
        try:
            while True:
                self._received.put(self._pipe.recv())
                for _ in range(self._num_weights):
                    self._received.put(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return
        finally:
            self._received.put(None)


class _Answers:
    """Sent by a thread, which waits where the other side does not read yet: sampling goes on."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: SimpleQueue[Sampled | Refusal] = SimpleQueue()
        self.send = self._waiting.put
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        try:
            while True:
                self._pipe.send(self._waiting.get())
        except OSError:
            return  # the other side has gone, which the thread that reads notices, too
        finally:
            self._pipe.close()  # so that the other side does not wait, whatever went wrong here


def _answer(sampler: SnapshotSampler, job: Job) -> Sampled | Refusal:
    try:
        return sampler.sample(job)
    except RLHFError as err:
        return Refusal(type(err).__name__, str(err))
    except MemoryError as err:
        return Refusal("MemoryLimitError", f"The sampler process ran out of memory ({err}).")
    except Exception as err:
        return Refusal("TrainingError", f"The sampler process raised {type(err).__name__}: {err}")


def _end_with(parent: int) -> None:
    """A process in the middle of a rollout would not notice for minutes that its parent is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
