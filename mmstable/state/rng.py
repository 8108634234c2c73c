"""Capture and restore the random number generators of a rank.

A captured state is plain data that loads under ``weights_only=True``: rows of
bytes. It covers python, numpy, torch and the accelerators. Generators that a
data loader and its samplers own are added for the start of an epoch: the
loader draws a seed for its workers then, and some samplers draw their order.
"""

from __future__ import annotations

import json
import random
import time
from functools import cache
from typing import Any, Callable

import numpy as np
import torch
from mmengine.device import get_device
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Sampler

from mmstable.io.schema import integer, optional, record
from mmstable.state.rng_check import (
    NUMPY,
    check_rng,
    pack_rng,
    parse_state,
    unpack_rng,
)


def capture_rng() -> dict[str, Any]:
    """The states of python's, numpy's and torch's generators.

    Returns:
        dict: ``python``, ``numpy`` (None if its generator is not the usual
        one), ``torch`` and ``devices``, the state of this rank's accelerator.
    """
    return plain_rng(raw_rng())


def raw_rng() -> tuple[Any, Any, Tensor, dict[str, list[Tensor]]]:
    """Read the generators; :func:`plain_rng` converts the result.

    Reading takes half the time of :func:`capture_rng`.
    """
    kind, module = _accelerator()
    return (
        random.getstate(),
        np.random.get_state(legacy=False),
        torch.default_generator.get_state(),
        {} if module is None else {kind: [module.get_rng_state()]},
    )


