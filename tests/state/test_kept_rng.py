"""Random states that travel through the store."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmstable.state.rng import capture_rng, pack, restore_rng, unpack
from tests.toys import assert_same


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
    iteration, state = unpack(travel(pack(7, rng)))
    assert iteration == 7
    assert_same(state, rng)
    state['devices'] = {}
    restore_rng(state)
    drawn = random.gauss(0, 1), np.random.randn(), torch.rand(3)
    restore_rng({**rng, 'devices': {}})
    assert_same(drawn, (random.gauss(0, 1), np.random.randn(), torch.rand(3)))


def test_a_state_that_is_not_there():
    assert unpack(travel(pack(-1, None))) == (-1, None)


def test_a_numpy_generator_of_another_kind(rng):
    rng['numpy'] = rng['pass_start']['numpy'] = None
    _, state = unpack(travel(pack(7, rng)))
    assert state['numpy'] is None


def test_it_is_small(rng):
    assert len(json.dumps(pack(7, rng))) < 70_000


REPLACED = [
    (['iteration'], -2),
    (['iteration'], '7'),
    (['rng'], []),
    (['rng', 'python'], None),
    (['rng', 'python'], 'A' * 3336),
    (['rng', 'python'], 'not base64!'),
    (['rng', 'python'], ''),
    (['rng', 'python'], 'A' * 10**6),
    (['rng', 'numpy'], 'AAAA'),
    (['rng', 'numpy'], 625),
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
    packed = travel(pack(7, rng))
    at = packed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ValueError, match='must|base64|posi|Expec') as info:
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
    packed = json.dumps(pack(7, rng))
    place = st.integers(0, len(packed) - 1)
    character = st.characters(min_codepoint=32, max_codepoint=126)
    ends: Counter[str] = Counter()

    @settings(max_examples=300)
    @given(st.dictionaries(place, character, min_size=1, max_size=5))
    def change(characters: dict[int, str]) -> None:
        text = list(packed)
        for index, one in characters.items():
            text[index] = one
        try:
            unpack(json.loads(''.join(text)))
            ends['taken'] += 1
        except ValueError:
            ends['refused'] += 1

    change()
    # A change within the numbers is a random state, too.
    assert min(ends['taken'], ends['refused']) > 10


def test_the_original_is_not_changed(rng):
    before = copy.deepcopy(rng)
    pack(7, rng)
    assert_same(rng, before)
