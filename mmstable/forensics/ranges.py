"""A tensor as a record: what it looks like without its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# How bad a tensor is; a larger number is worse.
FINITE, INF, NAN = 0, 1, 2
KINDS = ('finite', 'Inf', 'NaN')


@dataclass(frozen=True)
class Range:
    """What is known of the values of a tensor.

    Args:
        shape (tuple[int]): Its shape.
        dtype (str): Its dtype, as 'float16'.
        size (int): How many elements it has.
        low (float, optional): The smallest finite one. Defaults to None.
        high (float, optional): The largest finite one. Defaults to None.
        zeros (int): How many are 0. Defaults to 0.
        nans (int): How many are NaN. Defaults to 0.
        infs (int): How many are infinite. Defaults to 0.
        minus_infs (int): How many of these are negative. Defaults to 0.
    """

    shape: tuple[int, ...]
    dtype: str
    size: int
    low: float | None = None
    high: float | None = None
    zeros: int = 0
    nans: int = 0
    infs: int = 0
    minus_infs: int = 0

    @property
    def kind(self) -> str:
        """'finite', 'Inf' or 'NaN'."""
        return KINDS[NAN if self.nans else INF if self.infs else FINITE]

    @property
    def bad_share(self) -> float:
        """The share of elements that are not finite."""
        return (self.nans + self.infs) / self.size if self.size else 0.0

    @property
    def peak(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.low or 0.0), abs(self.high or 0.0))

    @property
    def looks_like_mask(self) -> bool:
        """Whether it is made to hide something: nothing but 0 and -Inf."""
        return (
            not self.nans
            and 0 < self.infs == self.minus_infs
            and self.infs + self.zeros == self.size
        )

    def __str__(self) -> str:
        text = f'{self.dtype}[{", ".join(map(str, self.shape))}]'
        if self.low is not None and self.high is not None:
            text += f' {self.low:.4g}..{self.high:.4g}'
        if self.nans or self.infs:
            counts = [(self.nans, 'NaN'), (self.infs, 'Inf')]
            named = [f'{count} {name}' for count, name in counts if count]
            text += f' ({" and ".join(named)} of {self.size})'
        return text


def severity(tensor: Tensor) -> int:
    """FINITE, INF or NAN; waits for the device."""
    if not can_be_bad(tensor):
        return FINITE
    values = plain_values(tensor)
    if bool(torch.isfinite(values).all()):
        return FINITE
    return NAN if bool(torch.isnan(values).any()) else INF


def can_be_bad(tensor: Tensor) -> bool:
    """Whether a tensor has values that can be NaN or Inf."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        # torch knows no `isfinite` for the dtypes of eight bits.
        and tensor.element_size() > 1
        and tensor.device.type != 'meta'
        and tensor.numel() > 0
    )


def plain_values(tensor: Tensor) -> Tensor:
    """The numbers that a tensor holds in memory; all of them if dense."""
    values = tensor.detach()
    if values.layout is torch.strided:
        return values
    is_coo = values.layout is torch.sparse_coo
    return values._values() if is_coo else values.values()


def measure(tensor: Tensor) -> Range:
    """The range of a tensor; waits for the device."""
    dtype = str(tensor.dtype).replace('torch.', '')
    shape, size = tuple(tensor.shape), tensor.numel()
    if (
        size == 0
        or tensor.is_complex()
        or tensor.dtype is torch.bool
        or tensor.device.type == 'meta'
        or (tensor.is_floating_point() and tensor.element_size() == 1)
    ):
        return Range(shape, dtype, size)
    values = plain_values(tensor)
    infs = values.isinf()
    finite = values[values.isfinite()]
    return Range(
        shape,
        dtype,
        size,
        low=float(finite.min()) if len(finite) else None,
        high=float(finite.max()) if len(finite) else None,
        zeros=int((finite == 0).sum()),
        nans=int(values.isnan().sum()),
        infs=int(infs.sum()),
        minus_infs=int((infs & (values < 0)).sum()),
    )
