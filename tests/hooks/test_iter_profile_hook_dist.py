"""Two ranks, one of which the other waits for."""

from __future__ import annotations

import time

import pytest
from mmengine.dataset import InfiniteSampler
from mmengine.model import MMDistributedDataParallel
from torch.utils.data import DataLoader

from mmstable.report import IterationProfile, read_events
from tests.loops.runs import iter_loop
from tests.ranks import run_ranks
from tests.toys import ToyData, ToyModel, toy_runner

pytestmark = pytest.mark.dist


class SlowModel(ToyModel):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, *args, **kwargs):
        time.sleep(self.seconds)
        return super().forward(*args, **kwargs)


class SlowData(ToyData):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


def train(rank, folder, model=0.0, data=0.0):
    found = SlowData(rank * data)
    toy_runner(
        folder,
        max_iters=12,
        hooks=[
            dict(
                type='mmstable.IterProfileHook',
                interval=20,
                begin=3,
                iterations=8,
            ),
            dict(type='mmstable.EventLogHook'),
        ],
        train_cfg=iter_loop(12),
        train_dataloader=DataLoader(
            found,
            batch_size=1,
            sampler=InfiniteSampler(found, shuffle=False, seed=0),
        ),
        launcher='pytorch',
        model=MMDistributedDataParallel(SlowModel(rank * model)),
    ).train()


def slow_forward(rank, folder):
    train(rank, folder, model=0.15)


def slow_data(rank, folder):
    train(rank, folder, data=0.15)


@pytest.mark.parametrize(
    ('work', 'part'),
    [
        (slow_forward, 'forward'),
        pytest.param(slow_data, 'data', marks=pytest.mark.soak),
    ],
)
def test_the_slow_rank_is_named(tmp_path, work, part):
    run_ranks(work, tmp_path)
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    (found,) = (
        e for e in read_events(path) if isinstance(e, IterationProfile)
    )
    # Rank 0 itself is not slow.
    assert found.causes[0] == 'straggler'
    assert found.straggler == 1
    assert 0.1 < found.behind < 0.5
    assert 'Rank 1 is' in found.text
    assert f'({part});' in found.text
