"""Random states that travel through the store."""

from __future__ import annotations

import copy
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmstable.run_state.rng import capture_rng, restore_rng
from mmstable.run_state.rng_keeper import RngKeeper, unpack
from tests.toys import assert_same


def keeper_of(rng):
    keeper = RngKeeper()
    loop = SimpleNamespace(iter=6, keep_rng=lambda: lambda: rng)
    keeper.after_train_iter(SimpleNamespace(train_loop=loop), 6)
    return keeper


@pytest.fixture
def rng():
    """As a loop keeps it, with numbers drawn from each generator."""
    random.gauss(0, 1)
    np.random.randn()
    torch.rand(3)
    own = torch.Generator().get_state()
    start = {**capture_rng(), 'generators': [own]}
    random.random()
    now = capture_rng()
    now['devices'] = {'cuda': [torch.arange(16, dtype=torch.uint8)] * 2}
    return {**now, 'pass_start': start}


def travel(packed):
    return json.loads(json.dumps(packed))


def test_a_state_comes_back_bit_by_bit(rng):
    iteration, state = unpack(travel(keeper_of(rng).pack()))
    assert iteration == 7
    assert_same(state, rng)
    assert state['python'][1].dtype == rng['python'][1].dtype
    assert state['numpy'][1].dtype == rng['numpy'][1].dtype
    state['devices'] = {}
    restore_rng(state)
    drawn = random.gauss(0, 1), np.random.randn(), torch.rand(3)
    restore_rng({**rng, 'devices': {}})
    assert_same(drawn, (random.gauss(0, 1), np.random.randn(), torch.rand(3)))


def test_a_state_that_is_not_there():
    assert unpack(travel(RngKeeper().pack())) == (-1, None)


def test_a_numpy_generator_of_another_kind(rng):
    rng['numpy'] = rng['pass_start']['numpy'] = None
    _, state = unpack(travel(keeper_of(rng).pack()))
    assert state['numpy'] is None


def test_it_is_small(rng):
    assert len(json.dumps(keeper_of(rng).pack())) < 50_000


REPLACED = [
    (['iteration'], -2),
    (['iteration'], '7'),
    (['rng'], []),
    (['rng', 'python'], None),
    (['rng', 'python', 0], 2),
    (['rng', 'python', 1], 'A' * 3336),
    (['rng', 'python', 1], '////' * 833 + '/w=='),
    (['rng', 'python', 1], 'not base64!'),
    (['rng', 'python', 1], ''),
    (['rng', 'python', 1], 'A' * 10**6),
    (['rng', 'python', 2], 'NaN'),
    (['rng', 'python', 2], float('inf')),
    (['rng', 'numpy', 0], 'PCG64'),
    (['rng', 'numpy', 2], 625),
    (['rng', 'numpy', 3], 2),
    (['rng', 'torch'], 'AAAA'),
    (['rng', 'torch'], 5),
    (['rng', 'devices'], []),
    (['rng', 'devices'], {'cuda': 'AAAA'}),
    (['rng', 'devices'], {'cuda': ['AAAA'] * 1000}),
    (['rng', 'devices'], {'cuda': ['AAAA' * 10**5]}),
    (['rng', 'devices'], {'a': [], 'b': []}),
    (['rng', 'devices'], {'x' * 100: []}),
    (['rng', 'pass_start'], {}),
    (['rng', 'pass_start', 'generators'], ['AAAA'] * 100),
]


@pytest.mark.parametrize(
    ('path', 'value'), REPLACED, ids=lambda v: repr(v)[:40]
)
def test_what_is_no_state_is_refused(rng, path, value):
    packed = travel(keeper_of(rng).pack())
    at = packed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ValueError, match='must|base64|position') as info:
        unpack(packed)
    assert len(str(info.value)) < 500


def test_bytes_out_of_a_pickle_are_refused(rng, tmp_path):
    class Marker:
        def __reduce__(self):
            return (tmp_path.joinpath('ran').mkdir, ())

    stream = tmp_path / 'pickle'
    torch.save((7, Marker()), stream)
    for content in (stream.read_bytes().decode('latin-1'), [], None, 3):
        with pytest.raises(ValueError, match='must be an object'):
            unpack(content)
    assert not (tmp_path / 'ran').exists()


def test_a_random_change_never_escapes(rng):
    packed = json.dumps(keeper_of(rng).pack())
    dice = random.Random(3)
    refused = 0
    for _ in range(300):
        text = list(packed)
        for _ in range(dice.randint(1, 5)):
            text[dice.randrange(len(text))] = chr(dice.randrange(32, 127))
        try:
            unpack(json.loads(''.join(text)))
        except ValueError:
            refused += 1
    # A change within the numbers is a random state, too.
    assert refused > 20


def test_the_original_is_not_changed(rng):
    before = copy.deepcopy(rng)
    keeper_of(rng).pack()
    assert_same(rng, before)
