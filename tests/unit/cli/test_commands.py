"""Which modules a command imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlhf.cli.commands import COMMANDS, LazyCommands

LOADED = """
import json, sys
from rlhf.cli import main
sys.argv = ["rlhf", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit:
    pass
print("", json.dumps(sorted(name for name in sys.modules if name.startswith("rlhf."))), sep="\\n")
"""
IMPLEMENTED_IN = {entry.implementation.partition(":")[0] for entry in COMMANDS.values()}


@pytest.mark.parametrize(
    ("words", "implemented_in"),
    [
        (["--version"], set()),
        (["--help"], set()),
        (["runs", "list", "--runs", "nowhere"], {"runs"}),
        (["lineage", "nowhere"], {"runs"}),
        (["sft", "model=nowhere", "data=nowhere"], {"run"}),
    ],
)
def test_a_command_imports_its_own_module_and_no_other_command_s(words, implemented_in):
    ran = subprocess.run([sys.executable, "-c", LOADED, json.dumps(words)], capture_output=True, text=True)
    document = json.loads(ran.stdout.splitlines()[-1])
    assert {name for name in IMPLEMENTED_IN if f"rlhf.cli.{name}" in document} == implemented_in, ran.stderr
    assert words != ["--help"] or "rlhf.config.base" not in document, "no settings are needed to list commands"


def test_the_names_of_commands_are_known_without_their_modules():
    commands = LazyCommands()
    assert [name for name in COMMANDS if name in commands] == list(COMMANDS)
    assert "sft" in commands
    assert "nowhere" not in commands
    assert len(list(commands)) == len(commands)
    with pytest.raises(KeyError, match="nowhere"):
        commands["nowhere"]
    lines = {name: command.help for name, command in commands.listed().items()}
    assert list(lines) == list(commands)
    for name in ("gate", "registry", "capabilities"):  # a function, a group, and brackets that are no markup
        assert commands[name].help.partition("\n")[0] == lines[name]
