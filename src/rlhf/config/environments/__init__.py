"""Whom a policy talks with over several turns: a Python class of ours or of TRL, an OpenEnv server, an environment of verifiers."""

from __future__ import annotations

from rlhf.config.environments.environment_base import EnvironmentBase, ToolFormatName
from rlhf.config.environments.environment_table import ENVIRONMENT_KINDS, EnvironmentSpec, environments_of
from rlhf.config.environments.openenv_server import OpenEnvConfig
from rlhf.config.environments.python_class import PythonEnvironmentConfig
from rlhf.config.environments.trl_class import TRLEnvironmentConfig
from rlhf.config.environments.verifiers_taskset import VerifiersEnvironmentConfig

__all__ = [
    "ENVIRONMENT_KINDS",
    "EnvironmentBase",
    "EnvironmentSpec",
    "OpenEnvConfig",
    "PythonEnvironmentConfig",
    "TRLEnvironmentConfig",
    "ToolFormatName",
    "VerifiersEnvironmentConfig",
    "environments_of",
]
