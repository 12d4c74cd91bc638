"""Weights in shards (torch's FSDP2), and whole again.

Source: Zhao et al. 2023, arXiv:2304.11277; the form with a tensor for each parameter is ``torch.distributed.fsdp.fully_shard``.

Gradients are sums over ranks, not means: every rank divides its losses by the counts of the whole step, so that the sum is the
step's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from rlhf.errors import ConfigError

ResultT = TypeVar("ResultT")
CALL = "_rlhf_inside_forward"
"""Where a module that lies in shards has what ``inside_forward`` calls."""
VOCABULARY = "_rlhf_vocabulary"
"""Where it has what computes in parts of the vocabulary, see ``rlhf.distributed.vocab_parallel``."""
_replicas = 1
"""Groups of ranks that hold whole models, where weights are in shards now."""


@runtime_checkable
class WholeWeights(Protocol):
    """What gathers weights in its own way: another engine's call, or a vocabulary in parts."""

    def whole(self) -> AbstractContextManager[None]:
        """Inside, weights are whole, and no forward pass is a collective."""
        ...


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """How weights are cut; the same on every rank."""

    replicas: int = 1
    """Groups of ranks that hold a whole model each; divides the number of ranks."""
    cpu_offload: bool = False
    """Shards lie in main memory."""
    param_dtype: torch.dtype | None = None
    """In which whole weights are gathered; None for their own."""
    vocab_parallel: bool = False
    """Embeddings and output projection are cut by tokens, compute so, and are not gathered."""


PLAIN = ShardOptions()


@contextmanager
def cut_by(options: ShardOptions) -> Iterator[None]:
    """Inside, what is read from checkpoints is cut as ``shard`` with these options cuts a model.

    Raises:
        ConfigError: There are not as many ranks in each replica.
    """
    global _replicas
    size = torch.distributed.get_world_size()
    if size % options.replicas:
        raise ConfigError(f"fsdp.replicate is {options.replicas}, which does not divide the {size} ranks.")
    before, _replicas = _replicas, options.replicas
    try:
        yield
    finally:
        _replicas = before


def shard(
    root: nn.Module,
    layers: Sequence[nn.Module],
    options: ShardOptions = PLAIN,
    *,
    left_out: Sequence[nn.Parameter] = (),
) -> None:
    """Keep a part of each parameter on each rank: a group of collectives for each layer, and one for all the rest.

    Args:
        root: On the same device, with the same weights, on every rank.
        layers: Modules inside it that are gathered one after the other, in the order of the forward pass.
        options: How; called inside ``cut_by`` with the same.
        left_out: Parameters that stay as they are.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    mesh = shard_mesh(next(root.parameters()).device.type)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if options.cpu_offload else OffloadPolicy()
    how: dict[str, Any] = {"mesh": mesh, "offload_policy": offload}
    if options.param_dtype is not None:
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=options.param_dtype, reduce_dtype=_widest(root))
    if left_out:
        how["ignored_params"] = set(left_out)
    sharded: list[Any] = [fully_shard(module, **how) for module in [*layers, root]]
    for module in sharded:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    _make_callable(root)
    with torch.no_grad():
        inside_forward(root, lambda: None)
        for module in sharded:  # a parameter keeps for good whether it had a gradient when it was first gathered
            module.unshard()
            module.reshard()


def unshard(root: nn.Module) -> None:
    """Undo ``shard``: whole parameters, plain modules, and nothing of it left in them."""
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    reshard(root)
    if (vocabulary := root.__dict__.pop(VOCABULARY, None)) is not None:
        vocabulary.close()
    for module in _sharded_modules(root):
        state = _state(module)
        state._pre_forward_hook_handle.remove()
        state._post_forward_hook_handle.remove()
        for group in _parameter_groups(state):
            for handles in (
                group._module_to_pre_save_state_dict_hook_handle,
                group._module_to_pre_load_state_dict_hook_handle,
            ):
                for handle in handles.values():
                    handle.remove()
        module.__class__ = type(module).__bases__[1]
        for key in (STATE_KEY, REGISTRY_KEY):
            module.__dict__.pop(key, None)
    whole_ones: dict[int, nn.Parameter] = {}
    for module in root.modules():
        for name in ("_is_fsdp_managed_module", "_fsdp_use_orig_params"):
            module.__dict__.pop(name, None)
        for key, parameter in module._parameters.items():
            if parameter is not None and is_shard(parameter):
                if id(parameter) not in whole_ones:
                    whole_ones[id(parameter)] = nn.Parameter(whole(parameter.detach()), parameter.requires_grad)
                module._parameters[key] = whole_ones[id(parameter)]
    root.__dict__.pop(CALL, None)


@contextmanager
def whole_weights(models: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, every rank has all weights of the models that lie in shards, and computes with them as often as it likes.

    No forward pass is a collective there, so ranks may take different numbers of them; none with gradient, and nothing may be written to
    the weights. It takes the memory of the whole weights, which is free again afterwards.
    """
    roots = [root for model in models for root in model.modules() if CALL in root.__dict__]
    calls = [root.__dict__[CALL] for root in roots]
    sharded: list[Any] = [module for root in roots for module in _sharded_modules(root)]
    for module in sharded:
        module.unshard()
        state = _state(module)
        state._pre_forward_hook_handle.remove()
        state._post_forward_hook_handle.remove()
    for root in roots:
        del root.__dict__[CALL]
    try:
        with ExitStack() as stack:
            for gathers in (*calls, *(root.__dict__.get(VOCABULARY) for root in roots)):
                if isinstance(gathers, WholeWeights):
                    stack.enter_context(gathers.whole())
            yield
    finally:
        for root, call in zip(roots, calls, strict=True):
            if isinstance(call, WholeWeights):
                root.__dict__[CALL] = call
            else:
                _make_callable(root)
        for module in sharded:
            state = _state(module)
            state._pre_forward_hook_handle = module.register_forward_pre_hook(
                state._pre_forward, prepend=True, with_kwargs=True
            )
            state._post_forward_hook_handle = module.register_forward_hook(state._post_forward, prepend=False)
            module.reshard()


