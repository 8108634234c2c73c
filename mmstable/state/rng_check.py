"""Check random states before they reach a generator; pack them as JSON.

numpy and torch read memory at the position that a state names, so that a
wrong one ends the process, or draws from unrelated memory. A state is checked
alike whether it comes from a checkpoint, as tensors, or from another rank, as
JSON with base64 strings.
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
_LARGEST_WORD = 2**32 - 1
# Of accelerators, and of generators as JSON; CUDA's has 16 bytes.
LONGEST_STATE, _MOST_DEVICES, _MOST_GENERATORS = 1 << 16, 128, 8
# Shorter than the JSON of any generator.
_SHORT = 64
# torch's CPU generator: initial seed, words left, whether it was seeded, the
# next word. The words and a normal number that was left over come after.
_TORCH_HEAD = struct.Struct('=QiiQ')


def rng_schema(words: Check, octets: Check) -> Check:
    """The check of a state as :func:`capture_rng` gives it.

    Args:
        words (Check): Reads the words of a Mersenne Twister as a tensor.
        octets (Check): Reads any other state as a tensor of bytes.
    """
    known = dict(
        python=_python_state(words),
        numpy=optional(
            tuple_of(
                _bit_generator('MT19937'),
                _twister(words, _WORDS),
                integer(0, _WORDS),
                integer(0, 1),
                number,
            )
        ),
        torch=lambda value: _check_torch(octets(value)),
        devices=mapping_of(text(16), list_of(octets, _MOST_DEVICES), 1),
    )
    generators = list_of(
        lambda value: _check_generator(octets(value)), _MOST_GENERATORS
    )

    def check(value: Any) -> dict[str, Any]:
        more: dict[str, Check] = dict(generators=generators, pass_start=check)
        present = value if isinstance(value, dict) else {}
        return record(
            **known, **{key: more[key] for key in more if key in present}
        )(value)

    return check


def parse_generator(state: Tensor) -> Any:
    """The state of a data loader's own generator, checked.

    Returns:
        Tensor, list or dict: For torch's, python's or numpy's generator.
    """
    content = bytes(_octets(state).tolist())
    if len(content) == _torch_size():
        return _check_torch(state.cpu())
    if len(content) < _SHORT:
        return state.cpu()
    known = parse_json(content, LONGEST_STATE, digits=40)
    if isinstance(known, list):
        return _python_state(_word_list)(known)
    name = known.get('bit_generator') if isinstance(known, dict) else None
    if not isinstance(name, str) or name not in _NUMPY:
        raise ValueError('must be the state of a known generator')
    return fields({**_COMMON, **_NUMPY[name]})(known)


def _check_generator(state: Tensor) -> Tensor:
    parse_generator(state)
    return state


def _check_torch(state: Tensor) -> Tensor:
    if state.numel() != _torch_size():
        raise ValueError(
            f'must have {_torch_size()} bytes, has {state.numel()}'
        )
    _, left, seeded, following = _TORCH_HEAD.unpack_from(
        bytes(state[: _TORCH_HEAD.size].tolist())
    )
    # It draws `left` - 1 words more, from the next one on. torch itself
    # checks each of the two alone.
    if seeded != 1 or left < 1 or following + left > _WORDS + 1:
        raise ValueError(f'has no word {following} with {left} left')
    return state


def _torch_size() -> int:
    return torch.default_generator.get_state().numel()


def _python_state(words: Check) -> Check:
    check = tuple_of(
        integer(3, 3), _twister(words, _WORDS + 1), optional(number)
    )

    def check_python(value: Any) -> list[Any]:
        version, state, gauss = check(value)
        if state[-1] > _WORDS:
            raise ValueError(f'has no position {int(state[-1])}')
        return [version, state, gauss]

    return check_python


def _twister(words: Check, count: int) -> Check:
    def check(value: Any) -> Tensor:
        state = words(value)
        if state.numel() != count:
            raise ValueError(f'must have {count} words, has {state.numel()}')
        if state.min() < 0 or state.max() > _LARGEST_WORD:
            raise ValueError('has a word of more than 32 bits')
        return state

    return check


def _word_list(value: Any) -> Tensor:
    return torch.tensor(list_of(integer(0, _LARGEST_WORD), _WORDS + 1)(value))


def _bit_generator(name: str) -> Check:
    def check(value: Any) -> str:
        if value != name:
            raise ValueError(f'must be {name}')
        return name

    return check


def _integers(count: int) -> Check:
    check = tuple_of(*[integer(0)] * count)
    return lambda value: np.array(check(value), dtype=np.uint64)


def _words_as_array(value: Any) -> np.ndarray:
    return _twister(_word_list, _WORDS)(value).numpy().astype(np.uint32)


_WIDE = integer(0, 2**128 - 1)
_COMMON: dict[str, Check] = dict(
    has_gauss=integer(0, 1),
    gauss=number,
    has_uint32=integer(0, 1),
    uinteger=integer(0, _LARGEST_WORD),
)
_PCG: dict[str, Check] = dict(state=record(state=_WIDE, inc=_WIDE))
_NUMPY: dict[str, dict[str, Check]] = dict(
    MT19937=dict(state=record(key=_words_as_array, pos=integer(0, _WORDS))),
    PCG64=_PCG,
    PCG64DXSM=_PCG,
    SFC64=dict(state=record(state=_integers(4))),
    Philox=dict(
        state=record(counter=_integers(4), key=_integers(2)),
        buffer=_integers(4),
        buffer_pos=integer(0, 4),
    ),
)


def _words(value: Any) -> Tensor:
    return _plain(value, torch.int64)


def _octets(value: Any) -> Tensor:
    return _plain(value, torch.uint8)


def _plain(value: Any, dtype: torch.dtype) -> Tensor:
    if (
        not isinstance(value, Tensor)
        or value.dtype != dtype
        or value.dim() != 1
        or not 0 < value.numel() <= LONGEST_STATE
        or value.is_meta
    ):
        raise ValueError(f'must be a row of {dtype}')
    return value.cpu()


# The state of a process, in numbers, lists and tensors.
check_rng = rng_schema(_words, _octets)


def pack_rng(state: Any) -> Any:
    """Convert a random state to strings, numbers, lists and dicts.

    Args:
        state (dict): What ``kept_rng`` of a loop returns.
    """
    if isinstance(state, Mapping):
        return {key: pack_rng(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [pack_rng(value) for value in state]
    if not isinstance(state, Tensor):
        return state
    values = state.cpu().numpy()
    if state.dtype == torch.int64:
        # The words of a Mersenne Twister have 32 bits.
        values = values.astype('<u4')
    return base64.b64encode(values.tobytes()).decode('ascii')


def _decode(value: Any) -> bytes:
    # Four characters for three bytes.
    return base64.b64decode(text(2 * LONGEST_STATE)(value), validate=True)


def _packed_words(value: Any) -> Tensor:
    words = np.frombuffer(_decode(value), '<u4')
    return torch.from_numpy(words.astype(np.int64))


def _packed_octets(value: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(_decode(value), np.uint8).copy())


# What :func:`pack_rng` was given; ValueError if that cannot have been a
# random state.
unpack_rng = rng_schema(_packed_words, _packed_octets)
