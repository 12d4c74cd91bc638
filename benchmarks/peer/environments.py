"""The peer's virtual environments under .bench, made by the run itself and held to their requirement files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS = {
    "trl": "requirements-trl.txt",
    "trl-ppo": "requirements-trl-ppo.txt",
    "trl-gpu": "requirements-trl-gpu.txt",
    "serving-transformers": "requirements-serving-transformers.txt",
    "serving-vllm": "requirements-serving-vllm.txt",
    "serving-llama": "requirements-serving-llama.txt",
}
OPTIONAL = {"trl-gpu": ("trl[kernels]==1.16.0", "trl[liger]==1.16.0", "trl[vllm]==1.16.0")}
"""What makes the peer faster on a GPU, within TRL's own bounds. Each is installed by itself, and the peer goes without one that does not
fit to the rest or has no wheel here. flash-attn has none on the index: what is installed by hand is used, as is the hub's build of it."""
REMOVED = {"serving-vllm": ("torchvision", "torchaudio", "torchcodec")}
"""What an environment must not have: PyPI's torchvision is a CUDA build, and transformers can't be imported beside it."""
STAMP = ".requirements"
"""Hash of the file that an environment was made from; written last, so that an installation that broke off is done again."""


def prepare(bench: Path, name: str, *, say: Callable[[str], None] = print) -> None:
    """Make an environment, unless it is there as its file says. TORCH_INDEX in the environment is an index with the build of torch wanted.

    Args:
        bench: Folder of all environments.
        name: A key of ``REQUIREMENTS``.
        say: Told what is being done: it takes minutes.
    """
    file = Path(__file__).parents[1] / REQUIREMENTS[name]
    wanted = hashlib.sha256(file.read_bytes()).hexdigest()
    folder = bench / name
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"making {folder} from {file.name}")
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    # torch first: what comes after must not choose another build of it
    torch = [line for line in file.read_text().splitlines() if line.startswith("torch==")]
    index = os.environ.get("TORCH_INDEX")
    if torch:
        subprocess.run([*pip, *torch, *(["--extra-index-url", index] if index else [])], check=True)
    subprocess.run([*pip, "-r", str(file)], check=True)
    if removed := REMOVED.get(name):
        subprocess.run([str(python), "-m", "pip", "--quiet", "uninstall", "--yes", *removed], check=True)
    for extra in OPTIONAL.get(name, ()):
        if subprocess.run([*pip, "-c", str(file), extra]).returncode != 0:
            say(f"{extra} can't be installed beside the rest; the peer goes without it")
    stamp.write_text(wanted)
