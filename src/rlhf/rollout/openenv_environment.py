"""An OpenEnv server as an environment: what the policy says becomes actions, and observations become text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from rlhf.config.environments import OpenEnvConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, did_you_mean
from rlhf.rollout.environments import EnvironmentContext, EnvironmentSession, OpenedEnvironment, Turn
from rlhf.rollout.openenv_sessions import (
    HTTPSession,
    OpenEnvError,
    RefusedActionError,
    ServerFullError,
    ServerLimits,
    ServerSession,
    WebSocketSession,
    ask,
)
from rlhf.rollout.tool_arguments import TRIAL_WORD, TYPES, example_of
from rlhf.rollout.tool_formats import TOOL_FORMATS, choose_tool_format
from rlhf.rollout.tool_session import ToolFailedError, ToolSession, error_text
from rlhf.seeds import derive_seed

TOOL = "step"
"""Name of the tool whose arguments are an action's fields."""
UNSEEN = ("metadata", "done", "reward", "terminated", "truncated")
"""Fields of an observation that the policy does not read."""
SECONDS_MORE = 1.0
"""A session waits so much longer than its caller, who then counts it among those that hang."""
SEEDS = 2**31
"""``reset`` takes a whole number from 0."""


@dataclass(frozen=True, slots=True)
class ActionSchema:
    """What the server's ``/schema`` says of an action."""

    properties: Mapping[str, Any]
    required: Sequence[str]
    whole: Mapping[str, Any]

    def text_field(self) -> str | None:
        """The one required field, if that is a text."""
        only = self.required[0] if len(self.required) == 1 else None
        return only if only is not None and self.properties[only].get("type") == "string" else None

    def tool(self, name: str) -> dict[str, Any]:
        """Schema of a tool whose arguments are the action's fields."""
        fields = {key: about for key, about in self.properties.items() if key != "metadata"}
        parameters = {**self.whole, "type": "object", "properties": fields, "required": list(self.required)}
        about = str(self.whole.get("description") or f"Act in the environment at {name}.")
        return {"type": "function", "function": {"name": TOOL, "description": about, "parameters": parameters}}

    def trial_call(self) -> str:
        """A call in plain text whose arguments fit the schema; without a call, where none can be made up."""
        made = {key: example_of(self.properties[key]) for key in self.required}
        if None in made.values():
            return TRIAL_WORD
        if len(self.properties) == 1 and all(isinstance(value, str) for value in made.values()) and made:
            return f"{TOOL}({next(iter(made.values()))})="
        return f"{TOOL}({', '.join(f'{key}={value!r}' for key, value in made.items())})="


class OpenEnvText(EnvironmentSession):
    """An episode in which each turn of the policy is the text of an action."""

    def __init__(self, episode: OpenEnvEpisode, field: str) -> None:
        """Prepare for one episode.

        Args:
            episode: On the server.
            field: Of the action, for the policy's text.
        """
        self._episode = episode
        self._field = field

    @override
    def reset(self, prompt: Prompt) -> str | None:
        return self._episode.reset(prompt)

    def step(self, text: str) -> Turn:
        """Respond to the text of the policy's turn, without special tokens. A text that the server refuses is answered with its reason."""
        try:
            return self._episode.step({self._field: text})
        except RefusedActionError as err:
            return Turn(error_text(err), info={"refused_actions": 1.0})

    @override
    def finish(self) -> float | None:
        return self._episode.finish()

    @override
    def close(self) -> None:
        self._episode.close()


class OpenEnvEpisode:
    """One episode on a server: also the one tool of a ``rlhf.rollout.tool_session.ToolBox``."""

    def __init__(self, settings: OpenEnvConfig, action: ActionSchema, *, seed: int) -> None:
        """Nothing is sent yet.

        Args:
            settings: Where, and how.
            action: What the server takes.
            seed: The run's.
        """
        self._settings = settings
        self._action = action
        self._seed = seed
        self._session: ServerSession | None = None
        self._first_reward: float | None = None

    def reset(self, prompt: Prompt) -> str | None:
        """Open a session and start the episode: siblings of one prompt get the same seed."""
        wanted = self._settings.reset_columns
        if wanted is not None and (lacks := [name for name in wanted if name not in prompt.columns]):
            raise ValueError(f"the row has no column {lacks[0]!r}, which environment.reset_columns names")
        columns = {
            name: value
            for name, value in prompt.columns.items()
            if name != "tools" and (wanted is None or name in wanted)
        }
        data = {name: value for name, value in columns.items() if wanted is not None or _is_json(value)}
        seed = derive_seed(self._seed, "environment", prompt.id) % SEEDS
        self._session = open_session(self._settings)
        answer = self._session.reset({"seed": seed, "episode_id": uuid.uuid4().hex, **data})
        self._first_reward = answer.reward
        if answer.done:
            raise ValueError("the episode is over as soon as it begins")
        return observation_text(answer.observation, self._settings.observation_field) or None

    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of the tools, known once ``reset`` was called."""
        return [self._action.tool(self._settings.source)]

    def step(self, action: Mapping[str, Any]) -> Turn:
        """Act. Raises ``OpenEnvError``."""
        assert self._session is not None, "an episode begins with reset"
        answer = self._session.step(action)
        text = observation_text(answer.observation, self._settings.observation_field)
        return Turn(text, done=answer.done, reward=answer.reward)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Call a tool; the turn's observation is its result. Raises ``ToolFailedError``. The server's reason to refuse an action goes
        to the policy."""
        try:
            return self.step(arguments)
        except RefusedActionError as err:
            raise ToolFailedError(str(err)) from err

    def finish(self) -> float | None:
        """A last reward, asked once the episode is over; None adds nothing. What ``reset`` gave, which is nothing as a rule."""
        return self._first_reward

    def close(self) -> None:
        """Give back what the episode holds; called also for one that failed."""
        if self._session is not None:
            self._session.close()
            self._session = None


