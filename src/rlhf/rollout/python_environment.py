"""Environments that are Python classes with ``reset`` and ``step``."""

from __future__ import annotations

import functools

from rlhf.config.environments import PythonEnvironmentConfig
from rlhf.rollout.environments import EnvironmentContext, OpenedEnvironment


def open_python(settings: PythonEnvironmentConfig, at: EnvironmentContext) -> OpenedEnvironment:
    """One object of the class for each episode, called in this process, one after the other."""
    return OpenedEnvironment(functools.partial(at.load(settings.source), **at.arguments))
