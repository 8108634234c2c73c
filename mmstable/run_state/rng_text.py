"""The random state of a process as JSON can hold it, and back.

What comes back is checked: it may have been written by anybody.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmstable.checked_json import text
from mmstable.run_state.rng_check import LONGEST_STATE, rng_schema


def pack_rng(state: dict[str, Any]) -> dict[str, Any]:
    """A random state in strings, numbers, lists and dicts.

    Args:
        state (dict): What ``keep_rng`` of a loop gives.
    """
    packed = dict(
        python=_pack_words(state['python']),
        numpy=state['numpy'] and _pack_words(state['numpy']),
        torch=_pack(state['torch'].numpy()),
        devices={
            kind: [_pack(one.cpu().numpy()) for one in states]
            for kind, states in state['devices'].items()
        },
    )
    if 'generators' in state:
        packed['generators'] = [
            _pack(one.cpu().numpy()) for one in state['generators']
        ]
    if 'pass_start' in state:
        packed['pass_start'] = pack_rng(state['pass_start'])
    return packed


def _pack_words(state: list[Any]) -> list[Any]:
    first, words, *rest = state
    return [first, _pack(words.numpy().astype('<u4')), *rest]


def _pack(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode('ascii')


def _decode(value: Any) -> bytes:
    # Four characters for three bytes.
    return base64.b64decode(text(2 * LONGEST_STATE)(value), validate=True)


def _words(value: Any) -> Tensor:
    words = np.frombuffer(_decode(value), '<u4')
    return torch.from_numpy(words.astype(np.int64))


def _octets(value: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(_decode(value), np.uint8).copy())


# What :func:`pack_rng` was given; ValueError if that cannot have been a
# random state.
unpack_rng = rng_schema(_words, _octets)