def inside_forward(model: nn.Module, function: Callable[[], ResultT]) -> ResultT:
    """Call a function that computes with a model's parameters outside of its own forward; they are whole inside.

    A model that is not sharded only has the function called. Tensors with gradient should be in the result itself, or in tuples,
    lists and dicts of it.
    """
    call = model.__dict__.get(CALL)
    if call is None:
        return function()
    result: ResultT = call(function)
    if not torch.is_grad_enabled():
        reshard(model)  # no backward pass will, and the next step would compute with weights from before it
    return result


def reshard(root: nn.Module) -> None:
    """Let go of parameters that were gathered and of whose forward pass there is no backward pass."""
    for module in _sharded_modules(root):
        module.reshard()


def is_sharded(model: nn.Module) -> bool:
    """Whether a model, or one inside it, lies in shards, so that its forward passes are those of all ranks."""
    return any(CALL in module.__dict__ for module in model.modules())


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is this rank's part of a whole one."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The tensor that a shard is a part of, which all ranks ask for at once; anything else as it is."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def part(tensor: Tensor) -> Tensor:
    """This rank's values, which share memory with the shard; anything else as it is."""
    local: Any = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def like(source: Tensor, target: Tensor) -> Tensor:
    """A tensor as ``target`` is of one of its shape, on its device: a shard of it, for which no rank asks another, or the whole of it, for
    which all ranks ask at once where ``source`` is a shard.

    Args:
        source: The whole tensor, or a shard of it that is cut in the same way and may lie on another device.
        target: A shard, or a whole tensor.
    """
    if not is_shard(target):
        return whole(source)
    from torch.distributed.tensor import DTensor, distribute_tensor

    placed: Any = target
    if is_shard(source):
        own = part(source).to(target.device)
        return DTensor.from_local(
            own, placed.device_mesh, placed.placements, run_check=False, shape=source.shape, stride=source.stride()
        )
    return distribute_tensor(source.to(target.device), placed.device_mesh, placed.placements, src_data_rank=None)


def empty_shard(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Room on the CPU for this rank's part of a tensor as ``shard`` cuts it, by its first dimension; for all of it in a process by itself."""
    if not torch.distributed.is_initialized():
        return torch.empty(shape, dtype=dtype)
    from torch.distributed.tensor import Replicate, Shard, empty

    placements = [Shard(0)] if _replicas == 1 else [Replicate(), Shard(0)]
    return empty(shape, dtype=dtype, device_mesh=shard_mesh("cpu"), placements=placements)


def compute_device(tensor: Tensor) -> torch.device:
    """Where a tensor is computed with, which for an offloaded shard is not where it lies."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None or mesh.device_type == tensor.device.type:
        return tensor.device
    return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())


def shard_mesh(device_type: str) -> Any:
    """The ranks as ``cut_by`` has them: those that share a model are its last dimension."""
    from torch.distributed.device_mesh import init_device_mesh

    size = torch.distributed.get_world_size()
    if _replicas == 1:
        return init_device_mesh(device_type, (size,))
    return init_device_mesh(device_type, (_replicas, size // _replicas), mesh_dim_names=("replicate", "shard"))


def _widest(root: nn.Module) -> torch.dtype | None:
    """The type of weights, in which gradients are summed."""
    return max((p.dtype for p in root.parameters() if p.requires_grad), key=lambda dtype: dtype.itemsize, default=None)


def _call(function: Callable[[], ResultT]) -> ResultT:
    return function()


def _make_callable(root: nn.Module) -> None:
    """What ``inside_forward`` looks for."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    setattr(root, CALL, _call)
    register_fsdp_forward_method(root, CALL)


def _sharded_modules(root: nn.Module) -> list[Any]:
    """The layers and the root."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def _parameter_groups(state: Any) -> Sequence[Any]:
    """Of what FSDP2 keeps of a module; torch 2.11 and before had one at most."""
    groups: Sequence[Any] | None = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return groups
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _state(module: nn.Module) -> Any:
    """What FSDP2 keeps of a module."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard.state(module)  # type: ignore[attr-defined]
