"""The random state of a process as JSON can hold it, and back.

What comes back is checked: it may have been written by anybody.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmstable.checked_json import (
    Check,
    integer,
    list_of,
    number,
    one_of,
    optional,
    record,
    text,
    tuple_of,
)

# The Mersenne Twister of python and of numpy. Python adds its position.
_WORDS = 624
# Of accelerators; that of a CPU has about 5,000 bytes, that of CUDA has 16.
_LONGEST_STATE, _MOST_DEVICES, _MOST_GENERATORS = 1 << 16, 128, 8


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


def unpack_rng(packed: Any) -> dict[str, Any]:
    """What :func:`pack_rng` was given.

    Raises:
        ValueError: If it cannot have been packed from a random state.
    """
    own = torch.get_rng_state().numel()
    state = dict(
        python=_python,
        numpy=optional(_numpy),
        torch=_state(own, own),
        devices=_devices,
    )
    generators = list_of(_state(1, _LONGEST_STATE), _MOST_GENERATORS)
    start = record(**state, generators=generators)
    return record(**state, pass_start=start)(packed)


def _python(value: Any) -> list[Any]:
    check = tuple_of(integer(3, 3), _words(_WORDS + 1), optional(number))
    version, words, gauss = check(value)
    if words[-1] > _WORDS:
        raise ValueError(f'has no position {int(words[-1])}')
    return [version, words, gauss]


def _numpy(value: Any) -> list[Any]:
    check = tuple_of(
        one_of('MT19937'),
        _words(_WORDS),
        integer(0, _WORDS),
        integer(0, 1),
        number,
    )
    return list(check(value))


def _devices(value: Any) -> dict[str, list[Tensor]]:
    if not isinstance(value, dict) or len(value) > 1:
        raise ValueError('must be an object with one kind of device at most')
    states = list_of(_state(1, _LONGEST_STATE), _MOST_DEVICES)
    return {text(16)(kind): states(one) for kind, one in value.items()}


def _words(count: int) -> Check:
    read = _bytes(4 * count, 4 * count)
    return lambda value: torch.from_numpy(
        np.frombuffer(read(value), '<u4').astype(np.int64)
    )


def _state(least: int, most: int) -> Check:
    read = _bytes(least, most)
    return lambda value: torch.from_numpy(
        np.frombuffer(read(value), np.uint8).copy()
    )


def _bytes(least: int, most: int) -> Check:
    # Four characters for three bytes.
    read = text(4 * (most // 3 + 1))

    def check(value: Any) -> bytes:
        content = base64.b64decode(read(value), validate=True)
        if not least <= len(content) <= most:
            raise ValueError(
                f'must have {least} to {most} bytes, has {len(content)}'
            )
        return content

    return check
