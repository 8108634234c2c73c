"""Norms of gradients in one read pass, and which of them are not finite.

Also fingerprints of tensors, names of parameters and their modules, and norms
of gradients by module.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from weakref import WeakSet

import torch
from mmengine.model import is_model_wrapper
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.events.monitor import StepQueue

HALF = (torch.float16, torch.bfloat16)
# Values in a gradient from which on its own dot product pays off.
_WORTH_A_CALL = 2**14


def stored_values(grad: Tensor) -> Tensor:
    """The numbers a gradient really holds on this rank.

    For a sparse one these are its values, for a distributed one its part.
    """
    if hasattr(grad, 'to_local'):
        return grad.to_local()
    return grad._values() if grad.is_sparse else grad


def gradient_norms(grads: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """One norm for each gradient, on the device of the first one.

    Every gradient is read once and nothing of its size is allocated. A
    non-finite gradient gives a non-finite norm; a huge finite one may too,
    see :func:`find_nonfinite`.

    Args:
        grads (Sequence[Tensor]): Gradients, dense or sparse, of any mix of
            devices and dtypes. Sparse ones must be coalesced.
        norm_type (float): Order of the norm. Defaults to 2.0.
    """
    if not grads:
        return torch.zeros(0)
    values = [
        # A plain gradient is its own values; most are.
        grad
        if type(grad) is Tensor and not grad.is_sparse
        else _never_empty(stored_values(grad))
        for grad in grads
    ]
    kinds = defaultdict(list)
    for index, value in enumerate(values):
        kinds[value.device, value.dtype].append(index)
    if len(kinds) == 1:
        return _norms_of_one_kind(values, norm_type)

    home = values[0].device
    norms = [
        _norms_of_one_kind([values[i] for i in indices], norm_type).to(home)
        for indices in kinds.values()
    ]
    order = [index for indices in kinds.values() for index in indices]
    widest = max((norm.dtype for norm in norms), key=lambda d: d.itemsize)
    result = norms[0].new_empty(len(values), dtype=widest)
    result[torch.tensor(order, device=home)] = torch.cat(
        [norm.to(widest) for norm in norms]
    )
    return result


def _never_empty(value: Tensor) -> Tensor:
    # Of a small gradient a rank may hold nothing.
    return value if value.numel() else value.new_zeros(1)


def _norms_of_one_kind(values: list[Tensor], norm_type: float) -> Tensor:
    first = values[0]
    if first.dtype in HALF:
        # A norm kept in half precision overflows long before its gradient.
        return torch.stack(
            [
                torch.linalg.vector_norm(v, norm_type, dtype=torch.float32)
                for v in values
            ]
        )
    norms: dict[int, Tensor] = {}
    small: list[int] = []
    if first.is_cpu and norm_type == 2 and not first.is_complex():
        # A dot product runs at the speed of memory, CPU norm kernels do not;
        # but one call for many small gradients beats a call for each.
        for index, value in enumerate(values):
            if value.numel() >= _WORTH_A_CALL:
                norms[index] = _sum_of_squares(value).sqrt_()
            else:
                small.append(index)
    if not norms:
        return torch.stack(torch._foreach_norm(values, norm_type))
    if small:
        together = torch._foreach_norm([values[index] for index in small])
        norms.update(zip(small, together))
    # Tensors are put in order by the host: a device would need an index.
    return torch.stack([norms[index] for index in range(len(values))])


def _sum_of_squares(value: Tensor) -> Tensor:
    flat = _flat_view(value)
    if flat is None:
        return torch.linalg.vector_norm(value).square()
    return torch.dot(flat, flat)


def _flat_view(value: Tensor) -> Tensor | None:
    if value.is_contiguous():
        return value.view(-1)
    if value.dim() == 4 and value.is_contiguous(
        memory_format=torch.channels_last
    ):
        return value.permute(0, 2, 3, 1).view(-1)
    return None


def total_norm(norms: Tensor, norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients together, from one norm for each."""
    if norms.numel() == 0:
        return norms.new_zeros(())
    return torch.linalg.vector_norm(norms, norm_type)


def combined_norm(norms: Sequence[float], norm_type: float = 2.0) -> float:
    """The same on the host."""
    if len(norms) == 1:
        return norms[0]
    tensor = torch.tensor(norms, dtype=torch.float64)
    return cast(float, total_norm(tensor, norm_type).tolist())


def within(value: Tensor, limit: float) -> Tensor:
    """Whether a number is finite and up to a limit; stays on the device.

    Args:
        value (Tensor): The number. NaN is within no limit, nor is Inf.
        limit (float): The limit, which may be Inf.
    """
    return torch.le(value, min(limit, torch.finfo(value.dtype).max))


def flag_unless(good: Tensor) -> Tensor:
    """0.0 where it is true, else 1.0, as optimizers read it."""
    flag = torch.empty_like(good, dtype=torch.float32)
    return torch.logical_not(good, out=flag)


def find_nonfinite(
    grads: Sequence[Tensor], norms: Sequence[float]
) -> dict[int, str]:
    """Which gradients hold a NaN or an Inf.

    Only the suspects are looked at again: a finite gradient whose norm
    overflows is not one of them.

    Args:
        grads (Sequence[Tensor]): The gradients.
        norms (Sequence[float]): Their norms.

    Returns:
        dict[int, str]: Index of the gradient to 'NaN' or 'Inf'.
    """
    found = {}
    for index, norm in enumerate(norms):
        if math.isfinite(norm):
            continue
        values = stored_values(grads[index])
        if torch.isnan(values).any():
            found[index] = 'NaN'
        elif torch.isinf(values).any():
            found[index] = 'Inf'
    return found


