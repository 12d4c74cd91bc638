from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest

from rlhf.errors import ConfigError
from rlhf.native import library
from rlhf.native.library import compiler, load
from rlhf.pipeline.doctor import probes

NAME, MACROS = "softmax", {"HALF": 0}
"""What is compiled soonest."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    load.cache_clear()
    yield tmp_path / "cache"
    load.cache_clear()


@pytest.fixture
def compilations(monkeypatch) -> list[list[str]]:
    commands = []
    own = library._compile
    monkeypatch.setattr(library, "_compile", lambda one, more: commands.append([*one, *more]) or own(one, more))
    return commands


def stand_in(folder: Path, body: str) -> str:
    """A compiler that is a script."""
    file = folder / "my-cc"
    file.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo mine && exit 0\n{body}\n')
    file.chmod(0o755)
    return str(file)


needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")


@needs_compiler
def test_a_library_is_compiled_once_for_each_set_of_macros(own_cache, compilations):
    assert load(NAME, **MACROS) is load(NAME, **MACROS)
    load.cache_clear()  # as in another process
    actual = load(NAME, **MACROS)
    assert len(compilations) == 1
    assert isinstance(actual, ctypes.CDLL)
    load(NAME, **MACROS | {"HALF": 1})
    assert len(compilations) == 2
    assert len(list((own_cache / "native").glob(f"{NAME}-*.so"))) == 2


@needs_compiler
@pytest.mark.parametrize("changed", ["source", "processor", "compiler"])
def test_what_it_was_made_from_is_in_its_name(changed, compilations, monkeypatch):
    load(NAME, **MACROS)
    load.cache_clear()
    if changed == "source":
        own = Path.read_text
        monkeypatch.setattr(
            Path, "read_text", lambda path, **how: own(path, **how) + ("\n" if path.suffix == ".c" else "")
        )
    elif changed == "processor":
        monkeypatch.setattr(library, "_processor", lambda: "another")
    else:
        monkeypatch.setattr(library, "compiler_version", lambda actual: "another")
    load(NAME, **MACROS)
    assert len(compilations) == 2


@needs_compiler
def test_without_a_cache_nothing_stays(compilations, monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_CACHE", "off")
    monkeypatch.setattr(library, "_own_folder", lambda: tmp_path / "gone with the process")
    load(NAME, **MACROS)
    assert len(compilations) == 1
    assert not (tmp_path / "cache").exists()


def test_a_library_that_can_not_be_loaded_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", stand_in(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"'))
    with pytest.raises(ConfigError, match=rf"{NAME}-\w+\.so .*delete"):
        load(NAME, **MACROS)


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("CC", stand_in(tmp_path, 'echo "softmax.c:1: no such instruction" >&2; exit 3'))
    with pytest.raises(
        ConfigError,
        match=r"my-cc .*softmax\.c: softmax\.c:1: no such instruction",
    ):
        load(NAME, **MACROS)
    assert not list((own_cache / "native").iterdir())


def test_a_compiler_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", stand_in(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(library, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(ConfigError, match=r"my-cc .*timed out"):
        load(NAME, **MACROS)


def test_a_compiler_that_is_not_there_is_no_compiler(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiler() is None
    with pytest.raises(
        ConfigError,
        match=r"\$CC is 'no-such-compiler'.*cc, gcc, clang",
    ):
        load(NAME, **MACROS)


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ("'gcc", "not closed"),
        (" ", "names nothing"),
        ("''", "'' is not an executable"),
        ("/tmp -x", "'/tmp' is not an executable"),
    ],
)
def test_what_names_no_program_is_no_compiler(asked, fault, monkeypatch):
    monkeypatch.setenv("CC", asked)
    assert compiler() is None
    assert f"{asked!r}: " in library.why_no_compiler()
    assert fault in library.why_no_compiler()


@pytest.mark.parametrize(
    ("script", "says"),
    [("#!/bin/sh\nexec sleep 60\n", "timed out after 0.5 s"), ("nothing that can be run\n", "Exec format error")],
)
def test_a_compiler_that_does_not_say_what_it_is(script, says, tmp_path, monkeypatch):
    file = tmp_path / "my-cc"
    file.write_text(script, encoding="utf-8")
    file.chmod(0o755)
    monkeypatch.setenv("CC", str(file))
    monkeypatch.setattr(library, "VERSION_SECONDS", 0.5)
    with pytest.raises(ConfigError, match=rf"my-cc .*\(.*{says}.*\); .*compiled"):
        load(NAME, **MACROS)
    assert probes.c_compiler() == str(file), "and the doctor goes on"


@needs_compiler
def test_a_compiler_may_say_what_it_is_in_any_bytes(tmp_path, monkeypatch):
    file = tmp_path / "my-cc"
    file.write_bytes(
        b"#!/bin/sh\n[ \"$1\" = --version ] && printf 'cc \\351' && exit 0\nexec " + compiler()[0].encode() + b' "$@"\n'
    )
    file.chmod(0o755)
    monkeypatch.setenv("CC", str(file))
    assert probes.c_compiler() == f"{file} (cc \ufffd)"
    load(NAME, **MACROS)


def test_without_one_on_the_path_it_says_which_were_looked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler() is None
    with pytest.raises(ConfigError, match=r"cc, gcc, clang .*PATH"):
        load(NAME, **MACROS)


@needs_compiler
def test_a_compiler_may_come_with_arguments(compilations, monkeypatch):
    plain = compiler()[0]
    monkeypatch.setenv("CC", f"{plain} -pipe '-DNOTE=two words'")
    load(NAME, **MACROS)
    assert compilations[0][:3] == [plain, "-pipe", "-DNOTE=two words"]
    assert "-march=native" in compilations[0]


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another processor")
def test_the_processor_that_a_compiler_s_arguments_name_is_kept_to(compilations, monkeypatch):
    monkeypatch.setenv("CC", f"{compiler()[0]} -march=x86-64-v3")
    load("softmax", HALF=1)
    assert [word for word in compilations[0] if word.startswith("-march")] == ["-march=x86-64-v3"]


VARIANTS = [
    *(("decode", {"WIDTH": width, "HALF": half, "BLOCK": 128}) for width in (2, 64, 80) for half in (0, 1)),
    *(("tree", {"WIDTH": width, "VALUE_WIDTH": other, "HALF": half})
      for width, other, half in ((24, 5, 0), (64, 64, 0), (24, 5, 1), (80, 80, 1), (96, 64, 1))),
    ("tree", {"WIDTH": 64, "VALUE_WIDTH": 64, "HALF": 1, "TILES": 0}),
    ("decode", {"WIDTH": 64, "HALF": 1, "BLOCK": 128, "TILES": 0}),
    ("tree", {"WIDTH": 64, "VALUE_WIDTH": 64, "HALF": 1, "PAIRS": 0}),
    ("layers", {"HALF": 1}),
    ("softmax", {"HALF": 0}),
    ("softmax", {"HALF": 1}),
]  # fmt: skip
"""Each branch of the sources' #if: heads of no, an odd and an even number of vectors; without and with pairs, and tiles."""


@pytest.mark.slow  # a second of the compiler for each
@needs_compiler
@pytest.mark.parametrize(("name", "macros"), VARIANTS, ids=str)
def test_every_variant_compiles_without_a_warning(name, macros, tmp_path):
    source = Path(library.__file__).with_name(f"{name}.c")
    defined = [f"-D{key}={value}" for key, value in macros.items()]
    done = subprocess.run(
        # A vector that is wider than the processor's has another ABI, which matters to nothing that is inlined.
        [*compiler(), *library.FLAGS, "-Wall", "-Wextra", "-Wno-psabi", *defined, str(source), "-o", str(tmp_path / "made.so"), "-lm"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
