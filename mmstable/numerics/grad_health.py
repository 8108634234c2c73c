"""Norms of gradients in one read pass, and which of them are not finite."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

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
    on_cpu = first.device.type == 'cpu'
    if on_cpu and norm_type == 2 and not first.is_complex():
        return _euclidean_norms_on_cpu(values)
    return torch.stack(torch._foreach_norm(values, norm_type))


def _euclidean_norms_on_cpu(values: list[Tensor]) -> Tensor:
    # A dot product runs at the speed of memory, CPU norm kernels do not; but
    # one call for many small gradients beats a call for each.
    norms: dict[int, Tensor] = {}
    small: list[int] = []
    for index, value in enumerate(values):
        if value.numel() >= _WORTH_A_CALL:
            norms[index] = _sum_of_squares(value).sqrt_()
        else:
            small.append(index)
    if not norms:
        return torch.stack(torch._foreach_norm(values))
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
