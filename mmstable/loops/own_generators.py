"""The random generators that only a data loader and its samplers have.

Python's, numpy's and torch's are known, in whatever attribute they are. Each
state is a tensor of bytes, so that all of them are saved in one way.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import Sampler

from mmstable.run_state.rng_check import parse_generator

_KINDS = (Generator, random.Random, np.random.Generator, np.random.RandomState)
_SAMPLERS = ('batch_sampler', 'sampler')


def own_generators(dataloader: Any) -> list[Any]:
    """All of them, always in the same order."""
    owners = [dataloader, *samplers_of(dataloader)]
    return [
        value
        for owner in owners
        for value in _attributes(owner).values()
        if isinstance(value, _KINDS)
    ]


def samplers_of(dataloader: Any) -> list[Any]:
    """All samplers that decide about the order, outer ones first."""
    return list(_samplers(dataloader, {id(dataloader)}))


def read_generator(generator: Any) -> Tensor:
    """The state of a generator, as bytes."""
    if isinstance(generator, Generator):
        return generator.get_state()
    state: Any
    if isinstance(generator, random.Random):
        state = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    else:
        state = generator.bit_generator.state
    text = json.dumps(state, default=lambda value: value.tolist())
    return torch.frombuffer(bytearray(text, 'utf-8'), dtype=torch.uint8)


def write_generator(generator: Any, saved: Tensor) -> None:
    """Bring a generator back to what :func:`read_generator` gave.

    Raises:
        ValueError: If that was another kind of generator.
    """
    state = parse_generator(saved)
    if isinstance(generator, Generator) and isinstance(state, Tensor):
        generator.set_state(state)
    elif isinstance(generator, random.Random) and isinstance(state, list):
        version, words, gauss = state
        generator.setstate((version, tuple(words.tolist()), gauss))
    elif not isinstance(state, dict):
        raise ValueError(f'is no state of a {type(generator).__name__}')
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _samplers(owner: Any, seen: set[int]) -> Iterator[Any]:
    attributes = _attributes(owner)
    inner = {
        name: value
        for name, value in attributes.items()
        if name in _SAMPLERS or isinstance(value, Sampler)
    }
    if inner.get('batch_sampler') is not None:
        # With one of its own, a loader's `sampler` means nothing.
        inner.pop('sampler', None)
    for value in inner.values():
        if value is not None and id(value) not in seen:
            seen.add(id(value))
            yield value
            yield from _samplers(value, seen)


def _attributes(owner: Any) -> dict[str, Any]:
    return getattr(owner, '__dict__', {})
