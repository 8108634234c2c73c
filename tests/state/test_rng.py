"""Random state survives a file, bit by bit."""

from __future__ import annotations

import io
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmstable.state import rng
from mmstable.state.rng import capture_rng, restore_rng


def draw():
    return (
        [random.random(), random.gauss(0, 1), random.getrandbits(64)],
        [np.random.rand(), np.random.randn(), np.random.randint(10**9)],
        torch.randn(20).tolist() + torch.randperm(9).tolist(),
    )


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# An odd number of normal values leaves one over in each generator.
@pytest.mark.parametrize('draws', [0, 1, 700])
def test_the_same_numbers_follow(draws):
    for _ in range(draws):
        draw()
    state = capture_rng()
    expected = draw()
    assert draw() != expected
    restore_rng(through_a_file(state))
    assert draw() == expected


def test_a_left_over_normal_value_is_kept():
    random.gauss(0, 1)
    np.random.randn()
    state = through_a_file(capture_rng())
    expected = random.gauss(0, 1), np.random.randn()
    restore_rng(state)
    assert (random.gauss(0, 1), np.random.randn()) == expected


def test_capturing_draws_nothing():
    state = capture_rng()
    capture_rng()
    expected = draw()
    restore_rng(state)
    assert draw() == expected


def octet(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.uint8)


class Devices(SimpleNamespace):
    """What torch has for a kind of accelerator."""

    def __init__(self, count: int, current: int = 0) -> None:
        states = [octet(i) for i in range(count)]
        super().__init__(states=states, current=current)

    def get_rng_state(self):
        return self.states[self.current].clone()

    def set_rng_state(self, state):
        self.states[self.current] = state


@pytest.mark.parametrize(('then', 'now'), [(0, 0), (1, 0), (0, 1)])
def test_the_own_accelerator_gets_its_state_back(monkeypatch, then, now):
    before = Devices(2, then)
    monkeypatch.setattr(rng, '_accelerator', lambda: ('cuda', before))
    state = through_a_file(capture_rng())
    devices = Devices(2, now)
    devices.states = [octet(255)] * 2
    monkeypatch.setattr(rng, '_accelerator', lambda: ('cuda', devices))
    restore_rng(state)
    expected = [255, 255]
    expected[now] = then
    assert [int(one) for one in devices.states] == expected


def test_another_kind_of_accelerator_is_left_alone(monkeypatch):
    monkeypatch.setattr(rng, '_accelerator', lambda: ('cuda', Devices(2)))
    state = capture_rng()
    other = Devices(2)
    other.states = [octet(255)] * 2
    monkeypatch.setattr(rng, '_accelerator', lambda: ('npu', other))
    restore_rng(state)
    assert [int(one) for one in other.states] == [255, 255]
    monkeypatch.undo()
    restore_rng(state)


def test_another_numpy_generator_is_left_alone(monkeypatch):
    state = capture_rng()
    unknown = {'bit_generator': 'PCG65', 'state': {}}
    monkeypatch.setattr(np.random, 'get_state', lambda legacy: unknown)
    assert capture_rng()['numpy'] is None
    restore_rng(state)
    restore_rng({**state, 'numpy': None})
    monkeypatch.undo()
    assert torch.equal(capture_rng()['numpy'], state['numpy'])


def test_a_generator_is_read_whenever_it_has_moved():
    """Whatever is done in between, also nothing, and also a half pair."""
    choices = [
        lambda: None,
        np.random.rand,
        np.random.randn,
        lambda: np.random.randn(3),
        lambda: np.random.shuffle(np.arange(5)),
        lambda: np.random.rand(700),
        lambda: np.random.seed(7),
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.shuffle([1, 2, 3]),
        lambda: random.seed(7),
        lambda: restore_rng(early),
    ]
    np.random.seed(0)
    np.random.randn()
    random.gauss(0, 1)
    early = capture_rng()
    order = random.Random(0)
    for _ in range(1000):
        order.choice(choices)()
        python, numpy, *_ = rng.raw_rng()
        assert python == random.getstate()
        kind, words, *rest = np.random.get_state()
        assert numpy['bit_generator'] == kind
        assert np.array_equal(numpy['state']['key'], words)
        assert [
            numpy['state']['pos'],
            numpy['has_gauss'],
            numpy['gauss'],
        ] == rest


def test_another_generator_of_numpy_is_noticed():
    if not hasattr(np.random, 'set_bit_generator'):
        pytest.skip('this numpy has only one')
    before = np.random.get_bit_generator()
    try:
        for kind in (np.random.MT19937, np.random.PCG64):
            np.random.set_bit_generator(kind(3))
            state = capture_rng()
            drawn = np.random.rand(3)
            assert not torch.equal(capture_rng()['numpy'], state['numpy'])
            restore_rng(state)
            assert np.array_equal(np.random.rand(3), drawn)
    finally:
        np.random.set_bit_generator(before)
