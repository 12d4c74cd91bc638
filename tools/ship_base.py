"""Puts a trained base model into the package as float16, and says whether it is the one that is there already.

make base        rlhf run recipes/base.yaml, then this
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rlhf.files import sha256
from rlhf.models.policy import PolicyModel
from rlhf.models.sources import embedded_folder

SHIPPED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
CARD = """# The embedded base model

A llama with 0.77M parameters, trained from nothing on the documents of the embedded world (`rlhf.data.world`) by
`recipes/base.yaml`; `make base` trains it again. It knows the world's facts and can tell a right answer from a wrong one; it has
no manners yet. MIT license, like the package.
"""


def main(trained: Path) -> None:
    """Convert and copy."""
    target = embedded_folder()
    before = sha256(target / "model.safetensors") if (target / "model.safetensors").exists() else None
    policy = PolicyModel.from_pretrained(str(trained))
    policy.model.half()
    aside = target.with_name(".base.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    policy.save_pretrained(aside)
    for file in aside.iterdir():
        if file.name not in SHIPPED:
            file.unlink()
    (aside / "README.md").write_text(CARD, encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    after = sha256(target / "model.safetensors")
    size = sum(file.stat().st_size for file in target.iterdir())
    same = "the same weights as before" if after == before else f"new weights (before: {before})"
    print(f"{target}: {size / 1e6:.2f} MB, model.safetensors sha256 {after}, {same}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/base/base/model"))
