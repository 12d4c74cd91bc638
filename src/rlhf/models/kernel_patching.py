"""Replaces norms, rotations and gates of a model by C code (``rlhf.native.kernels``) if the numbers are the same.

A class or function is recognized by its structure, tested on a few random numbers, and replaced by one that decides at each call whether
C is enabled and supports the input. Other computations (Gemma's ``1 + weight``, rotations of neighbors, clipped gates) keep their
own code. The model itself is not changed, so copies, files and adapters are unaffected.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from rlhf.models.attention import is_differentiable_twice
from rlhf.models.plain_layers import (
    allowed_gap,
    check_layers,
    draw,
    largest_gap,
    plain_gate,
    plain_norm,
    plain_rotation,
)
from rlhf.models.weights import seeded
from rlhf.native.compiled_mode import is_in_c
from rlhf.native.kernels import LAYER_DTYPES, compiled_gate, compiled_norm, compiled_rotation

Types = frozenset[tuple[torch.dtype, torch.dtype]]
ROTATION = "apply_rotary_pos_emb"
_KNOWN: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that were looked through."""
_TYPES: dict[Any, Types] = {}
"""Of functions that were tried: the types for which all modules gave what C gives."""
_BETTER: dict[Any, Any] = {}
"""From such a function to its replacement."""


def install_layers(model: nn.Module) -> None:
    """Compute the layers of a model in C while that is enabled; otherwise do nothing.

    Args:
        model: Any; others of the same classes take part.

    Raises:
        ConfigError: There is no C compiler, or it failed.
        TrainingError: The compiler made something wrong.
    """
    if not is_in_c() or model in _KNOWN:
        return
    check_layers()
    with seeded(0, "layer_choice"):  # what is tried may draw, and is the same in every process
        for module in _of_each_kind(model):
            _replace_forward(module)
        for name in sorted({type(module).__module__ for module in model.modules()}):
            _replace_rotation(sys.modules.get(name))
    _KNOWN.add(model)


def _of_each_kind(model: nn.Module) -> Iterator[nn.Module]:
    """One of the modules that have the same class and settings."""
    seen = set()
    for module in model.modules():
        kind = (
            type(module),
            repr(sorted((k, v) for k, v in _settings(module).items() if isinstance(v, str | int | float | None))),
        )
        if kind not in seen:
            seen.add(kind)
            yield module


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a module's own code may use in addition to its tensors and parts."""
    return {name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"}


def _stand_in(module: nn.Module) -> Any:
    """One of the same class and settings without tensors or parts, in training; what needs more than it is given raises."""
    made: Any = type(module).__new__(type(module))
    nn.Module.__init__(made)
    vars(made).update(_settings(module))
    return made


def _replace_forward(module: nn.Module) -> None:
    home: Any = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    own = _own(home.forward)
    if _eps(module) is not None:
        _replace(home, "forward", own, _agreed(_norm_gap, own, module), _norm_in_c)
    elif _is_gated(module):
        _replace(home, "forward", own, _agreed(_gate_gap, own, module), _gated_in_c)


def _replace_rotation(home: Any) -> None:
    current = getattr(home, ROTATION, None)
    if current is not None and _own(current) is current:
        _replace(home, ROTATION, current, _agreed(_rotation_gap, current), _rotation_in_c)


def _own(function: Any) -> Any:
    """The family's original, whether or not it is replaced."""
    return next((own for own, better in _BETTER.items() if better is function), function)


def _replace(place: Any, name: str, own: Any, agreed: Types, make: Callable[[Any], Any]) -> None:
    _TYPES[own] = _TYPES.get(own, agreed) & agreed
    if _TYPES[own]:
        setattr(place, name, _BETTER.setdefault(own, make(own)))


# ---- what is a candidate, and what it is compared with


def _eps(module: nn.Module) -> float | None:
    """Of a norm; None for others."""
    weight: Any = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor) or weight.dim() != 1:
        return None
    eps = vars(module).get("variance_epsilon", vars(module).get("eps"))
    return eps if isinstance(eps, float) else None


def _is_gated(module: nn.Module) -> bool:
    parts = dict(module.named_children())
    return {"gate_proj", "up_proj", "down_proj", "act_fn"} == parts.keys() and _is_silu(parts["act_fn"])


def _is_silu(module: nn.Module) -> bool:
    return type(module) in (nn.SiLU, SiLUActivation)


