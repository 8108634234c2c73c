"""Two ranks, one of which never comes to the collective call."""

from __future__ import annotations

import re
import time

import pytest
from mmengine.dataset import InfiniteSampler
from mmengine.model import MMDistributedDataParallel
from torch.utils.data import DataLoader

from mmstable.report import Hang, read_events
from tests.loops.runs import iter_loop
from tests.ranks import run_ranks
from tests.toys import ToyData, ToyModel, toy_runner

pytestmark = pytest.mark.dist
LIMIT = 1.5


class SlowOnRankOne(ToyData):
    """Sample 9, which is read by rank 1 alone, takes long."""

    def __getitem__(self, index):
        if index == 9:
            time.sleep(6)
        return super().__getitem__(index)


def train(rank, folder):
    data = SlowOnRankOne()
    toy_runner(
        folder,
        max_iters=6,
        hooks=[
            dict(
                type='mmstable.HangWatchdogHook',
                min_limit=LIMIT,
                rare_limit=30.0,
            ),
            dict(type='mmstable.EventLogHook'),
            dict(type='mmstable.RankFailureHook'),
        ],
        train_cfg=iter_loop(6),
        train_dataloader=DataLoader(
            data,
            batch_size=1,
            sampler=InfiniteSampler(data, shuffle=False, seed=0),
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
