"""What can be seen of RankFailureHook with one process.

Real failures of real ranks are in ``tests/chaos/test_lost_rank.py``.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmstable.distributed.parallelism import Sharing
from mmstable.hooks import RankFailureHook, rank_failure_hook
from mmstable.run_state.rng_keeper import RngKeeper, unpack
from tests.toys import toy_net


@pytest.mark.parametrize('name', ['interval', 'lost_after', 'grace'])
@pytest.mark.parametrize('value', [0, -1.0, True, 'soon'])
def test_bad_settings(name, value):
    message = f'RankFailureHook: `{name}` must be a finite number above 0'
    with pytest.raises((TypeError, ValueError), match=message):
        RankFailureHook(**{name: value})


def run_with(sharing, monkeypatch, closed=True):
    monkeypatch.setattr(
        rank_failure_hook, 'find_sharing', lambda model: sharing
    )
    wrapper = SimpleNamespace(should_update=lambda: closed)
    return SimpleNamespace(model=None, optim_wrapper=wrapper)


def caught(action):
    with pytest.raises(Exception) as info:  # noqa: PT011
        action()
    return info.value


def update_with_a_broken_gradient():
    net = toy_net()
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    optimizer = torch.optim.SGD(net.parameters(), lr='much')
    optimizer.step()


def test_what_is_saved_is_the_state_of_all(monkeypatch):
    why_not = rank_failure_hook._why_not_to_save
    error = caught(lambda: int('no number'))
    assert why_not(run_with(Sharing.REDUCED, monkeypatch), error) is None
    sharded = run_with(Sharing.SHARDED, monkeypatch)
    assert 'no rank has the whole state' in why_not(sharded, error)
    opened = run_with(Sharing.REDUCED, monkeypatch, closed=False)
    assert 'accumulated' in why_not(opened, error)
    behind = run_with(Sharing.REDUCED, monkeypatch)
    behind.optim_wrapper.is_behind = True
    assert 'missed the newest update' in why_not(behind, error)
    inside = caught(update_with_a_broken_gradient)
    whole = run_with(Sharing.REDUCED, monkeypatch)
    assert 'being updated' in why_not(whole, inside)


def test_random_states_travel_as_text():
    keeper = RngKeeper()
    rng = {'torch': torch.get_rng_state(), 'python': [3, 'a', None]}
    loop = SimpleNamespace(keep_rng=lambda: lambda: rng)
    keeper.after_train_iter(SimpleNamespace(iter=6, train_loop=loop), 6)
    iteration, state = unpack(keeper.pack())
    assert iteration == 7
    assert torch.equal(state['torch'], rng['torch'])
    assert state['python'] == rng['python']
