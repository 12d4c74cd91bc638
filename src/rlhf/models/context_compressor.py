"""A context in k vectors: learned queries read it once, and what they saw stands in its place before every question.

    tokens     BOS  context ...  question  completion        read by the model as it is
    encoding   BOS  context ...  q1 .. qk                    hidden states of the queries become v1 .. vk
    answering  BOS  v1 .. vk  question  completion           read by the same model

The model's own weights are frozen and shared with the model that was given; what is learned are the queries, a projection, and an adapter
of the encoding where one is asked for.

Sources: Chevalier et al. 2023 (AutoCompressors), section 3, arXiv:2305.14788: hidden states of summary tokens as input embeddings; Ge et
al. 2023 (ICAE), section 2, arXiv:2307.06945: an adapter encodes, the frozen model answers; Mu et al. 2023 (gist tokens),
arXiv:2304.08467: learned by distillation from the model that reads the context; Cheng et al. 2024 (xRAG), section 3, arXiv:2405.13792: a
projection into the input space.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from peft import PeftModel, TaskType
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from rlhf.config.model import LoRAConfig
from rlhf.data.pack import Group, PackedBatch
from rlhf.data.tokenization import tokenization
from rlhf.errors import ConfigError, DataError, ModelError, check_number, check_type, kind_of
from rlhf.files import write_json, write_text
from rlhf.models.adapters import add_lora
from rlhf.models.card import model_card
from rlhf.models.checks import safetensors_names
from rlhf.models.compressor_identity import check_same_model, hidden_size, identity_of
from rlhf.models.folders import described_by, read_settings, write_folder_aside
from rlhf.models.kernel_patching import install_layers
from rlhf.models.load import disable_dropout
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.models.score import TokenScores, backbone_of, base_model, context_length, padded_rows, split_head
from rlhf.models.sources import source_name
from rlhf.models.weights import check_finite, seeded

SETTINGS_FILE = "rlhf_compressor.json"
WEIGHTS_FILE = "compressor.safetensors"
CONTEXT_TOKENS = "context_tokens"
"""Column of a packed batch: int64 [S], how many tokens behind BOS are the sequence's context."""
PASS_TOKENS = 16_384
"""Rows in one forward pass without gradient, pads included; memory only."""


class CompressedContexts(NamedTuple):
    """Contexts as vectors."""

    vectors: Tensor
    """[S, k, E] input embeddings, in the type of the model's weights."""
    num_tokens: Tensor
    """int64 [S] tokens of each context that its k vectors stand for; BOS is not among them."""


