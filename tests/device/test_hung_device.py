"""A device that never completes its work."""

from __future__ import annotations

from mmstable.errors import PeerFailedError, TrainingHangs
from tests.device.test_lost_device import GUARD, RARE
from tests.device.test_runs import inject

LIMIT_S = 2.0
WATCHDOG = dict(
    type='mmstable.HangWatchdogHook',
    action='exit',
    limits=dict.fromkeys(['forward', 'backward', 'step', 'hook'], LIMIT_S),
)


def test_the_watchdog_saves_the_snapshot_and_exits(tmp_path, device):
    hooks = [GUARD, WATCHDOG, inject(18, 'hang')]
    run = device.train(tmp_path, hooks=hooks, **RARE)
    assert run.code == TrainingHangs.exit_code, run.log
    assert run.saved('emergency*.pth') == ['emergency_iter_15.pth']
    assert 'the device does not answer' in run.log
    assert run.events('run_end')


def test_a_hung_rank_saves_a_snapshot_and_all_end(tmp_path, device):
    ranks = dict(type='mmstable.RankFailureHook')
    hooks = [GUARD, WATCHDOG, ranks, inject(18, 'hang', rank=1)]
    runs = device.train_ranks(tmp_path, hooks=hooks, **RARE)
    codes = {run.code for run in runs}
    assert codes <= {TrainingHangs.exit_code, PeerFailedError.exit_code}
    assert runs[0].saved('emergency*.pth'), runs[0].log + runs[1].log


def test_sigterm_saves_the_snapshot(tmp_path, device):
    """The training waits in C, where no handler of Python runs."""
    hooks = [GUARD, inject(18, 'hang'), dict(type='TermLaterHook', at=18)]
    run = device.train(tmp_path, hooks=hooks, **RARE)
    assert run.code == 128 + 15, run.log
    assert run.saved('emergency*.pth') == ['emergency_iter_15.pth']
    (end,) = run.events('run_end')
    assert end['reason'] == 'stopped'