def plain_rng(raw: tuple[Any, Any, Tensor, dict]) -> dict[str, Any]:
    """Convert the result of :func:`raw_rng` to plain data."""
    python, numpy, own, devices = raw
    is_known = numpy.get('bit_generator') in NUMPY
    return {
        'python': _as_octets(python),
        'numpy': _as_octets(numpy) if is_known else None,
        'torch': own,
        'devices': devices,
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Restore the generators to what :func:`capture_rng` returned.

    The accelerator of this rank gets its state back if it is of the same
    kind as then.

    Args:
        state (dict): What :func:`capture_rng` returned. Its tensors may be on
            any device.

    Raises:
        ValueError: If it is not the state of such generators.
    """
    state = check_rng(state)
    random.setstate(parse_state(state['python']))
    if state['numpy'] is not None:
        numpy, now = parse_state(state['numpy']), np.random.get_state(False)
        if numpy['bit_generator'] == now['bit_generator']:
            np.random.set_state(numpy)
    torch.set_rng_state(state['torch'])
    device, module = _accelerator()
    if module is not None:
        for one in state['devices'].get(device, [])[:1]:
            module.set_rng_state(one)


def _as_octets(state: Any) -> Tensor:
    text = json.dumps(state, default=lambda value: value.tolist())
    return torch.frombuffer(bytearray(text, 'utf-8'), dtype=torch.uint8)


@cache
def _accelerator() -> tuple[str, Any]:
    """The kind of accelerator and torch's module for it, or None."""
    kind = get_device()
    module = getattr(torch, kind, None)
    return kind, module if hasattr(module, 'get_rng_state') else None


def kept_rng(runner: Runner) -> tuple[int, dict[str, Any] | None]:
    """Iteration and random state that the train loop has kept."""
    loop = runner.train_loop
    return loop.kept_rng() if hasattr(loop, 'kept_rng') else (-1, None)


def own_rng(runner: Runner, iteration: int) -> dict[int, Any]:
    """The kept random state by rank, if it is that of an iteration.

    Args:
        runner (Runner): The runner.
        iteration (int): Iterations done.
    """
    kept, rng = kept_rng(runner)
    return {get_rank(): rng} if kept == iteration else {}


def collect_rng(
    runner: Runner,
    read: Callable[[int], tuple[int, Any] | None],
    iteration: int,
    patience_s: float,
) -> dict[int, Any]:
    """Collect the states of all ranks at the same iteration.

    Args:
        runner (Runner): The runner.
        read (Callable): Returns what :func:`unpack` gave for a rank; None
            before that rank has left its state.
        iteration (int): Iterations done.
        patience_s (float): Seconds to wait for the other ranks.
    """
    known = own_rng(runner, iteration)
    waiting = set(range(get_world_size())) - {get_rank()}
    deadline = time.monotonic() + patience_s
    while waiting and time.monotonic() < deadline:
        for rank in sorted(waiting):
            word = read(rank)
            if word is not None:
                waiting.discard(rank)
                done, state = word
                if done == iteration:
                    known[rank] = state
        time.sleep(0.05)
    return known


def pack(iteration: int, rng: dict[str, Any] | None) -> dict[str, Any]:
    """An iteration and the state after it, as JSON can hold them."""
    packed = None if rng is None else pack_rng(rng)
    return dict(iteration=iteration, rng=packed)


def unpack(packed: Any) -> tuple[int, Any]:
    """Iteration and state that :func:`pack` gave, checked.

    Raises:
        ValueError: If it cannot have given that.
    """
    check = record(iteration=integer(-1), rng=optional(unpack_rng))
    known = check(packed)
    return known['iteration'], known['rng']


_KINDS = (Generator, random.Random, np.random.Generator, np.random.RandomState)
_SAMPLERS = ('batch_sampler', 'sampler')


def own_generators(dataloader: Any) -> list[Any]:
    """List the generators of a data loader and its samplers, in order."""
    return [
        value
        for owner in (dataloader, *samplers_of(dataloader))
        for value in _attributes(owner).values()
        if isinstance(value, _KINDS)
    ]


def samplers_of(owner: Any, seen: set[int] | None = None) -> list[Any]:
    """List the samplers that decide about the order, outer ones first.

    Args:
        owner (Any): A data loader, or a sampler that has others inside.
        seen (set[int], optional): Ids of the owners to skip. Defaults to
            None.
    """
    seen = {id(owner)} if seen is None else seen
    inner = {
        name: value
        for name, value in _attributes(owner).items()
        if name in _SAMPLERS or isinstance(value, Sampler)
    }
    if inner.get('batch_sampler') is not None:
        # With one of its own, a loader's `sampler` means nothing.
        inner.pop('sampler', None)
    found: list[Any] = []
    for value in inner.values():
        if value is not None and id(value) not in seen:
            seen.add(id(value))
            found += [value, *samplers_of(value, seen)]
    return found


def read_generator(generator: Any) -> Tensor:
    """The state of a generator, as bytes."""
    if isinstance(generator, Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return _as_octets(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return _as_octets(generator.get_state(legacy=False))
    return _as_octets(generator.bit_generator.state)


def write_generator(generator: Any, saved: Tensor) -> None:
    """Bring a generator back to what :func:`read_generator` gave.

    Raises:
        ValueError: If that was another kind of generator.
    """
    state = parse_state(saved)
    if isinstance(generator, Generator) and isinstance(state, Tensor):
        generator.set_state(state)
    elif isinstance(generator, random.Random) and isinstance(state, tuple):
        generator.setstate(state)
    elif not isinstance(state, dict):
        raise ValueError(f'is no state of a {type(generator).__name__}')
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _attributes(owner: Any) -> dict[str, Any]:
    return getattr(owner, '__dict__', {})


def capture_epoch_rng(dataloader: DataLoader) -> dict[str, Any]:
    """Capture all generators, those of the data loader included."""
    return {**capture_rng(), **own_states(dataloader)}


def own_states(dataloader: DataLoader) -> dict[str, Any]:
    """Read the generators that the data loader owns."""
    own = [read_generator(one) for one in own_generators(dataloader)]
    return {'generators': own}


def restore_epoch_rng(dataloader: DataLoader, state: dict[str, Any]) -> None:
    """Restore the state that :func:`capture_epoch_rng` returned."""
    restore_rng(state)
    own = state.get('generators', [])
    for generator, saved in zip(own_generators(dataloader), own):
        write_generator(generator, saved)
