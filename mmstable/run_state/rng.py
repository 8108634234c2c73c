"""The random number generators of a process, as plain data.

Everything loads under ``weights_only=True``: numbers, strings, lists and
tensors.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import torch
from mmengine.device import get_device
from torch import Tensor


def capture_rng() -> dict[str, Any]:
    """The states of python's, numpy's and torch's generators.

    Returns:
        dict: ``python``, ``numpy`` (None if its generator is not the usual
        one), ``torch`` and ``devices``, the states of all accelerators.
    """
    return plain_rng(raw_rng())


def raw_rng() -> tuple[Any, Any, Tensor, dict[str, list[Tensor]]]:
    """The same as the generators give it, which takes a tenth of the time."""
    return (
        random.getstate(),
        _NUMPY.get_state(),
        torch.get_rng_state(),
        _device_states(),
    )


class _NumpyState:
    """The state of numpy's generator, read anew only if it has moved.

    Reading it takes numpy longer than all other generators together. A look
    at its memory tells whether any number was drawn since then, except for
    the second one of a pair of normal numbers: while there is such a number
    left over, the state is read.
    """

    # 624 words of the Mersenne Twister, and the position in them.
    _SIZE = 4 * (624 + 1)

    def __init__(self) -> None:
        self._memory = b''
        self._state: Any = None

    def get_state(self) -> Any:
        """What ``numpy.random.get_state`` gives."""
        memory = self._read_memory()
        if memory is None or memory != self._memory:
            self._state = np.random.get_state()
            has_left_over = isinstance(self._state, dict) or self._state[3]
            self._memory = b'' if has_left_over else memory or b''
        return self._state

    def forget(self) -> None:
        """Read the state next time, whatever its memory looks like."""
        self._memory = b''

    def _read_memory(self) -> bytes | None:
        # Older releases of numpy do not tell where it is.
        get = getattr(np.random, 'get_bit_generator', None)
        generator = None if get is None else get()
        if type(generator) is not np.random.MT19937:
            return None
        address = generator.ctypes.state_address
        return ctypes.string_at(address, self._SIZE)


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
    """
    version, words, gauss = state['python']
    random.setstate((version, tuple(words.tolist()), gauss))
    if state['numpy'] is not None:
        kind, words, position, has_gauss, cached = state['numpy']
        words = np.array(words.tolist(), dtype=np.uint32)
        np.random.set_state((kind, words, position, has_gauss, cached))
        _NUMPY.forget()
    torch.set_rng_state(state['torch'].cpu())
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


def _accelerator() -> tuple[str, Any]:
    """The kind of accelerator and torch's module for it, or None."""
    kind = get_device()
    module = getattr(torch, kind, None)
    return kind, module if hasattr(module, 'get_rng_state_all') else None


def _device_states() -> dict[str, list[Tensor]]:
    kind, module = _accelerator()
    return {} if module is None else {kind: module.get_rng_state_all()}


def _set_device_states(states: dict[str, list[Tensor]]) -> None:
    kind, module = _accelerator()
    if module is None or kind not in states:
        return
    for index, state in enumerate(states[kind][: module.device_count()]):
        # Loading a checkpoint may have put it on the accelerator.
        module.set_rng_state(state.cpu(), index)
