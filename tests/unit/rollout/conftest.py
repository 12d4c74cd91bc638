from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.unit.rollout.helpers import VOCABULARY


@pytest.fixture(scope="session")
def word_tokenizer() -> PreTrainedTokenizerFast:
    """One word for each id: "w0" to "w119"."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", bos_token="w1", eos_token="w2")
