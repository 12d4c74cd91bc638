"""Shapes of models by their size alone: published configs, and the nearest of them for any other number of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf.errors import ConfigError


class FamilyShape(NamedTuple):
    """A published config."""

    num_parameters: int
    """Of the model that transformers builds from it; a test builds each."""
    kind: str
    """model_type of transformers."""
    num_layers: int
    hidden: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int
    context: int
    """Tokens that it was made for."""
    tied: bool = False
    """Whether the output projection is the input embedding."""

    @property
    def config(self) -> dict[str, Any]:
        """Settings of transformers' config, as of `model.init`."""
        return {
            "model_type": self.kind,
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
        }


FAMILIES: Mapping[str, FamilyShape] = {
    "SmolLM2-135M": FamilyShape(134_515_008, "llama", 30, 576, 1536, 9, 3, 49_152, 8_192, True),
    "SmolLM2-360M": FamilyShape(361_821_120, "llama", 32, 960, 2560, 15, 5, 49_152, 8_192, True),
    "Qwen2.5-0.5B": FamilyShape(494_032_768, "qwen2", 24, 896, 4864, 14, 2, 151_936, 32_768, True),
    "Llama-3.2-1B": FamilyShape(1_235_814_400, "llama", 16, 2048, 8192, 32, 8, 128_256, 131_072, True),
    "Qwen2.5-1.5B": FamilyShape(1_543_714_304, "qwen2", 28, 1536, 8960, 12, 2, 151_936, 131_072, True),
    "Llama-3.2-3B": FamilyShape(3_212_749_824, "llama", 28, 3072, 8192, 24, 8, 128_256, 131_072, True),
    "Llama-2-7B": FamilyShape(6_738_415_616, "llama", 32, 4096, 11_008, 32, 32, 32_000, 4_096),
    "Qwen2.5-7B": FamilyShape(7_615_616_512, "qwen2", 28, 3584, 18_944, 28, 4, 152_064, 131_072),
    "Llama-3.1-8B": FamilyShape(8_030_261_248, "llama", 32, 4096, 14_336, 32, 8, 128_256, 131_072),
    "Llama-2-13B": FamilyShape(13_015_864_320, "llama", 40, 5120, 13_824, 40, 40, 32_000, 4_096),
    "Qwen2.5-14B": FamilyShape(14_770_033_664, "qwen2", 48, 5120, 13_824, 40, 8, 152_064, 131_072),
    "Qwen2.5-32B": FamilyShape(32_763_876_352, "qwen2", 64, 5120, 27_648, 40, 8, 152_064, 131_072),
    "Llama-2-70B": FamilyShape(68_976_648_192, "llama", 80, 8192, 28_672, 64, 8, 32_000, 4_096),
    "Llama-3.1-70B": FamilyShape(70_553_706_496, "llama", 80, 8192, 28_672, 64, 8, 128_256, 131_072),
    "Llama-3.1-405B": FamilyShape(405_853_388_800, "llama", 126, 16_384, 53_248, 128, 8, 128_256, 131_072),
}
"""From the config.json of each on the model hub, by its number of parameters."""
_UNTOLD = re.compile(r"^meta-|-(instruct|base|chat|hf|it)(?=-|$)")
"""What names of one shape differ in."""
SMALLEST = 1_000_000
"""Parameters below which the families say nothing."""


class SizedShape(NamedTuple):
    """The shape that a model of a size is taken to have."""

    num_parameters: int
    num_layers: int
    hidden: int
    inner: int
    vocabulary: int
    said: str
    """Where the shape comes from, a sentence."""


def shape_of_size(num_parameters: int) -> SizedShape:
    """The nearest family's shape, by the ratio of sizes, its layers' widths scaled where sizes differ.

    A layer's weights grow with the square of its width, so the widths are multiplied by the root of the ratio of what the layers hold; the
    number of layers and the vocabulary stay.

    Args:
        num_parameters: Of the model, such as 7_000_000_000.

    Raises:
        ConfigError: It is no number of parameters.
    """
    is_number = isinstance(num_parameters, int | float) and not isinstance(num_parameters, bool)
    if not is_number or not SMALLEST <= num_parameters < math.inf:
        raise ConfigError(
            f"num_parameters is {num_parameters!r}; wanted the number of a model's weights, {SMALLEST:,} at least, such as 7_000_000_000"
        )
    count = int(num_parameters)
    name = min(FAMILIES, key=lambda each: abs(math.log(FAMILIES[each].num_parameters / count)))
    family = FAMILIES[name]
    if abs(count / family.num_parameters - 1) < 0.1:
        said = f"the shape is that of {name}, which has {family.num_parameters:,} parameters"
        return SizedShape(count, family.num_layers, family.hidden, family.inner, family.vocabulary, said)
    scale = math.sqrt(count / family.num_parameters)
    said = (
        f"the shape is that of {name} ({family.num_parameters:,} parameters), the nearest in the table of families, with layers "
        f"{scale:.2f} times as wide"
    )
    hidden, inner = round(family.hidden * scale), round(family.inner * scale)
    return SizedShape(count, family.num_layers, hidden, inner, family.vocabulary, said)


def family_of(path: str) -> str | None:
    """The family of a hub name such as ``meta-llama/Llama-3.1-8B-Instruct``; None where the table has none."""
    wanted = _UNTOLD.sub("", path.rpartition("/")[2].lower())
    return next((name for name in FAMILIES if name.lower() == wanted), None)
