"""Check random states before they reach a generator; pack them as JSON.

numpy and torch read memory at the position that a state names, so that a
wrong one ends the process, or draws from unrelated memory. Every state is a
row of bytes: what torch returns, or the JSON of a generator of python or
numpy. Ranks send each other the same in base64.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmstable.io.schema import (
    Check,
    fields,
    integer,
    list_of,
    mapping_of,
    number,
    optional,
    parse_json,
    record,
    text,
    tuple_of,
)

# The Mersenne Twister of python, numpy and torch. Python adds its position.
_WORDS = 624
# Of accelerators, and of generators as JSON; CUDA's has 16 bytes.
LONGEST_STATE, _MOST_DEVICES, _MOST_GENERATORS = 1 << 16, 128, 8
# Shorter than the JSON of any generator.
_SHORT = 64
# torch's CPU generator: initial seed, words left, whether it was seeded, the
# next word. The words and a normal number that was left over come after.
_TORCH_HEAD = struct.Struct('=QiiQ')


def parse_state(state: Tensor) -> Any:
    """Check a state, and return it as its generator takes it.

    Returns:
        Tensor, tuple or dict: For torch's, python's or numpy's generator.

    Raises:
        ValueError: If no generator can have it.
    """
    content = bytes(_octets(state).tolist())
    if len(content) == _torch_size():
        return _check_torch(state.cpu())
    if len(content) < _SHORT:
        return state.cpu()
    known = parse_json(content, LONGEST_STATE, digits=None)
    if isinstance(known, list):
        version, words, gauss = _PYTHON(known)
        return version, tuple(words), gauss
    name = known.get('bit_generator') if isinstance(known, dict) else None
    if not isinstance(name, str) or name not in NUMPY:
        raise ValueError('must be the state of a known generator')
    missing = NUMPY[name].keys() - known.keys()
    if missing:
        raise ValueError(f'must have {", ".join(sorted(missing))}')
    return fields({**_COMMON, **NUMPY[name]})(known)


def _torch_size() -> int:
    return torch.default_generator.get_state().numel()


def _check_torch(state: Tensor) -> Tensor:
    _, left, seeded, following = _TORCH_HEAD.unpack_from(
        bytes(state[: _TORCH_HEAD.size].tolist())
    )
    # It draws `left` - 1 words more, from the next one on. torch itself
    # checks each of the two alone.
    if seeded != 1 or left < 1 or following + left > _WORDS + 1:
        raise ValueError(f'has no word {following} with {left} left')
    return state


def _words(count: int) -> Check:
    def check(value: Any) -> np.ndarray:
        if (
            not isinstance(value, list)
            or len(value) != count
            or any(type(x) is not int or not 0 <= x < 2**32 for x in value)
        ):
            raise ValueError(f'must be {count} words of 32 bits')
        return np.array(value, dtype=np.uint32)

    return check


def _integers(count: int) -> Check:
    check = tuple_of(*[integer(0)] * count)
    return lambda value: np.array(check(value), dtype=np.uint64)


def _python_words(value: Any) -> list[int]:
    words = _words(_WORDS + 1)(value).tolist()
    if words[-1] > _WORDS:
        raise ValueError(f'has no position {words[-1]}')
    return words


_PYTHON = tuple_of(integer(3, 3), _python_words, optional(number))
_WIDE = integer(0, 2**128 - 1)
_COMMON: dict[str, Check] = dict(has_gauss=integer(0, 1), gauss=number)
# A half of 64 random bits that is left.
_HALF: dict[str, Check] = dict(
    has_uint32=integer(0, 1), uinteger=integer(0, 2**32 - 1)
)
_PCG: dict[str, Check] = dict(state=record(state=_WIDE, inc=_WIDE), **_HALF)
# What the state of each generator of numpy has to have.
NUMPY: dict[str, dict[str, Check]] = dict(
    MT19937=dict(state=record(key=_words(_WORDS), pos=integer(0, _WORDS))),
    PCG64=_PCG,
    PCG64DXSM=_PCG,
    SFC64=dict(state=record(state=_integers(4)), **_HALF),
    Philox=dict(
        state=record(counter=_integers(4), key=_integers(2)),
        buffer=_integers(4),
        buffer_pos=integer(0, 4),
        **_HALF,
    ),
)


def _octets(value: Any) -> Tensor:
    if (
        not isinstance(value, Tensor)
        or value.dtype != torch.uint8
        or value.dim() != 1
        or not 0 < value.numel() <= LONGEST_STATE
        or value.is_meta
    ):
        raise ValueError('must be a row of torch.uint8')
    return value.cpu()


def _state_of(kind: type) -> Check:
    def check(value: Any) -> Tensor:
        state = _octets(value)
        # Also accelerators have short ones.
        if not isinstance(parse_state(state), kind) or (
            kind is Tensor and state.numel() != _torch_size()
        ):
            raise ValueError('must be the state of its generator')
        return state

    return check


def _any_state(value: Any) -> Tensor:
    state = _octets(value)
    parse_state(state)
    return state


_STATES: dict[str, Check] = dict(
    python=_state_of(tuple),
    numpy=optional(_state_of(dict)),
    torch=_state_of(Tensor),
    devices=mapping_of(text(16), list_of(_octets, _MOST_DEVICES), 1),
)


def check_rng(value: Any) -> dict[str, Any]:
    """Check a state as ``capture_rng`` returns it, from a file.

    Raises:
        ValueError: If no generator can have it.
    """
    more: dict[str, Check] = dict(
        generators=list_of(_any_state, _MOST_GENERATORS), pass_start=check_rng
    )
    present = more.keys() & value if isinstance(value, dict) else ()
    return record(**_STATES, **{key: more[key] for key in present})(value)


def unpack_rng(packed: Any) -> dict[str, Any]:
    """Check what :func:`pack_rng` returned, from another rank.

    Raises:
        ValueError: If it cannot have returned that.
    """

    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: decode(one) for key, one in value.items()}
        if isinstance(value, list):
            return [decode(one) for one in value]
        if value is None:
            return None
        # Four characters for three bytes.
        data = base64.b64decode(text(2 * LONGEST_STATE)(value), validate=True)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    return check_rng(decode(packed))


def pack_rng(state: Any) -> Any:
    """Convert a random state to strings, lists and dicts.

    Args:
        state (dict): What ``kept_rng`` of a loop returns.
    """
    if isinstance(state, Mapping):
        return {key: pack_rng(value) for key, value in state.items()}
    if isinstance(state, list):
        return [pack_rng(value) for value in state]
    if state is None:
        return None
    return base64.b64encode(bytes(state.tolist())).decode('ascii')
