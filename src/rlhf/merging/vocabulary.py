"""Tokens of several tokenizers: compared, joined, and the rows of embeddings put where the joined tokenizer has them."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.merging import MergeConfig, ModelReference, TokenSettings
from rlhf.errors import ModelError, did_you_mean
from rlhf.merging.layers import EMBEDDING
from rlhf.merging.parents import Parent, find_folder

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "spiece.model", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""Copied from the base where the vocabulary stays what it is."""
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
SHOWN = 3


@dataclass
class Vocabulary:
    """The output's tokens, and where each model has them."""

    tokenizer: Any
    """Of transformers."""
    tokens: dict[str, int]
    rows: dict[str, Tensor]
    """Model -> for each token the row it has there, or -1."""
    size: int
    """Rows of the output's embeddings."""
    settings: Mapping[str, TokenSettings]
    lines: list[str] = field(default_factory=list)
    """What is lost or made up, for the report."""
    own_tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    """Model -> its tokens."""

    def align(self, tensors: Mapping[str, Tensor], base: str | None) -> dict[str, Tensor]:
        """Each model's rows in the output's order.

        A model that lacks a token takes the row of the only one that has it, else the base's, else the mean of those that have it; zeros
        where none has. Rows beyond the tokens are the mean of all others.

        Args:
            tensors: Model -> a tensor with a row for each of its tokens.
            base: The base among them.

        Raises:
            ModelError: A token's source lacks it.
        """
        first = next(iter(tensors.values()))
        count = len(self.tokens)
        rows = {
            label: torch.where(self.rows[label] < tensors[label].shape[0], self.rows[label], -1) for label in tensors
        }
        having = torch.stack([rows[label] >= 0 for label in tensors])
        number = having.sum(dim=0)
        forced = torch.zeros(count, dtype=torch.bool)
        chosen = torch.zeros(count, dtype=torch.bool)
        for token, setting in self.settings.items():
            forced[self.tokens[token]] = setting.force
            chosen[self.tokens[token]] = setting.source is not None
        asked = (number < len(tensors)) | forced
        made = first.new_zeros((count, *first.shape[1:]))
        open_ = asked & ~chosen
        only = open_ & (number == 1)
        of_base = open_ & (number > 1) & (rows[base] >= 0 if base is not None and base in tensors else False)
        mean = open_ & (number > 1) & ~of_base
        for label, tensor in tensors.items():
            has = rows[label] >= 0
            for where in (only & has, *([of_base] if label == base else [])):
                made[where] = tensor[rows[label][where]]
            where = mean & has
            made[where] += tensor[rows[label][where]]
        made[mean] /= number[mean].reshape(-1, *[1] * (first.dim() - 1))
        for token, setting in self.settings.items():
            place = self.tokens[token]
            if asked[place] and setting.source is not None:
                made[place] = self._chosen(token, setting.source, tensors, rows, first)
        return {label: self._placed(tensor, rows[label], made, asked, forced) for label, tensor in tensors.items()}

    def _placed(self, tensor: Tensor, rows: Tensor, made: Tensor, asked: Tensor, forced: Tensor) -> Tensor:
        count = len(self.tokens)
        out = tensor.new_zeros((self.size, *tensor.shape[1:]))
        own = (rows >= 0) & ~forced
        inside = out[:count]
        inside[own] = tensor[rows[own]]
        inside[asked & ~own] = made[asked & ~own]
        if self.size > count:
            out[count:] = inside.mean(dim=0)
        return out

    def _chosen(
        self, token: str, source: Any, tensors: Mapping[str, Tensor], rows: Mapping[str, Tensor], like: Tensor
    ) -> Tensor:
        model = source if isinstance(source, ModelReference) else source.model
        if model is None:  # zeros
            return torch.zeros_like(like[0])
        label = model.text
        if label not in tensors:
            raise ModelError(
                f"tokenizer.tokens: {token!r} takes the embedding of {label}, which is none of the models merged."
            )
        if isinstance(source, ModelReference):
            place = int(rows[label][self.tokens[token]])
        elif source.token_id is not None:
            place = source.token_id
        else:
            place = self.own_tokens[label].get(source.token, -1)
        if not 0 <= place < tensors[label].shape[0]:
            wanted = token if isinstance(source, ModelReference) else source.token or source.token_id
            raise ModelError(
                f"tokenizer.tokens: {token!r} takes the embedding of {wanted!r} of {label}, which has no such token."
            )
        return tensors[label][place]


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a vocabulary of any kind."""
    return any((folder / name).is_file() for name in VOCABULARIES)


def check_one_vocabulary(parents: Sequence[Parent]) -> list[str]:
    """Refuse models whose tokens have other numbers, for a merge that joins no tokenizers.

    Returns:
        Lines for the report.

    Raises:
        ModelError: Names the two models and the first token that differs, or the model without a tokenizer.
    """
    having = [parent for parent in parents if has_tokenizer(parent.folder)]
    if not having:
        return ["no model has a tokenizer: that they mean the same tokens was not checked, and the output has none"]
    for parent in parents:
        if not has_tokenizer(parent.folder):
            raise ModelError(
                f"{parent.folder} has no tokenizer, and {having[0].label} has: whether they mean the same tokens can't be known. Copy the "
                "tokenizer that it was trained with into the folder."
            )
    first, tokens = having[0], tokens_of(having[0].folder)
    for other in having[1:]:
        if (others := tokens_of(other.folder)) != tokens:
            odd = sorted(tokens.items() ^ others.items(), key=lambda item: (item[1], item[0]))[0][0]
            raise ModelError(
                f"{first.label} and {other.label} have other vocabularies: {odd!r} is {_number(tokens, odd)} and {_number(others, odd)}. Join "
                "them with `tokenizer: {source: union}` (or `base`)."
            )
    return []


def _number(tokens: Mapping[str, int], token: str) -> str:
    return f"number {tokens[token]}" if token in tokens else "not there"


def tokens_of(folder: Path) -> dict[str, int]:
    """Token -> number."""
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        try:
            return dict(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True))
        except Exception as err:
            raise ModelError(f"{folder / 'tokenizer.json'} is damaged: {str(err).splitlines()[0]}.") from None
    return dict(load_tokenizer(folder).get_vocab())


def load_tokenizer(folder: Path) -> Any:
    """By transformers; no code of the folder is run.

    Raises:
        ModelError: There is none, or it can't be read.
    """
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        raise ModelError(
            f"{folder} has no tokenizer, and the vocabularies are to be joined. Copy its tokenizer into the folder."
        )
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as err:
        raise ModelError(f"The tokenizer of {folder} can't be loaded: {str(err).splitlines()[0]}") from err


def joined_vocabulary(config: MergeConfig, parents: Mapping[str, Parent]) -> Vocabulary:
    """The tokenizer that the file asks for, and where each model has its tokens.

    Raises:
        ModelError: A model has no tokenizer, or a token has an unknown source.
    """
    settings = config.tokens
    assert settings is not None
    loaded = {label: load_tokenizer(parent.folder) for label, parent in parents.items()}
    base = config.base_model.text if config.base_model else next(iter(parents))
    sizes = {label: _rows_of(parent) for label, parent in parents.items()}
    if settings.source == "union":
        tokenizer = _union(base, loaded, sizes)
    elif settings.source == "base":
        tokenizer = loaded[base]
    else:
        assert isinstance(settings.source, ModelReference)
        label = settings.source.text
        tokenizer = loaded[label] if label in loaded else load_tokenizer(find_folder(label, settings.source.revision))
    own = {label: dict(one.get_vocab()) for label, one in loaded.items()}  # before a token is added to one of them
    chosen = dict(settings.tokens or {})
    known = set(tokenizer.get_vocab())
    for token in chosen:
        if token not in known:
            tokenizer.add_tokens(token)
    tokens = dict(tokenizer.get_vocab())
    multiple = settings.pad_to_multiple_of or 1
    vocabulary = Vocabulary(
        tokenizer=tokenizer, tokens=tokens, rows={label: _rows(tokens, own[label], sizes[label]) for label in parents},
        size=-(-len(tokens) // multiple) * multiple, settings=chosen, own_tokens=own,
    )  # fmt: skip
    if sorted(tokens.values()) != list(range(len(tokens))):
        raise ModelError("The joined tokenizer has gaps between its tokens' numbers; take another `tokenizer.source`.")
    for token, setting in chosen.items():
        source = setting.source
        model = source if isinstance(source, ModelReference) else getattr(source, "model", None)
        if model is not None and model.text not in parents:
            hint = did_you_mean(model.text, parents)
            raise ModelError(
                f"tokenizer.tokens: {token!r} takes its embedding from {model.text}, which is not merged.{hint}"
            )
    vocabulary.lines = _lines(vocabulary, own, sizes)
    return vocabulary


def _rows_of(parent: Parent) -> int:
    name = next((name for name in parent.places if EMBEDDING.search(name)), None)
    return parent.places[name].shape[0] if name else 0


def _rows(tokens: Mapping[str, int], own: Mapping[str, int], size: int) -> Tensor:
    numbers = torch.full((len(tokens),), -1, dtype=torch.int64)
    for token, number in tokens.items():
        row = own.get(token, -1)
        numbers[number] = row if row < size else -1
    return numbers


def _lines(vocabulary: Vocabulary, own: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int]) -> list[str]:
    lines = []
    for label, tokens in own.items():
        lost = sorted(token for token in tokens if token not in vocabulary.tokens)
        if lost:
            shown = ", ".join(map(repr, lost[:SHOWN]))
            lines.append(
                f"{label}: the rows of {len(lost)} tokens are not in the output, whose tokenizer lacks them: {shown}"
            )
        if sizes[label] > len(tokens):
            lines.append(
                f"{label}: {sizes[label] - len(tokens)} rows beyond its {len(tokens)} tokens are not in the output"
            )
        beyond = sum(number >= sizes[label] for number in tokens.values())
        if beyond:
            lines.append(
                f"{label}: {beyond} of its tokens have no row in its embedding, and take those of other models, or zeros"
            )
    nobody = [
        token
        for token, number in vocabulary.tokens.items()
        if all(int(rows[number]) < 0 for rows in vocabulary.rows.values())
    ]
    unset = [token for token in nobody if token not in vocabulary.settings or vocabulary.settings[token].source is None]
    if unset:
        lines.append(
            f"{len(unset)} tokens are in no model, and their rows are zeros: {', '.join(map(repr, unset[:SHOWN]))}"
        )
    return lines


def _union(base: str, loaded: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The base's tokenizer and the tokens of the others, in the order of the file, as added tokens."""
    from transformers import AutoTokenizer

    order = [base, *(label for label in loaded if label != base)]
    with tempfile.TemporaryDirectory() as folder:
        loaded[base].save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    known = set(tokenizer.get_vocab())
    special: dict[str, Any] = {}
    for label in order:
        marked = {
            info.content: info for number, info in loaded[label].added_tokens_decoder.items() if number < sizes[label]
        }
        for token, number in sorted(loaded[label].get_vocab().items(), key=lambda item: item[1]):
            if number < sizes[label] and token not in marked and token not in special and token not in known:
                tokenizer.add_tokens(token)
                known.add(token)
        for token, info in marked.items():
            special.setdefault(token, info)
    for info in special.values():
        tokenizer.add_tokens(info)
    return tokenizer


def chat_template(wanted: str | None, parents: Sequence[Parent]) -> str | None:
    """The template that the file gives; for ``auto`` the most frequent of the models'."""
    if wanted != "auto":
        return wanted
    templates: Counter[str] = Counter()
    for parent in parents:
        if (parent.folder / "chat_template.jinja").is_file():
            templates[(parent.folder / "chat_template.jinja").read_text(encoding="utf-8").strip()] += 1
            continue
        with contextlib.suppress(OSError, ValueError):
            template = json.loads((parent.folder / "tokenizer_config.json").read_text(encoding="utf-8")).get(
                "chat_template"
            )
            if isinstance(template, str) and template.strip():
                templates[template.strip()] += 1
    return templates.most_common(1)[0][0] if templates else None
