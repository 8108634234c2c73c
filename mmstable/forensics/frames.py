"""Places in the code, and tensors as ranges without their values."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import Module

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = os.path.abspath(sysconfig.get_paths()['stdlib']) + os.sep
_INSTALLED = tuple(
    f'{os.sep}{name}{os.sep}' for name in ('site-packages', 'dist-packages')
)


class Line(NamedTuple):
    """A line of source code.

    Args:
        file (str): The path of its file.
        number (int): Counted from 1.
    """

    file: str
    number: int

    @property
    def text(self) -> str:
        """The code; '' if there is no such file."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f'{short_path(self.file)}:{self.number}: {self.text}'


class Place(NamedTuple):
    """Where an operation was called.

    Args:
        module (str, optional): The innermost module, by its name in
            ``model.named_modules()``; None if none was running. Defaults to
            None.
        lines (tuple[Line]): The innermost line outside of torch, and the one
            that led there, if that is in the code of a library or inside a
            custom autograd function. Defaults to ().
    """

    module: str | None = None
    lines: tuple[Line, ...] = ()


def module_names(model: Module) -> dict[int, str]:
    """The names of all modules of a model, by their ids."""
    return {id(module): name for name, module in model.named_modules()}


def current_place(names: Mapping[int, str]) -> Place:
    """Find where the code is that is running right now.

    Args:
        names (Mapping): What :func:`module_names` gave.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame):
        frame = frame.f_back
    return place_of(_outward(frame), names)


def _outward(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def place_of(
    frames: Iterable[tuple[FrameType, int]], names: Mapping[int, str]
) -> Place:
    """Find the module and the lines to show for a stack.

    Frames of this package end the search: in a backward pass, code of users
    runs only in functions of their own.

    Args:
        frames (Iterable): Frames and their lines, the innermost first.
        names (Mapping): What :func:`module_names` gave.
    """
    module: str | None = None
    lines: list[Line] = []
    wanted = 1
    for frame, number in frames:
        if _is_own(frame):
            break
        if module is None:
            owner = frame.f_locals.get('self')
            if isinstance(owner, Module):
                module = names.get(id(owner))
        file = frame.f_code.co_filename
        if len(lines) < wanted and is_shown(file):
            lines.append(Line(file, number))
            if _is_installed(file) or _is_function(frame):
                wanted = 2
        if module is not None and len(lines) == wanted:
            break
    return Place(module, tuple(lines))


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OWN)


@cache
def is_shown(file: str) -> bool:
    """Whether a file belongs neither to torch nor to Python itself."""
    if file.startswith(('<', _TORCH)):
        return False
    return _is_installed(file) or not file.startswith(_LIBRARY)


@cache
def _is_installed(file: str) -> bool:
    return any(folder in file for folder in _INSTALLED)


def _is_function(frame: FrameType) -> bool:
    """Whether it runs ``forward`` or ``backward`` of an autograd function."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return bool(names) and isinstance(
        frame.f_locals.get(names[0]), FunctionCtx
    )


@cache
def short_path(file: str) -> str:
    """A path as a person would name it."""
    for folder in _INSTALLED:
        if folder in file:
            return file.rpartition(folder)[2]
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file


# How bad a tensor is; a larger number is worse.
FINITE, INF, NAN = 0, 1, 2
KINDS = ('finite', 'Inf', 'NaN')


@dataclass(frozen=True)
class Range:
    """What is known of the values of a tensor.

    Args:
        shape (tuple[int], optional): Its shape; None for many tensors.
        dtype (str): Its dtype, as 'float16'.
        size (int): How many elements it has.
        low (float, optional): The smallest finite one. Defaults to None.
        high (float, optional): The largest finite one. Defaults to None.
        zeros (int): How many are 0. Defaults to 0.
        nans (int): How many are NaN. Defaults to 0.
        infs (int): How many are infinite. Defaults to 0.
        minus_infs (int): How many of these are negative. Defaults to 0.
    """

    shape: tuple[int, ...] | None
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
        text = self.dtype
        if self.shape is not None:
            text += f'[{", ".join(map(str, self.shape))}]'
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
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    if (
        not (is_whole or can_be_bad(tensor))
        or tensor.is_complex()
        or tensor.dtype is torch.bool
        or tensor.device.type == 'meta'
        or size == 0
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


def merge(*ranges: Range) -> Range:
    """The range of the values of many tensors, which has no shape."""
    dtypes = dict.fromkeys(d for one in ranges for d in one.dtype.split('/'))
    lows = [one.low for one in ranges if one.low is not None]
    highs = [one.high for one in ranges if one.high is not None]
    return Range(
        None,
        '/'.join(dtypes),
        sum(one.size for one in ranges),
        low=min(lows, default=None),
        high=max(highs, default=None),
        nans=sum(one.nans for one in ranges),
        infs=sum(one.infs for one in ranges),
    )


class ModuleRanges:
    """Collects the outputs of operations by module and pass."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str], Range] = {}

    def note(self, phase: str, op: str, place: Place, output: Tensor) -> None:
        """Take note of an output; a ``watch`` of ``OriginTracer``."""
        key, values = (place.module or '', phase), [measure(output)]
        if key in self._ranges:
            values.append(self._ranges[key])
        self._ranges[key] = merge(*values)

    def below(self, name: str) -> dict[str, Range]:
        """What a module and all in it have computed, by pass.

        Args:
            name (str): The name of the module in the model.
        """
        found: dict[str, list[Range]] = {}
        for (module, phase), values in self._ranges.items():
            if not name or f'{module}.'.startswith(f'{name}.'):
                found.setdefault(phase, []).append(values)
        return {phase: merge(*values) for phase, values in found.items()}