def wide_total_norm(grads: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients in double precision, on the host."""
    norms = [
        torch.linalg.vector_norm(
            stored_values(grad), norm_type, dtype=torch.float64
        ).item()
        for grad in grads
    ]
    return torch.linalg.vector_norm(
        torch.tensor(norms, dtype=torch.float64), norm_type
    )


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprints(tensors: Sequence[Tensor]) -> Tensor:
    """One int64 for each tensor, on the device of the first one.

    Equal tensors have equal fingerprints; different ones most likely not.
    Every value is read once.
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.int64)
    home = tensors[0].device
    return torch.stack([_fingerprint(t).to(home) for t in tensors])


def _fingerprint(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.contiguous().view(-1)
    if flat.dtype is torch.bool:
        flat = flat.view(torch.uint8)
    words = flat.view(_WORDS[flat.element_size()])
    if hasattr(torch, 'hash_tensor') and words.numel():
        # Six times as fast as a sum of integers.
        return torch.hash_tensor(words).view(torch.int64)
    return words.sum(dtype=torch.int64)


def is_inside(name: str, modules: Iterable[str]) -> bool:
    """Whether a parameter is one of these, or in one of these modules."""
    return any(
        name == module or name.startswith(f'{module}.') for module in modules
    )


def module_names(parameter_names: Iterable[str]) -> list[str]:
    """All modules that parameters of these names are in."""
    found: dict[str, None] = {}
    for name in parameter_names:
        parts = name.split('.')
        for depth in range(1, len(parts) + 1):
            found['.'.join(parts[:depth])] = None
    return list(found)


class ParameterNames:
    """Names of an optimizer's parameters, as ``model.named_parameters()``.

    An optimizer does not know names, so they are learned from each model that
    trains with it. Until then a parameter is called by its place.

    Args:
        optimizer (Optimizer): The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._names: dict[int, str] = {}
        self._models: WeakSet[Module] = WeakSet()

    def bind_model(self, model: Module) -> bool:
        """Learn the names in a model; False if it was known already."""
        if model in self._models:
            return False
        self._models.add(model)
        for name, param in unwrap(model).named_parameters():
            self._names.setdefault(id(param), clean_name(name))
        return True

    def __getitem__(self, param: Tensor) -> str:
        return self._names.get(id(param)) or self._place(param)

    def all(self) -> list[str]:
        """Names of all parameters of the optimizer."""
        return [
            self[param]
            for group in self._optimizer.param_groups
            for param in group['params']
        ]

    def parameters(self) -> list[Tensor]:
        """Those of the optimizer, and of all models it trains."""
        held = [g['params'] for g in self._optimizer.param_groups]
        held += [list(model.parameters()) for model in self._models]
        return list({id(p): p for params in held for p in params}.values())

    def _place(self, param: Tensor) -> str:
        for i, group in enumerate(self._optimizer.param_groups):
            for j, candidate in enumerate(group['params']):
                if candidate is param:
                    return f'param_groups[{i}].params[{j}]'
        return 'a parameter that has left the optimizer'


def clean_name(name: str) -> str:
    """A name without what FSDP puts into it."""
    return name.replace('_fsdp_wrapped_module.', '')


def unwrap(model: Module) -> Module:
    """The user's own model inside DDP-like and compiled wrappers."""
    while is_model_wrapper(model) or hasattr(model, '_orig_mod'):
        inner = model.module if is_model_wrapper(model) else model._orig_mod
        model = cast(Module, inner)
    return model


def first_parameter(optimizer: Optimizer) -> Tensor:
    """Any parameter of an optimizer; its first groups may be empty."""
    for group in optimizer.param_groups:
        for param in group['params']:
            return param
    raise ValueError('The optimizer has no parameters in any of its groups.')


MOST_MODULES = 24
_DEEPEST = 3


def newest_module_norms(steps: StepQueue) -> dict[str, float]:
    """Norms of the newest applied step, before clipping.

    Args:
        steps (StepQueue): The steps of an optimizer wrapper.
    """
    if steps.norms is None:
        return {}
    names, params, norms, grad_scale, order = steps.norms
    found = {
        names[param]: norm / grad_scale
        for param, norm in zip(params, norms.tolist())
    }
    return by_module(found, order)


def by_module(norms: Mapping[str, float], order: float) -> dict[str, float]:
    """One norm for each module, as deep as there is room for all.

    Args:
        norms (Mapping): Finite or not, by the names of parameters.
        order (float): The order of the norm.
    """
    groups: dict[str, list[float]] = {}
    for depth in range(_DEEPEST, 0, -1):
        groups = {}
        for name, norm in norms.items():
            module = '.'.join(name.split('.')[:-1][:depth])
            groups.setdefault(module, []).append(norm)
        if len(groups) <= MOST_MODULES:
            break
    first = list(groups.items())[:MOST_MODULES]
    joined = {name: combined_norm(held, order) for name, held in first}
    return {name: n for name, n in joined.items() if math.isfinite(n)}