def open_openenv(settings: OpenEnvConfig, at: EnvironmentContext) -> OpenedEnvironment:
    """Ask the server what it takes, and how many sessions.

    Raises:
        ConfigError: The server can't be reached, or speaks something else.
        ModelError: The chat template does not say how calls are written.
    """
    limits = _limits(settings)
    try:
        ask(settings.source, "/health", limits)
        action = read_action_schema(ask(settings.source, "/schema", limits))
        sessions = count_sessions(settings)
    except OpenEnvError as err:
        raise ConfigError(f"The OpenEnv server {settings.source} {err}.") from err
    notes = [f"OpenEnv server {settings.source}: {sessions} {'session' if sessions == 1 else 'sessions'} at a time"]
    if sessions == 1:
        notes[0] += ", so episodes are played one after the other"
    field = _field_of_text(settings, action)

    def episode() -> OpenEnvEpisode:
        return OpenEnvEpisode(settings, action, seed=at.seed)

    if field is not None:
        notes.append(f"a turn of the policy is the field {field!r} of an action")
        return OpenedEnvironment(
            make=lambda: OpenEnvText(episode(), field),
            speaks_first=True,
            sessions=sessions,
            parallel=sessions,
            notes=notes,
            trial_turn=TRIAL_WORD,
        )
    family = choose_tool_format(settings.tool_format, at.tokenizer, has_messages=at.has_messages)
    notes.append(
        f"an action is a call of the tool {TOOL!r}, read in the format {family!r}, such as {TOOL_FORMATS[family].about}"
    )
    return OpenedEnvironment(
        make=lambda: ToolSession(episode(), TOOL_FORMATS[family]),
        tools=lambda columns: [action.tool(settings.source)],
        speaks_first=True,
        sessions=sessions,
        parallel=sessions,
        notes=notes,
        trial_turn=action.trial_call(),
    )


def open_session(settings: OpenEnvConfig, *, waits: bool = True) -> ServerSession:
    """A session of the recipe's transport. Raises ``OpenEnvError``."""
    if settings.transport == "http":
        return HTTPSession(settings.source, _limits(settings))
    return WebSocketSession(settings.source, _limits(settings), waits=waits)


def count_sessions(settings: OpenEnvConfig) -> int:
    """How many episodes the server plays at a time, up to ``max_sessions``.

    Raises:
        OpenEnvError: None.
    """
    if settings.transport == "http":
        return 1
    held: list[ServerSession] = []
    try:
        while len(held) < settings.max_sessions:
            try:
                held.append(open_session(settings, waits=not held))
            except ServerFullError:
                if not held:
                    raise
                break
    finally:
        for session in held:
            session.close()
    return len(held)


def read_action_schema(answer: Mapping[str, Any]) -> ActionSchema:
    """What ``/schema`` says of actions.

    Raises:
        OpenEnvError: It is no JSON schema of an object.
    """
    whole = answer.get("action")
    if not isinstance(whole, Mapping):
        raise OpenEnvError("answered /schema without `action`, a JSON schema")
    properties, required = whole.get("properties", {}), whole.get("required", [])
    if whole.get("type", "object") != "object" or not isinstance(properties, Mapping) or not isinstance(required, list):
        raise OpenEnvError("answered /schema with an `action` that is no JSON schema of an object")
    wrong = [key for key, about in properties.items() if not isinstance(about, Mapping)]
    if wrong or (wrong := [key for key in required if key not in properties]):
        raise OpenEnvError(f"answered /schema with an `action` whose field {wrong[0]!r} has no schema")
    unknown = [
        about["type"]
        for about in properties.values()
        if isinstance(about.get("type"), str) and about["type"] not in TYPES
    ]
    if unknown:
        raise OpenEnvError(f"answered /schema with the type {unknown[0]!r}; JSON schemas have {', '.join(TYPES)}")
    return ActionSchema(properties, required, whole)


def observation_text(observation: Mapping[str, Any], field: str | None) -> str:
    """What the policy reads.

    Args:
        observation: As the server gives it.
        field: Of it; None for its only text, or the whole as JSON.

    Raises:
        ValueError: There is no such field.
    """
    if field is not None:
        if field not in observation:
            raise ValueError(
                f"the observation has no field {field!r}, which environment.observation_field names.{did_you_mean(field, observation)}"
            )
        value = observation[field]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    seen = {key: value for key, value in observation.items() if key not in UNSEEN}
    texts = [value for value in seen.values() if isinstance(value, str)]
    if len(texts) == 1:
        return texts[0]
    return json.dumps(seen, ensure_ascii=False) if seen else ""


def _field_of_text(settings: OpenEnvConfig, action: ActionSchema) -> str | None:
    """The field for the policy's text; None where a turn is a call.

    Raises:
        ConfigError: There is no such field.
    """
    if settings.action == "tool":
        return None
    field = settings.action_field or action.text_field()
    if field is None and settings.action == "auto":
        return None
    if field is None or field not in action.properties:
        known = ", ".join(action.properties) or "none"
        why = f"has no field {field!r}" if field is not None else "has no single required field that is a text"
        raise ConfigError(
            f"The action of the OpenEnv server {settings.source} {why}; its fields are: {known}. Name one in environment.action_field, "
            "or take `action: tool`."
        )
    return field


def _limits(settings: OpenEnvConfig) -> ServerLimits:
    return ServerLimits(settings.timeout_seconds + SECONDS_MORE, settings.max_response_bytes)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
