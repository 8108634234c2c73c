"""Three ranks sum in another order after a resume, and say so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.model import MMDistributedDataParallel
from torch.utils.data import DataLoader

from mmstable.state import progress
from tests.ranks import run_ranks
from tests.toys import ToyData, ToyModel, toy_runner, weights

SAVER = dict(type='mmstable.SafeCheckpointHook', interval=3, by_epoch=False)


def train(folder: Path, max_iters: int, **kwargs):
    data = ToyData(24)
    runner = toy_runner(
        folder,
        model=MMDistributedDataParallel(ToyModel(), device_ids=None),
        train_dataloader=DataLoader(
            data, batch_size=2, sampler=InfiniteSampler(data, seed=0)
        ),
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop', max_iters=max_iters
        ),
        hooks=[dict(type='mmstable.ResumeReportHook')],
        default_hooks=dict(checkpoint=SAVER),
        **kwargs,
    )
    runner.train()
    return weights(runner.model)


def resume_in_the_middle(rank: int, folder: Path) -> None:
    whole = train(folder / 'whole', 6)
    train(folder / 'cut', 3)
    path = str(folder / 'cut' / 'iter_3.pth')
    resumed = train(folder / 'cut', 6, resume=True, load_from=path)
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=1e-6)


@pytest.mark.dist
@pytest.mark.soak
def test_three_ranks_are_resumed_to_rounding(tmp_path: Path) -> None:
    run_ranks(resume_in_the_middle, tmp_path, count=3)
    text = ''.join(p.read_text() for p in (tmp_path / 'cut').rglob('*.log'))
    assert 'approximate: to rounding: with 3 ranks DDP sums' in text
    assert 'exact (identical to an uninterrupted run)' not in text


@pytest.mark.parametrize('ranks', [1, 2, 3])
def test_what_is_said_of_many_ranks(monkeypatch, ranks: int) -> None:
    monkeypatch.setattr(progress, 'get_world_size', lambda: ranks)
    monkeypatch.setattr(progress, 'get_device', lambda: 'cpu')
    model = object.__new__(MMDistributedDataParallel)
    doubts = progress.rounding_warnings(SimpleNamespace(model=model))
    said = progress.judge(doubts)
    assert said.startswith('exact' if ranks < 3 else 'approximate: to round')
