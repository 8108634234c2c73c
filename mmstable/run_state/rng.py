"""The random number generators of a process, as plain data.

Everything loads under ``weights_only=True``: numbers, strings, lists and
tensors.
"""

from __future__ import annotations

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
    """The same as the generators give it, which takes half the time."""
    return (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
        _device_states(),
    )


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