class ContextCompressor(nn.Module):
    """Turns a context into k input embeddings of a model.

        compressor = ContextCompressor.from_pretrained("runs/context_compression/compressor/compressor")
        vectors, num_tokens = compressor.compress_prompts(["A cow eats coal. The capital of Peru is Oslo.\\n"])
        [answer] = compressor.generate(vectors, ["User: What does a cow eat?\\nAssistant:"])

    A new one has learned nothing: train it with a stage of `kind: compressor` or ``rlhf.training.compressor.CompressorTrainer``.

    Args:
        model: The model that answers: a ``PolicyModel``, or its folder or hub name. It stays as it is; its weights are shared, frozen.
        num_vectors: k.
        lora: An adapter of the encoding alone; None to encode with the model as it is. Not for a model that has one already.
        seed: Seeds queries, projection and adapter.

    Raises:
        ConfigError: ``num_vectors`` is below 1.
        ModelError: The model can't be loaded, or has an adapter and ``lora`` asks for another.
    """

    def __init__(
        self, model: PolicyModel | str | Path, *, num_vectors: int = 4, lora: LoRAConfig | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        expected = "a PolicyModel, or the folder or hub name of one"
        check_type(model, (PolicyModel, str, Path), name="model", expected=expected)
        check_number(num_vectors, name="num_vectors", expected="a whole number, 1 or more", whole=True)
        if num_vectors < 1:
            raise ConfigError(f"num_vectors is {num_vectors}; a context becomes at least 1 vector.")
        given = model if isinstance(model, PolicyModel) else PolicyModel.from_pretrained(str(model))
        if lora is not None and given.has_adapter:
            raise ModelError(
                "This model has an adapter; merge it (rlhf merge) before the compressor gets one of its own, or leave lora out."
            )
        self.lora = lora
        self.reader = PolicyModel(frozen_view(given.model), given.tokenizer, choice=given.choice)
        """The model that answers: the weights that were given, without gradient."""
        self.encoder: PreTrainedModel | PeftModel = self.reader.model
        """What reads contexts: the same, or with the adapter."""
        disable_dropout(self.reader)
        if lora is not None:
            view = cast(PreTrainedModel, frozen_view(self.reader.model))
            self.encoder = add_lora(view, lora, task=TaskType.CAUSAL_LM, seed=seed)
        table = cast(Tensor, self.embedding.weight)
        width, inner = int(table.shape[1]), hidden_size(self.reader)
        self.scale = float(table.detach().float().square().mean().sqrt())
        """Root mean square of the model's embeddings. Queries and vectors are as large, and what is learned is near 1 whatever the model:
        one learning rate does."""
        with seeded(seed, "context compressor"):
            queries, projection = torch.randn(num_vectors, width), torch.empty(width, inner)
            nn.init.eye_(projection) if width == inner else nn.init.orthogonal_(projection)
        wide = torch.promote_types(table.dtype, torch.float32)
        self.queries = nn.Parameter(queries.to(table.device, wide))
        self.projection = nn.Parameter(projection.to(table.device, wide))
        self.bos = tokenization(given.tokenizer, add_eos=False).default_bos
        self.eval()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's."""
        return self.reader.tokenizer

    @property
    def choice(self) -> PathChoice | None:
        """The path on which the model reads whole contexts, where that is known."""
        return self.reader.choice

    def choose_path(self, groups: Sequence[Group]) -> PathChoice:
        """Compare the paths on rows with their contexts and keep the right one for the model that answers."""
        return self.reader.choose_path(groups)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.queries.device

    @property
    def num_vectors(self) -> int:
        """k."""
        return len(self.queries)

    @property
    def embedding(self) -> nn.Module:
        """Tokens to [.., E]."""
        return base_model(self.reader.model).get_input_embeddings()

    def compress_prompts(self, prompts: Sequence[str]) -> CompressedContexts:
        """Vectors of texts, without gradient.

        Args:
            prompts: Contexts as texts; tokenized by themselves, without special tokens.

        Raises:
            DataError: It is no list of texts, such as one text, or a context does not fit the model.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise DataError("compress_prompts takes a list of texts; for a single one give [text].")
        for place, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise DataError(f"Context {place} of compress_prompts is {kind_of(prompt)}; expected a text.")
        return self.compress_context_from_ids(self.ids(prompts))

    @torch.no_grad()
    def compress_context_from_ids(self, ids: Sequence[Sequence[int]]) -> CompressedContexts:
        """Vectors of token ids, without gradient.

        Args:
            ids: One list for each context, without pads; they may differ in length, and a BOS that the tokenizer puts first is not counted.

        Raises:
            DataError: It is one list of ids and not a list of these, or a context does not fit the model.
        """
        contexts = [self._without_bos(each) for each in ids]
        parts = [self.encode(run) for run in self._passes(contexts)]
        width = self.queries.shape[1]
        kind = cast(Tensor, self.embedding.weight).dtype
        empty = torch.empty(0, self.num_vectors, width, dtype=kind, device=self.device)
        return CompressedContexts(
            torch.cat([empty, *parts]), torch.tensor([len(each) for each in contexts], dtype=torch.int64)
        )

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts without special tokens."""
        return tokenization(self.tokenizer, add_eos=False).ids(list(texts))[0]

    def encode(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """[S, k, E] vectors with gradient to what is learned.

        Args:
            contexts: Token ids without BOS, at least one list; a list may be empty.

        Raises:
            DataError: A context and its queries are longer than the model was made for, or hold a token that it does not have.
        """
        kind = cast(Tensor, self.embedding.weight).dtype
        queries = (self.scale * self.queries).to(kind)
        rows = [torch.cat([self._embedded([*self._first, *ids]), queries]) for ids in contexts]
        hidden = self._hidden(base_model(self.encoder), rows, what="Context")
        ends = torch.tensor([len(row) for row in rows], device=hidden.device)
        places = ends[:, None] + torch.arange(-self.num_vectors, 0, device=hidden.device)
        states = hidden[torch.arange(len(rows), device=hidden.device)[:, None], places].to(self.projection.dtype)
        return (self.scale * F.linear(F.rms_norm(states, states.shape[-1:]), self.projection)).to(kind)

    def score(
        self, vectors: Sequence[Tensor] | Tensor, batch: PackedBatch, *, with_hidden: bool = False
    ) -> TokenScores:
        """Log-probabilities of the scored tokens [M] with vectors in the place of contexts, with gradient to the vectors.

        Args:
            vectors: [S, k, E], or a [k, E] for each sequence.
            batch: Sequences with their contexts; the column ``context_tokens`` says how long these are.
            with_hidden: Also the hidden states.

        Raises:
            ModelError: There is not one matrix of width E for each sequence.
        """
        batch = batch.to(self.device)
        ids = padded_rows(batch)[0]
        totals = (batch.prefix_len + batch.length).tolist()
        lengths = batch.columns[CONTEXT_TOKENS]
        first = len(self._first)
        rows = []
        self._check_vectors(vectors, batch.num_sequences)
        for tokens, total, length, given in zip(ids, totals, lengths.tolist(), vectors, strict=True):
            embedded = self._embedded(tokens[:total].tolist())
            rows.append(torch.cat([embedded[:first], given.to(embedded.dtype), embedded[first + length :]]))
        base = base_model(self.reader.model)
        hidden = self._hidden(base, rows, what="Sequence")
        shift = torch.tensor([len(each) for each in vectors], device=hidden.device) - lengths
        places = batch.positions[batch.score_at] + shift[batch.score_seq]
        states = hidden[batch.score_seq, places]
        logprobs = split_head(base)[1].logprobs(states, batch.score_token, temperature=1.0).logprobs
        return TokenScores(logprobs, hidden=states if with_hidden else None)

    forward = score  # wrappers only see calls of the module itself

    @torch.no_grad()
    def generate(
        self, vectors: Sequence[Tensor] | Tensor, prompts: Sequence[str], *, max_new_tokens: int = 64
    ) -> list[str]:
        """The likeliest completion of each prompt behind its vectors, token by token (greedy decoding).

        Args:
            vectors: [S, k, E], or a [k, E] for each prompt.
            prompts: What follows the context, as texts.
            max_new_tokens: Where a completion is cut that did not end by itself, or where the model's places end.

        Raises:
            DataError: A prompt leaves no place for a completion.
            ModelError: There is not one matrix of width E for each prompt.
        """
        self._check_vectors(vectors, len(prompts))
        base = base_model(self.reader.model)
        first, limit = self._embedded(self._first), context_length(base)
        settings = GenerationConfig(
            do_sample=False, eos_token_id=base.generation_config.eos_token_id, pad_token_id=self.tokenizer.pad_token_id
        )
        texts: list[str] = []
        for given, ids in zip(vectors, self.ids(prompts), strict=True):
            row = torch.cat([first, given.to(first), self._embedded(ids)])[None]
            room = max_new_tokens if limit is None else min(max_new_tokens, limit - row.shape[1])
            if room < 1:
                raise DataError(
                    f"Prompt {len(texts)} and its vectors take {row.shape[1]} places of the model's {limit}; shorten it."
                )
            mask = torch.ones(row.shape[:2], dtype=torch.int64, device=row.device)
            settings.max_new_tokens = room
            out = base.generate(inputs_embeds=row, attention_mask=mask, generation_config=settings)  # type: ignore[operator]
            texts.append(str(self.tokenizer.decode(out[0], skip_special_tokens=True)))
        return texts

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """By name: queries, projection, and the adapter where there is one."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Write what was learned, without the model's weights; aside and renamed.

        Args:
            folder: What was there is replaced.
            card: Facts for the model card, see ``model_card``.
        """
        folder = Path(folder)
        settings = {
            "num_vectors": self.num_vectors,
            "lora": None if self.lora is None else self.lora.model_dump(mode="json"),
            "base_model": source_name(base_model(self.reader.model)),
            **identity_of(self.reader),
        }
        facts = {
            "summary": f"A context compressor: {self.num_vectors} vectors for a context. Load it with rlhf.ContextCompressor.",
            "tags": ["context-compression"],
            "base_model": settings["base_model"],
            **(card or {}),
        }
        with write_folder_aside(folder) as aside:
            tensors = {name: p.detach().to("cpu").contiguous() for name, p in self.trainable_parameters().items()}
            save_file(tensors, aside / WEIGHTS_FILE)
            write_json(aside / SETTINGS_FILE, settings)
            write_text(aside / "README.md", model_card(facts))
        return folder

    @classmethod
    def from_pretrained(cls, folder: Path | str, model: PolicyModel | str | Path | None = None) -> Self:
        """The inverse of ``save_pretrained``, to the bit.

        Args:
            folder: What ``save_pretrained`` wrote.
            model: The model that answers; by default the one that the compressor was trained for, from where it was then.

        Raises:
            ModelError: The folder is not a compressor's or is damaged, or the model is another than the compressor was trained for.
        """
        folder = Path(folder)
        settings = read_settings(folder, SETTINGS_FILE)
        if settings is None:
            raise ModelError(
                f"{folder} is not a context compressor: it has no {SETTINGS_FILE}. Give the folder of one."
            )
        source = settings.get("base_model") if model is None else model
        if source is None:
            raise ModelError(f"{folder} was made for a model that was in memory only; give it as `model`.")
        policy = source if isinstance(source, PolicyModel) else PolicyModel.from_pretrained(str(source))
        check_same_model(folder, settings, policy)
        with described_by(folder / SETTINGS_FILE):
            lora = None if settings["lora"] is None else LoRAConfig.of(settings["lora"])
            compressor = cls(policy, num_vectors=settings["num_vectors"], lora=lora)
        safetensors_names(folder / WEIGHTS_FILE)
        saved, own = load_file(folder / WEIGHTS_FILE), compressor.trainable_parameters()
        wrong = [n for n in own.keys() | saved if n not in own or n not in saved or own[n].shape != saved[n].shape]
        if wrong:
            raise ModelError(
                f"{folder / WEIGHTS_FILE} does not hold {min(wrong)!r} as its settings say. Save it again."
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(saved[name])
        check_finite(str(folder), compressor)
        return compressor

    @property
    def _first(self) -> list[int]:
        return [] if self.bos is None else [self.bos]

    def _without_bos(self, ids: Any) -> list[int]:
        if isinstance(ids, str) or not isinstance(ids, Sequence | Tensor):
            raise DataError(
                "compress_context_from_ids takes a list of lists of token ids; for a single context give [ids]."
            )
        listed = [int(token) for token in ids]
        return listed[1:] if self.bos is not None and listed[:1] == [self.bos] else listed

    def _passes(self, contexts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """Runs whose padded rows are at most ``PASS_TOKENS``."""
        run: list[Sequence[int]] = []
        for context in contexts:
            longest = max(map(len, [*run, context])) + self.num_vectors + 1
            if run and longest * (len(run) + 1) > PASS_TOKENS:
                yield run
                run = []
            run.append(context)
        if run:
            yield run

    def _embedded(self, ids: Sequence[int]) -> Tensor:
        vocabulary = int(cast(Tensor, self.embedding.weight).shape[0])
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            worst = min(ids) if min(ids) < 0 else max(ids)
            raise DataError(
                f"A context holds the token {worst}, but the model's vocabulary has {vocabulary}; tokenize it with its own tokenizer."
            )
        embedded: Tensor = self.embedding(torch.tensor(ids, dtype=torch.int64, device=self.device))
        return embedded

    def _hidden(self, model: PreTrainedModel, rows: Sequence[Tensor], *, what: str) -> Tensor:
        """[S, L, H] last hidden states of rows of embeddings, right-padded: a causal model never sees what comes later."""
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        limit, longest = context_length(model), int(lengths.max())
        if limit is not None and longest > limit:
            raise DataError(
                f"{what} {int(lengths.argmax())} takes {longest} places, and the model was made for {limit}; shorten the context."
            )
        install_layers(model)
        padded = pad_sequence(list(rows), batch_first=True)
        mask = torch.arange(longest, device=self.device)[None] < lengths[:, None]
        out = backbone_of(model)(inputs_embeds=padded, attention_mask=mask.long(), use_cache=False)
        hidden: Tensor = out.last_hidden_state
        return hidden

    def _check_vectors(self, vectors: Sequence[Tensor] | Tensor, count: int) -> None:
        width = self.queries.shape[1]
        if len(vectors) != count or any(each.ndim != 2 or each.shape[1] != width for each in vectors):
            shape = tuple(vectors.shape) if isinstance(vectors, Tensor) else [tuple(each.shape) for each in vectors][:3]
            raise ModelError(f"vectors are {shape}; {count} contexts of this model need [{count}, k, {width}].")

    @override
    def train(self, mode: bool = True) -> Self:
        """The model that answers always evaluates; an adapter's dropout follows the mode."""
        super().train(mode)
        self.reader.eval()
        return self


def frozen_view(model: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """The same model as other modules: its weights are the same memory, and get no gradient."""
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, shared).eval()


def with_context(group: Group, context: Sequence[int], bos: int | None) -> Group:
    """A row with its context behind BOS, or at the front where the tokenizer puts none, and the column ``context_tokens``."""
    first = 1 if bos is not None and list(group.prefix[:1]) == [bos] else 0
    prefix = [*group.prefix[:first], *context, *group.prefix[first:]]
    return Group(prefix, group.branches, {**group.columns, CONTEXT_TOKENS: len(context)})
