"""Which module, and which line of whose code, is running right now?"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from types import FrameType
from typing import NamedTuple

import torch
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
    """Where the code is that is running right now.

    Nothing of this package is a place, and what called it is not, either: in
    a backward pass, code of users runs only in functions of their own.

    Args:
        names (Mapping): What :func:`module_names` gave.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame):
        frame = frame.f_back
    module: str | None = None
    lines: list[Line] = []
    wanted = 1
    while frame is not None and not _is_own(frame):
        if module is None:
            owner = frame.f_locals.get('self')
            if isinstance(owner, Module):
                module = names.get(id(owner))
        file = frame.f_code.co_filename
        if len(lines) < wanted and is_shown(file):
            lines.append(Line(file, frame.f_lineno))
            if _is_installed(file) or _is_function(frame):
                wanted = 2
        if module is not None and len(lines) == wanted:
            break
        frame = frame.f_back
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
