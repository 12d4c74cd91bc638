"""What the server answered, kept in a store before the answer ends, so that feedback may name a completion by its id alone.

Texts are kept here and nowhere else, and only by a server that was started with a store (`rlhf serve MODEL --store feedback.db`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf.errors import RLHFError
from rlhf.serving.api_requests import ChatBody, GenerationBody
from rlhf.serving.asked_requests import Asked
from rlhf.serving.generate_api import Completed
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.store.pseudonyms import store_pseudonyms
from rlhf.store.served_completions import OWN_PROGRAM, ServedCompletion, drop_old, keep_completions, served_user

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

log = logging.getLogger(__name__)
DROP_SECONDS = 3600.0
"""How often completions are looked for that are too old."""


class CompletionMemory:
    """The completions of one server.

    Args:
        store: Where they are kept.
        metrics: Told of those that could not be.
        days: After so long a completion is deleted.
        consent: ``assumed`` keeps what is not refused, ``required`` what is agreed to.
        has_keys: Whether clients are programs with keys, and not addresses.
    """

    def __init__(
        self, store: PreferenceStore, metrics: ServingMetrics, *, days: float, consent: str, has_keys: bool
    ) -> None:
        self.store, self._metrics, self._days, self._has_keys = store, metrics, days, has_keys
        self._needs_consent = consent == "required"
        self._pseudonym = store_pseudonyms(store)

    def program(self, client: str) -> str:
        """Whose completions a client's are: its key's, or those of everybody where there are no keys."""
        return client if self._has_keys else OWN_PROGRAM

    def user(self, program: str, user: str) -> str:
        """The name under which somebody is kept."""
        return served_user(self._pseudonym, program, user)

    def of(self, body: GenerationBody, asked: Sequence[Asked], prompts: Sequence[Any], client: str) -> Answer | None:
        """Of a request that is being answered; None where its user does not want it kept.

        Args:
            body: Of the request.
            asked: With the engine, one for each prompt.
            prompts: As the model was given them.
            client: Who asks.
        """
        if body.consent is False or (self._needs_consent and body.consent is None):
            return None
        program = self.program(client)
        kwargs = body.chat_template_kwargs if isinstance(body, ChatBody) else None
        return Answer(
            self, asked, prompts, program, self.user(program, body.person or client), kwargs or {}, body.consent
        )

    async def keep(self, completions: Sequence[ServedCompletion]) -> None:
        """On disk when this returns. What can't be kept is logged and counted; its answer is given all the same."""
        try:
            await asyncio.to_thread(keep_completions, self.store.engine, completions)
        except RLHFError as err:
            self._metrics.not_kept.inc(len(completions))
            log.warning("completions were answered and not kept, so feedback on them will be refused: %s", err)

    async def drop_old(self) -> None:
        """Delete what is too old, now and every hour."""
        while True:
            try:
                if number := await asyncio.to_thread(drop_old, self.store.engine, days=self._days):
                    log.info("%d completions older than %g days were deleted", number, self._days)
            except RLHFError as err:
                log.warning("completions that are too old were not deleted: %s", err)
            await asyncio.sleep(DROP_SECONDS)


@dataclass(frozen=True, slots=True)
class Answer:
    """The completions of one request."""

    memory: CompletionMemory
    asked: Sequence[Asked]
    prompts: Sequence[Any]
    program: str
    user: str
    template_kwargs: Mapping[str, Any]
    consent: bool | None

    async def keep(self, completed: Mapping[int, Completed]) -> None:
        """Keep completions by their places among all of the request."""
        await self.memory.keep([self._kept(index, one) for index, one in completed.items()])

    def _kept(self, index: int, completed: Completed) -> ServedCompletion:
        number = index // self.asked[0].num_samples
        one = self.asked[number]
        sampling = {**one.sampling.model_dump(mode="json"), "seed": one.seed}
        if one.search is not None:
            sampling["search"] = dict(one.search)
        return ServedCompletion(
            completion_id=self.asked[0].id, index=index, program=self.program, user=self.user, model=one.name,
            weights=one.model.fingerprint, version=one.model.version, prompt=self.prompts[number], completion=completed.text,
            finish_reason=completed.finish_reason or "", sampling=sampling,
            template_kwargs=self.template_kwargs, consent=self.consent,
        )  # fmt: skip
