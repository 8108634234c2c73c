"""What can be seen of RankFailureHook with one process.

Real failures of real ranks are in ``tests/chaos/test_lost_rank.py``.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mmstable.dist.collectives import Sharing
from mmstable.hooks import (
    RankFailureHook,
    SafeCheckpointHook,
    rank_failure_hook,
)
from mmstable.loops import failure
from mmstable.loops.train_step import StepRecord


@pytest.mark.parametrize('value', [0, -1.0, True, 'soon'])
def test_bad_settings(value):
    message = 'RankFailureHook: `lost_after` must be a finite number above 0'
    with pytest.raises((TypeError, ValueError), match=message):
        RankFailureHook(lost_after=value)


def run_with(sharing, monkeypatch, closed=True, **record):
    monkeypatch.setattr(failure, 'find_sharing', lambda model: sharing)
    wrapper = SimpleNamespace(should_update=lambda: closed)
    step = StepRecord(iteration=3, batch=None, **record)
    loop = SimpleNamespace(train_step=SimpleNamespace(last=step))
    return SimpleNamespace(model=None, optim_wrapper=wrapper, train_loop=loop)


def test_what_is_saved_is_the_state_of_all(monkeypatch):
    why_not = failure.why_not_for_all
    assert why_not(run_with(Sharing.REDUCED, monkeypatch)) is None
    sharded = run_with(Sharing.SHARDED, monkeypatch)
    assert 'no rank has the whole state' in why_not(sharded)
    opened = run_with(Sharing.REDUCED, monkeypatch, closed=False)
    assert 'accumulated' in why_not(opened)
    behind = run_with(Sharing.REDUCED, monkeypatch)
    behind.optim_wrapper.is_behind = True
    assert 'missed the newest update' in why_not(behind)
    inside = run_with(Sharing.REDUCED, monkeypatch, has_updated=True)
    assert 'being updated' in why_not(inside)


def test_only_a_file_name_is_taken_from_the_store():
    read = rank_failure_hook._read_name
    assert read('emergency_iter_8.pth') == 'emergency_iter_8.pth'
    assert read('') == ''
    for bad in ('/tmp/x.pth', '../x.pth', '..', 'a/b', 'x' * 300, 3, None):
        with pytest.raises(ValueError, match='must'):
            read(bad)


def test_the_file_is_in_the_folder_of_this_run(tmp_path):
    hook = SafeCheckpointHook(interval=2)
    hook.out_dir = str(tmp_path)
    runner = SimpleNamespace(hooks=[object(), hook])
    found = rank_failure_hook._in_folder(runner, 'iter_2.pth')
    assert found == str(tmp_path / 'iter_2.pth')
    assert rank_failure_hook._in_folder(runner, None) is None
    assert rank_failure_hook._in_folder(SimpleNamespace(hooks=[]), 'a') is None
