"""Tokenizers: where they come from, and whether they agree with a model on its vocabulary and on where a text ends."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from jinja2 import TemplateSyntaxError
from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from rlhf.config.model import ModelConfig
from rlhf.data.chat import chat_format
from rlhf.errors import ModelError
from rlhf.models.checks import CONFIG_FILE, check_config, check_tokenizer_folder, read_json
from rlhf.models.sources import hub_options, model_source, plain_errors

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # seconds of imports, which are not needed for a tokenizer alone

logger = logging.getLogger(__name__)


def load_tokenizer(config: ModelConfig | str) -> PreTrainedTokenizerBase:
    """The tokenizer that a model config names, by default the model's own.

    Raises:
        ModelError: There is none there, or no chat template where one was asked for.
    """
    config = ModelConfig.of({"path": config}) if isinstance(config, str) else config
    name = config.tokenizer or config.path
    assert name is not None  # ModelConfig refuses neither
    source = model_source(name)
    if Path(source).is_dir():
        if (Path(source) / CONFIG_FILE).is_file():  # transformers reads it to know which tokenizer it is
            check_config(Path(source), trust_remote_code=config.trust_remote_code)
        check_tokenizer_folder(Path(source), trust_remote_code=config.trust_remote_code)
    hub = hub_options(source, config.revision if config.tokenizer is None else None)
    with plain_errors(f"the tokenizer of {name!r}"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=config.trust_remote_code, **hub
        )
    if config.chat_template is not None:
        # The text of the template, not its name: what is saved with the model must be readable anywhere.
        tokenizer.chat_template = _chat_template(tokenizer, config.chat_template)
    return tokenizer


def _chat_template(tokenizer: PreTrainedTokenizerBase, wanted: str) -> str | None:
    """The text of a config's template, which must be Jinja."""
    try:
        text = chat_format(tokenizer, wanted).template
    except (OSError, UnicodeDecodeError) as err:
        raise ModelError(f"chat_template: {wanted!r} can't be read as text: {err}.") from None
    try:
        chat_template_utils.render_jinja_template(conversations=[], chat_template=text)
    except TemplateSyntaxError as err:
        raise ModelError(
            f"chat_template: line {err.lineno} is not valid Jinja: {err.message}. Found: {wanted[:80]!r}."
        ) from None
    return text


def settle_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make model and tokenizer agree on where a text ends and on the vocabulary.

    The padding token is never made equal to EOS: nothing here is padded, so a tokenizer without one stays without one.

    Raises:
        ModelError: The tokenizer has more tokens than the model has embeddings, or there is no end-of-text token.
    """
    embeddings: Any = model.get_input_embeddings()
    num_embeddings = int(embeddings.weight.shape[0])
    token, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if highest >= num_embeddings:
        raise ModelError(
            f"The tokenizer {tokenizer.name_or_path!r} has tokens up to number {highest} ({token!r}), and the model "
            f"{model.name_or_path!r} has only {num_embeddings} embeddings. Use the model's own tokenizer, or resize the embeddings "
            f"and train them."
        )
    known = _end_tokens(model)
    wrong = [end for end in known if not 0 <= end < num_embeddings]
    if wrong:
        raise ModelError(
            f"The model {model.name_or_path!r} says that token {wrong[0]} ends a text, but its tokens are 0 to "
            f"{num_embeddings - 1}. Correct eos_token_id in generation_config.json and config.json."
        )
    if tokenizer.eos_token_id is None:
        if not known:
            raise ModelError(
                f"Neither the tokenizer {tokenizer.name_or_path!r} nor the model's config says which token ends a text, so the "
                f"model could never learn to stop. Set `eos_token` in tokenizer_config.json to a token of its vocabulary."
            )
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(known[0])
        logger.warning(
            "The tokenizer names no end-of-text token; took %r (number %d) from %s.",
            tokenizer.eos_token, known[0], _source_of_end(model),
        )  # fmt: skip
    elif tokenizer.eos_token_id not in known and getattr(model, "generation_config", None) is not None:
        # Else a saved model would run on past the token it was taught to end with.
        ends = [tokenizer.eos_token_id, *known]
        model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    if model.config.get_text_config().pad_token_id is None and tokenizer.pad_token_id is not None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


def family_end_token(family: str) -> int | None:
    """The number that transformers gives the end-of-text token of a model type whose files name none; None where it gives none."""
    token = CONFIG_MAPPING[family]().get_text_config().eos_token_id if family in CONFIG_MAPPING else None
    return token[0] if isinstance(token, list) else token


def _source_of_end(model: PreTrainedModel) -> str:
    """Where the id of the end-of-text token was read: transformers fills in a default if no file has one."""
    for name in ("generation_config.json", CONFIG_FILE):
        settings = _settings(model, name)
        inner = settings.get("text_config")
        if any(part.get("eos_token_id") is not None for part in (settings, inner) if isinstance(part, dict)):
            return f"the model's {name}"
    return (
        f"transformers' default for {type(model.config.get_text_config()).__name__}, as the model's {CONFIG_FILE} has no eos_token_id; "
        "set `eos_token` in tokenizer_config.json if texts end otherwise"
    )


def _settings(model: PreTrainedModel, name: str) -> dict[str, Any]:
    """What a file of the model's folder, or of the hub's cache, holds; nothing where it is not there."""
    source = str(model.name_or_path)
    path: Any = Path(source) / name
    if not path.is_file():
        with contextlib.suppress(HFValidationError):
            path = try_to_load_from_cache(source, name, revision=getattr(model.config, "_commit_hash", None))
    return read_json(Path(path)) if isinstance(path, str | Path) and Path(path).is_file() else {}


def _end_tokens(model: PreTrainedModel) -> list[int]:
    """Ids that end a text according to the model, generation config first."""
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        setting = getattr(config, "eos_token_id", None)
        if setting is None:
            continue
        ends = list(setting) if isinstance(setting, list | tuple) else [setting]
        if not all(isinstance(end, int) for end in ends):
            raise ModelError(
                f"The model {model.name_or_path!r} has the eos_token_id {setting!r}; it should be the number of a token, or a list "
                f"of them. Correct generation_config.json."
            )
        return ends
    return []
