"""Two ranks, one of which never comes to the collective call."""

from __future__ import annotations

import io
import pdb
import re
import time

import pytest
from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel
from torch.multiprocessing import ProcessExitedException
from torch.utils.data import DataLoader

from mmstable.errors import PeerFailedError, TrainingHangs
from mmstable.report import Hang, read_events
from tests.loops.runs import iter_loop
from tests.patience import PATIENCE
from tests.ranks import run_ranks
from tests.toys import ToyData, ToyModel, read_saved, toy_runner

pytestmark = pytest.mark.dist
LIMIT = 1.5


class SlowOnRankOne(ToyData):
    """Sample 9, which rank 1 alone reads, hangs.

    Args:
        folder (Path): The work dir.
        reports (int): Ranks that report a hang until it continues.
    """

    def __init__(self, folder, reports):
        super().__init__()
        self.folder, self.reports = folder, reports

    def __getitem__(self, index):
        if index == 9:
            deadline = time.monotonic() + 60 * PATIENCE
            while self.is_short() and time.monotonic() < deadline:
                time.sleep(0.1)
        return super().__getitem__(index)

    def is_short(self):
        files = self.folder.glob('*/stability/events*.jsonl')
        found = [has_hang(file) for file in files]
        return sum(found) < self.reports


def has_hang(file):
    return any(isinstance(one, Hang) for one in read_events(file))


def train(rank, folder, action='wait', reports=2, hooks=()):
    data = SlowOnRankOne(folder, reports)
    toy_runner(
        folder,
        max_iters=6,
        hooks=[
            dict(
                type='mmstable.HangWatchdogHook',
                min_limit=LIMIT,
                rare_limit=30.0,
                action=action,
            ),
            dict(type='mmstable.EventLogHook'),
            dict(type='mmstable.RankFailureHook'),
            *hooks,
        ],
        train_cfg=iter_loop(6),
        train_dataloader=DataLoader(
            data,
            batch_size=1,
            sampler=InfiniteSampler(data, shuffle=False, seed=0),
        ),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=3, by_epoch=False
            )
        ),
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
    ).train()


def hangs(folder, name):
    (path,) = folder.glob(f'*/stability/{name}')
    return [e for e in read_events(path) if isinstance(e, Hang)]


def test_the_rank_that_is_behind_is_named(tmp_path):
    run_ranks(train, tmp_path)
    waiting = hangs(tmp_path, 'events.jsonl')[0]
    late = hangs(tmp_path, 'events.rank1.jsonl')[0]
    assert (waiting.rank, late.rank) == (0, 1)
    assert waiting.phase in ('backward', 'step', 'hook')
    assert (late.phase, late.iteration) == ('data', 4)
    assert 'test_hang_watchdog_hook_dist.py:' in late.line
    for hang in (waiting, late):
        assert hang.seconds < LIMIT + 2
        assert hang.behind == 1
        assert re.search(
            r"rank 1 has been in 'data' for \d+ s, after iteration 4.*; "
            r'rank 0 waits for it in \w+\.',
            hang.text,
        )
    folder = next(tmp_path.glob('*/stability'))
    assert (folder / 'stacks.rank0.txt').exists()
    assert (folder / 'stacks.rank1.txt').exists()


class SlowAnswers:
    """A user who thinks before typing."""

    def readline(self):
        time.sleep(3 * LIMIT)
        return 'continue\n'


class Breakpoint(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 4 and get_rank() == 1:
            debugger = pdb.Pdb(stdin=SlowAnswers(), stdout=io.StringIO())
            debugger.use_rawinput = False
            debugger.set_trace()


def train_in_a_debugger(rank, folder):
    train(rank, folder, action='exit', reports=0, hooks=[Breakpoint()])


@pytest.mark.soak
def test_who_waits_for_a_rank_in_a_debugger_does_not_hang(tmp_path):
    begin = time.monotonic()
    run_ranks(train_in_a_debugger, tmp_path)
    assert time.monotonic() - begin > 3 * LIMIT
    assert hangs(tmp_path, 'events.jsonl') == []
    # It has none to write down, of any kind.
    assert not list(tmp_path.glob('*/stability/*rank1*'))
    (log,) = tmp_path.glob('*/*.log')
    assert 'mmstable: training' not in log.read_text()


def train_until_the_end(rank, folder):
    (folder / f'done_{rank}').touch()
    # Ends the process from within: there is nothing to come back to.
    train(rank, folder, action='exit', reports=3)


@pytest.mark.soak
def test_all_ranks_end_with_one_checkpoint(tmp_path):
    with pytest.raises(ProcessExitedException) as raised:
        run_ranks(train_until_the_end, tmp_path)
    assert raised.value.exit_code in (
        TrainingHangs.exit_code,
        PeerFailedError.exit_code,
    )
    (path,) = tmp_path.glob('emergency_iter_*.pth')
    assert path.name == 'emergency_iter_4.pth'
    saved = read_saved(path)
    assert saved['meta']['iter'] == 4
    assert len(saved['mmstable']['SafeCheckpointHook']['rng']) == 2
