"""The random number generators of a process, as plain data.

Everything loads under ``weights_only=True``: numbers, strings, lists and
tensors.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from abc import ABC, abstractmethod
from functools import cache
from typing import Any

import numpy as np
import torch
from mmengine.device import get_device
from torch import Tensor

from mmstable.run_state.rng_check import check_rng


def capture_rng() -> dict[str, Any]:
    """The states of python's, numpy's and torch's generators.

    Returns:
        dict: ``python``, ``numpy`` (None if its generator is not the usual
        one), ``torch`` and ``devices``, the states of all accelerators.
    """
    return plain_rng(raw_rng())


def raw_rng() -> tuple[Any, Any, Tensor, dict[str, list[Tensor]]]:
    """The same as the generators give it, which takes a tenth of the time."""
    kind, module = _accelerator()
    return (
        _PYTHON.get(),
        _NUMPY.get(),
        torch.default_generator.get_state(),
        {} if module is None else {kind: module.get_rng_state_all()},
    )


class _Watched(ABC):
    """The state of a Mersenne Twister, read anew only if it has moved.

    Reading one makes hundreds of numbers, after every iteration. Comparing
    its memory with what it was then takes next to nothing, and whatever is
    drawn changes that. The comparison is left out where the memory is not
    known to hold the state.
    """

    # Its 624 words, and the position in them.
    Memory = ctypes.c_char * (4 * (624 + 1))

    def __init__(self) -> None:
        self._mark: Any = None
        self._state: Any = None

    def get(self) -> Any:
        """The state, as its module gives it."""
        mark = self._look()
        if mark is None or mark != self._mark:
            self._state = self._read()
            self._mark = mark if self._holds(mark, self._state) else None
        return self._state

    def forget(self) -> None:
        """Read the state next time, whatever its memory looks like."""
        self._mark = None

    @abstractmethod
    def _look(self) -> Any:
        """What changes if the state does; None if that is not known."""

    @abstractmethod
    def _read(self) -> Any:
        """The state."""

    @abstractmethod
    def _holds(self, mark: Any, state: Any) -> bool:
        """Whether a look is enough to know this state again."""


class _PythonState(_Watched):
    """Of the module ``random``."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: Any = None
        self._generator: Any = random.random.__self__  # type: ignore[attr-defined]
        begin = object.__basicsize__
        size = begin + ctypes.sizeof(self.Memory)
        if (
            sys.implementation.name == 'cpython'
            and type(self._generator) is random.Random
            and _random.Random.__basicsize__ >= size
        ):
            address = id(self._generator) + begin
            self._memory = self.Memory.from_address(address)

    def _look(self) -> Any:
        if self._memory is None:
            return None
        return self._memory.raw, self._generator.gauss_next

    def _read(self) -> Any:
        return random.getstate()

    def _holds(self, mark: Any, state: Any) -> bool:
        if mark is None:
            return False
        (*words, position), gauss = state[1:]
        expected = struct.pack('=625I', position, *words)
        return mark == (expected, gauss)


class _NumpyState(_Watched):
    """Of the module ``numpy.random``."""

    def __init__(self) -> None:
        super().__init__()
        self._generator: Any = None
        self._memory: Any = None
        # Older releases of numpy do not tell which one it is.
        self._find = getattr(np.random, 'get_bit_generator', lambda: None)

    def _look(self) -> Any:
        generator = self._find()
        if generator is not self._generator:
            self._generator, self._memory = generator, None
            if type(generator) is np.random.MT19937:
                address = generator.ctypes.state_address
                self._memory = self.Memory.from_address(address)
        return None if self._memory is None else self._memory.raw

    def _read(self) -> Any:
        return np.random.get_state()

    def _holds(self, mark: Any, state: Any) -> bool:
        if mark is None or isinstance(state, dict):
            return False
        _, words, position, has_gauss, _ = state
        # Normal numbers come in pairs. The second one, while it is left
        # over, is kept elsewhere.
        expected = words.tobytes() + struct.pack('=I', position)
        return not has_gauss and mark == expected


_PYTHON = _PythonState()
_NUMPY = _NumpyState()


def plain_rng(raw: tuple[Any, Any, Tensor, dict]) -> dict[str, Any]:
    """What :func:`capture_rng` would have given then."""
    (version, words, gauss), numpy, own, devices = raw
    return {
        'python': [version, torch.tensor(words), gauss],
        'numpy': _plain_numpy(numpy),
        'torch': own,
        'devices': devices,
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Bring the generators back to what :func:`capture_rng` saw.

    Of accelerators, those that are there now and were there then get their
    state back.

    Args:
        state (dict): What :func:`capture_rng` gave. Its tensors may be on
            any device.

    Raises:
        ValueError: If it is not the state of such generators.
    """
    state = check_rng(state)
    version, words, gauss = state['python']
    random.setstate((version, tuple(words.tolist()), gauss))
    if state['numpy'] is not None:
        kind, words, position, has_gauss, cached = state['numpy']
        words = np.array(words.tolist(), dtype=np.uint32)
        np.random.set_state((kind, words, position, has_gauss, cached))
        _NUMPY.forget()
    torch.set_rng_state(state['torch'])
    _set_device_states(state['devices'])


def _plain_numpy(state: Any) -> list[Any] | None:
    if isinstance(state, dict):
        return None
    kind, words, position, has_gauss, cached = state
    # torch has no use for uint32 in its older releases.
    return [
        str(kind),
        torch.from_numpy(words.astype(np.int64)),
        int(position),
        int(has_gauss),
        float(cached),
    ]


@cache
def _accelerator() -> tuple[str, Any]:
    """The kind of accelerator and torch's module for it, or None."""
    kind = get_device()
    module = getattr(torch, kind, None)
    return kind, module if hasattr(module, 'get_rng_state_all') else None


def _set_device_states(states: dict[str, list[Tensor]]) -> None:
    kind, module = _accelerator()
    if module is None or kind not in states:
        return
    for index, state in enumerate(states[kind][: module.device_count()]):
        module.set_rng_state(state, index)