def _agreed(gap: Callable[..., float], own: Callable[..., Any], *args: Any) -> Types:
    """Pairs of types of what is read for which a function computes what C does."""
    agreed = set()
    for types in [(a, b) for a in LAYER_DTYPES for b in LAYER_DTYPES]:
        try:
            agrees = gap(own, *args, *types) <= allowed_gap(*types)
        except Exception:
            agrees = False  # it uses an input that the C code does not read
        if not agrees and torch.bfloat16 not in types:
            return frozenset()  # rounding hides what else may differ
        if agrees:
            agreed.add(types)
    return frozenset(agreed)


def _norm_gap(own: Callable[..., Tensor], module: Any, dtype: torch.dtype, weight_dtype: torch.dtype) -> float:
    """Of rows so small that eps counts, and of others."""
    one, eps = _stand_in(module), _eps(module)
    assert eps is not None
    one.weight = nn.Parameter(draw(len(module.weight), dtype=weight_dtype).detach())
    sizes = torch.tensor([[eps**0.5], [1.0], [3.0]])
    x = (draw(2, 3, len(module.weight)).detach() * sizes).to(dtype).requires_grad_()
    return largest_gap(lambda: own(one, x), lambda: plain_norm(x, one.weight, eps), [x, one.weight])


def _gate_gap(own: Callable[..., Tensor], module: Any, dtype: torch.dtype, weight_dtype: torch.dtype) -> float:
    if dtype != weight_dtype:
        return float("inf")  # only autocast can multiply these
    one = _stand_in(module)
    for name, (inside, outside) in {"gate_proj": (8, 12), "up_proj": (8, 12), "down_proj": (12, 8)}.items():
        setattr(one, name, nn.Linear(inside, outside, dtype=dtype))
    one.act_fn = module.act_fn
    sizes = torch.tensor([[1.0], [4.0], [100.0], [1e4]])  # the larger ones meet any clamp
    x = (draw(4, 8).detach() * sizes).to(dtype).requires_grad_()
    return largest_gap(
        lambda: own(one, x), lambda: one.down_proj(plain_gate(one.gate_proj(x), one.up_proj(x))), [x, *one.parameters()]
    )


def _rotation_gap(own: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype, angle_dtype: torch.dtype) -> float:
    query, key = draw(2, 4, 7, 6, dtype=dtype), draw(2, 2, 7, 6, dtype=dtype)
    angles = draw(2, 1, 7, 6, dtype=angle_dtype, grad=False).unbind()

    def plain() -> Tensor:
        return torch.cat([plain_rotation(query, *angles), plain_rotation(key, *angles)], dim=1)

    return largest_gap(lambda: torch.cat(own(query, key, *angles), dim=1), plain, [query, key])


# ---- replacements


def _may_take(*tensors: Any) -> bool:
    plain = (type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" and x.dtype in LAYER_DTYPES for x in tensors)
    return not torch.compiler.is_compiling() and is_in_c() and not is_differentiable_twice() and all(plain)


def _norm_in_c(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) == 1 and not kwargs and _may_take(args[0], self.weight):
            x, eps = args[0], _eps(self)
            if (x.dtype, self.weight.dtype) in _TYPES[own] and x.shape[-1:] == self.weight.shape and eps is not None:
                return compiled_norm(x, self.weight, eps)
        return own(self, *args, **kwargs)

    return forward


def _gated_in_c(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) != 1 or kwargs or not _may_take(args[0]) or not _is_silu(self.act_fn):
            return own(self, *args, **kwargs)
        gate, up = self.gate_proj(args[0]), self.up_proj(args[0])
        if _may_take(gate, up) and gate.shape == up.shape and (gate.dtype, up.dtype) in _TYPES[own]:
            inner = compiled_gate(gate, up)
        else:
            inner = self.act_fn(gate) * up
        out: Tensor = self.down_proj(inner)
        return out

    return forward


def _rotation_in_c(own: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    @functools.wraps(own)
    def rotate(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if len(args) == 4 and not kwargs and _may_take(*args) and _can_turn(*args, _TYPES[own]):
            query, key, cos, sin = args
            return compiled_rotation(query, cos, sin), compiled_rotation(key, cos, sin)
        return own(*args, **kwargs)

    return rotate


def _can_turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, types: Types) -> bool:
    shapes = {(x.shape[0], *x.shape[2:]) for x in (query, key) if x.dim() == 4}
    if query.dim() != 4 or key.dim() != 4 or len(shapes) != 1 or cos.shape != sin.shape or cos.dim() != 3:
        return False
    (size, *row) = shapes.pop()
    fits = list(cos.shape[1:]) == row and cos.shape[0] in (1, size) and row[1] % 2 == 0
    typed = cos.dtype == sin.dtype and all((x.dtype, cos.dtype) in types for x in (query, key))
    return fits and typed and not cos.requires_grad and not sin.requires_grad
