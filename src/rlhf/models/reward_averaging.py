"""Reward models whose weights are averaged: one model in place of an ensemble."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlhf.errors import ModelError
from rlhf.files import sha256
from rlhf.models.checks import AVERAGE_FILE
from rlhf.models.folders import read_settings, write_folder_aside, write_settings
from rlhf.models.reward import SETTINGS_FILE
from rlhf.models.tokens import load_tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LEAST_COSINE = 0.5
"""Of a matrix of two models: what was trained from one start lies above .9 as a rule, unrelated matrices near 0."""


def average_reward_models(
    sources: Sequence[Path | str], folder: Path | str, *, weights: Sequence[float] | None = None
) -> Path:
    """Write the reward model whose weights are the weighted mean of several.

        theta = sum_k w_k theta_k,   sum_k w_k = 1

    Averaging keeps what the models agree on and lets the noise of each cancel, at the cost of one model. It holds for models that were
    trained from one start, best with one head at the start, in other orders of rows or at other rates: weights of other starts don't lie
    in one valley. Matrices that point elsewhere than the first model's (cosine below ``LEAST_COSINE``) are refused; a head of one row is
    not compared. Shift and scale are averaged, too; check the result on held-out pairs before it is trained against.

    ``rlhf_average.json`` in the folder names the sources by path and content, so that a source is no independent judge of the average.

    Source: Ramé et al. 2024, WARM, arXiv:2401.12187.

    One tensor of each model is in memory at a time, in addition to the result's file.

    Args:
        sources: At least two folders of one shape, as ``RewardModel.save_pretrained`` writes them: single models with all their weights.
        folder: Written aside and renamed; what was there is replaced. No source, and nothing in or around one.
        weights: One for each, finite and at least 0; equal by default.

    Returns:
        The folder.

    Raises:
        ModelError: They have other shapes, heads, vocabularies, starts or kinds, or are adapters or ensembles, or the folder would replace
            one; names the folder and the first difference.
    """
    paths = [Path(source) for source in sources]
    shares = [1.0] * len(paths) if weights is None else [float(weight) for weight in weights]
    if len(paths) < 2 or len(shares) != len(paths) or not min(shares) >= 0 or not 0 < sum(shares) < math.inf:
        raise ModelError(
            f"An average needs at least two reward models and as many finite weights of at least 0, not all 0; got {len(paths)} and "
            f"{weights}."
        )
    _check_target(Path(folder).resolve(), paths)
    shares = [share / sum(shares) for share in shares]
    settings = [_settings_of(path) for path in paths]
    shapes = [_shapes_of(path) for path in paths]
    for path, own, shape in zip(paths[1:], settings[1:], shapes[1:], strict=True):
        if own.get("head") != settings[0].get("head") or "learned" in own or "learned" in settings[0]:
            raise ModelError(
                f"{path} has another head than {paths[0]}, or parameters of its loss; only equal models are averaged."
            )
        if shape != shapes[0]:
            name = min(dict(shape.items() ^ shapes[0].items()))
            raise ModelError(
                f"{path} has another shape than {paths[0]}: {name} is {shape.get(name)}, and {shapes[0].get(name)} there; only models of "
                "one architecture are averaged."
            )
    _check_one_vocabulary(paths)
    _check_one_start(paths, shapes[0])
    with write_folder_aside(folder) as aside:
        for file in paths[0].iterdir():
            if file.is_file() and not file.name.startswith(WEIGHTS.partition(".")[0] + ".") and "-of-" not in file.name:
                shutil.copyfile(file, aside / file.name)
        save_file(dict(_averaged(paths, shares, list(shapes[0]))), aside / WEIGHTS, metadata={"format": "pt"})
        mean, std = ([sum(s * v for s, v in zip(shares, column, strict=True)) for column in zip(*each, strict=True)] for each in (
            [own["mean"] for own in settings], [own["std"] for own in settings]
        ))  # fmt: skip
        write_settings(aside, SETTINGS_FILE, {**settings[0], "mean": mean, "std": std})
        write_settings(aside, AVERAGE_FILE, {"sources": _record(paths, shares)})
    return Path(folder)


def _check_target(folder: Path, paths: Sequence[Path]) -> None:
    for path in paths:
        source = path.resolve()
        if folder.is_relative_to(source) or source.is_relative_to(folder):
            raise ModelError(
                f"The average can't be written to {folder}: it would replace {path}. Give a folder of its own."
            )


def _check_one_vocabulary(paths: Sequence[Path]) -> None:
    tokens = load_tokenizer(str(paths[0])).get_vocab()
    for path in paths[1:]:
        others = load_tokenizer(str(path)).get_vocab()
        if others != tokens:
            odd = min(tokens.items() ^ others.items(), key=lambda item: (item[1], item[0]))[0]
            raise ModelError(
                f"{path} has another vocabulary than {paths[0]}: {odd!r} is {others.get(odd)}, and {tokens.get(odd)} there; only models "
                "with one tokenizer are averaged."
            )


def _check_one_start(paths: Sequence[Path], shapes: dict[str, tuple[tuple[int, ...], str]]) -> None:
    for name in (name for name, (shape, _) in shapes.items() if len(shape) == 2 and min(shape) > 1):
        first = _tensor(paths[0], name).double()
        for path in paths[1:]:
            other = _tensor(path, name).double()
            cosine = float((first * other).sum() / (first.norm() * other.norm()))
            if cosine < LEAST_COSINE:  # not of a matrix of zeros: NaN
                raise ModelError(
                    f"{path} was not trained from the same start as {paths[0]}: their {name} have a cosine of {cosine:.2f}, and an average "
                    "of unrelated weights is none of the models. Train all from one reward model or policy."
                )


def _record(paths: Sequence[Path], shares: Sequence[float]) -> list[dict[str, Any]]:
    """Every source, and where one is an average itself, those of it: its folder, its share, and its weights by size and hash."""
    sources = []
    for path, share in zip(paths, shares, strict=True):
        files = {name: path / name for name in sorted(set(_files_of(path).values()))}
        weights = {name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for name, file in files.items()}
        sources.append({"folder": str(path.resolve()), "share": share, "weights": weights})
        own = (read_settings(path, AVERAGE_FILE) or {}).get("sources", [])
        sources += [{**source, "share": share * source["share"]} for source in own]
    return sources


def _averaged(paths: Sequence[Path], shares: Sequence[float], names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor, summed in float64 and rounded once."""
    for name in names:
        first = _tensor(paths[0], name)
        if not first.is_floating_point():
            yield name, first
            continue
        total = torch.zeros(first.shape, dtype=torch.float64)
        for path, share in zip(paths, shares, strict=True):
            total += share * _tensor(path, name).double()
        yield name, total.to(first.dtype)


def _tensor(folder: Path, name: str) -> Tensor:
    with safe_open(folder / _files_of(folder)[name], framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _files_of(folder: Path) -> dict[str, str]:
    """Tensor -> its file."""
    if (folder / INDEX).is_file():
        table: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return table
    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{folder} has no {WEIGHTS}: only single reward models with all their weights are averaged, no adapters or ensembles."
        )
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return dict.fromkeys(file.keys(), WEIGHTS)


def _shapes_of(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    shapes = {}
    for name, file in _files_of(folder).items():
        with safe_open(folder / file, framework="pt") as tensors:
            part = tensors.get_slice(name)
            shapes[name] = (tuple(part.get_shape()), str(part.get_dtype()))
    return shapes


def _settings_of(folder: Path) -> dict[str, Any]:
    settings = read_settings(folder, SETTINGS_FILE)
    if settings is None or settings.get("num_models", 1) != 1:
        raise ModelError(f"{folder} is not a single reward model of rlhf: it has no {SETTINGS_FILE} that says so.")
    return settings
