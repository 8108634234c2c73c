"""Random states that would make a generator read foreign memory."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest
import torch
from torch import Generator

from mmstable.state.rng import (
    capture_rng,
    read_generator,
    restore_rng,
    write_generator,
)
from mmstable.state.rng_check import check_rng


def torch_state(**changed: int) -> torch.Tensor:
    """The state of a CPU generator with some fields changed."""
    content = bytearray(Generator().get_state().tolist())
    fields = dict(
        zip(
            ('seed', 'left', 'seeded', 'next'),
            struct.unpack_from('=QiiQ', content),
        )
    )
    struct.pack_into('=QiiQ', content, 0, *{**fields, **changed}.values())
    return torch.tensor(list(content), dtype=torch.uint8)


def octets(state: object) -> torch.Tensor:
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def python_state(version=3, count=625, last=0, gauss=None) -> torch.Tensor:
    return octets([version, [*range(count - 1), last], gauss])


def numpy_state(
    count=624, last=0, pos=0, kind='MT19937', **more
) -> torch.Tensor:
    key = [*range(count - 1), last]
    return octets(
        {
            'bit_generator': kind,
            'state': {'key': key, 'pos': pos},
            'has_gauss': 0,
            'gauss': 0.0,
            **more,
        }
    )


NUMPY = [
    (numpy_state(pos=625), '.*must be 0 to 624, got 625'),
    (numpy_state(pos=2**31 - 1), '.*must be 0 to 624'),
    (numpy_state(pos=-(2**31)), '.*must be 0 to 624'),
    (numpy_state(pos=1.5), '.*must be an integer'),
    (numpy_state(count=623), '.*must be 624 words'),
    (numpy_state(last=2**32), '.*must be 624 words of 32 bits'),
    (numpy_state(last=-1), '.*must be 624 words of 32 bits'),
    (numpy_state(kind='PCG64'), 'must have has_uint32, uinteger'),
    (numpy_state(kind='PCG65'), 'must be the state of a known generator'),
    (numpy_state(has_gauss=2), '.*must be 0 to 1'),
    (numpy_state(gauss='x'), '.*must be a number'),
    (numpy_state().float(), 'must be a row of torch.uint8'),
    (python_state(), 'must be the state of its generator'),
]
OTHERS = [
    ('python', python_state(last=625), 'has no position 625'),
    ('python', python_state(version=2), 'must be 3 to 3'),
    ('python', python_state(count=624), 'must be 625 words'),
    ('python', python_state(gauss='x'), 'must be a number'),
    ('python', numpy_state(), 'must be the state of its generator'),
    ('python', torch_state(), 'must be the state of its generator'),
    ('torch', torch_state(left=624, next=624), 'no word 624 with 624 left'),
    ('torch', torch_state(left=1, next=2**32), 'has no word 4294967296'),
    ('torch', torch_state(seeded=7), 'has no word 0 with 1 left'),
    ('torch', torch_state(left=-5), 'has no word 0 with -5 left'),
    ('torch', torch_state()[:-1], 'codec|Expecting|must be'),
    ('torch', torch_state()[:16], 'must be the state of its generator'),
    ('torch', torch_state().to('meta'), 'must be a row of torch.uint8'),
    ('devices', {'cuda': [1]}, 'must be a row of torch.uint8'),
    ('devices', [], 'must be an object'),
    ('generators', [torch_state(left=624, next=2)], 'has no word 2'),
    ('pass_start', {}, 'must have the keys'),
    ('more', 1, 'must have the keys'),
]


@pytest.mark.parametrize(('value', 'reason'), NUMPY)
@pytest.mark.parametrize('where', ['now', 'pass_start'])
def test_numpy_never_gets_what_it_cannot_be_in(where, value, reason):
    state = capture_rng()
    changed = {**capture_rng(), 'numpy': value}
    if where == 'now':
        state = changed
    else:
        state['pass_start'] = changed
    with pytest.raises(ValueError, match=f'`numpy`: {reason}'):
        restore_rng(state)


@pytest.mark.parametrize(('part', 'value', 'reason'), OTHERS)
def test_so_do_the_others(part, value, reason):
    before = capture_rng()
    with pytest.raises(ValueError, match=reason):
        restore_rng({**before, part: value})
    assert torch.equal(torch.get_rng_state(), before['torch'])


def test_positions_that_generators_reach_are_fine():
    np.random.seed(0)
    torch.manual_seed(0)
    random.seed(0)
    for _ in range(1300):
        state = check_rng(capture_rng())
        np.random.randint(2**32, dtype=np.uint32)
        torch.randint(2, (1,))
        random.getrandbits(32)
    restore_rng({**state, 'generators': [], 'pass_start': state})


GENERATORS = [
    random.Random(1),
    np.random.RandomState(1),
    np.random.default_rng(1),
    np.random.Generator(np.random.MT19937(1)),
    np.random.Generator(np.random.Philox(1)),
    np.random.Generator(np.random.SFC64(1)),
    np.random.Generator(np.random.PCG64DXSM(1)),
]


def draw(generator):
    return [generator.random() for _ in range(3)]


@pytest.mark.parametrize(
    'generator', GENERATORS, ids=lambda one: type(one).__name__
)
def test_own_generators_come_back(generator):
    saved = read_generator(generator)
    check_rng({**capture_rng(), 'generators': [saved]})
    drawn = draw(generator)
    write_generator(generator, saved)
    assert draw(generator) == drawn
    with pytest.raises(ValueError, match='is no state of a|known generator'):
        write_generator(generator, Generator().get_state())


HOSTILE = [
    (GENERATORS[1], '"pos": 624', '"pos": 625', '`pos`'),
    (GENERATORS[1], '"pos": 624', '"pos": -7', '`pos`'),
    (GENERATORS[4], '"buffer_pos": ', '"buffer_pos": -9', '`buffer_pos`'),
    (GENERATORS[4], '"buffer_pos": ', '"buffer_pos": 9', '`buffer_pos`'),
    (GENERATORS[2], '"PCG64"', '"PCG65"', 'of a known generator'),
    (GENERATORS[2], '"inc": ', '"inc": -', '`inc`'),
    (GENERATORS[5], '"state": [', '"state": [1, ', 'array of 4'),
]


@pytest.mark.parametrize(('generator', 'old', 'new', 'reason'), HOSTILE)
def test_hostile_states_of_own_generators(generator, old, new, reason):
    if old == '"pos": 624':
        generator.seed(1)
    text = bytes(read_generator(generator).tolist()).decode()
    assert old in text
    hostile = torch.tensor(list(text.replace(old, new).encode()))
    with pytest.raises(ValueError, match=reason):
        write_generator(generator, hostile.to(torch.uint8))
    with pytest.raises(ValueError, match=f'`generators`: .*{reason}'):
        check_rng({**capture_rng(), 'generators': [hostile.to(torch.uint8)]})
