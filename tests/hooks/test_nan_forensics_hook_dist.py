"""Bad steps of several ranks are examined where they began."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.dist import get_rank
from mmengine.model import MMDistributedDataParallel
from torch import distributed as dist

from mmstable.forensics import local_ranks
from tests.forensics.runs import BadData, run
from tests.ranks import run_ranks
from tests.toys import ToyModel, weights

pytestmark = pytest.mark.dist


class Averaging(ToyModel):
    """Divides by a number that all ranks agree on, as heads of mmdet do."""

    def forward(self, inputs, targets, mode='tensor'):
        outputs = self.net(inputs)
        if mode != 'loss':
            return outputs
        count = torch.tensor([float(len(inputs))]) / dist.get_world_size()
        dist.all_reduce(count)
        loss = (outputs - targets).square().sum() / count
        return dict(loss=loss.squeeze())


class Meeting(ToyModel):
    """Waits for the other ranks."""

    def forward(self, inputs, targets, mode='tensor'):
        dist.barrier()
        return super().forward(inputs, targets, mode)


def train(folder, model, hooks):
    return run(
        folder,
        *hooks,
        model=MMDistributedDataParallel(model),
        launcher='pytorch',
    )


def examine_on_one_rank(rank: int, folder: Path) -> None:
    hooks = [BadData(3)] if rank == 1 else []
    runner, found = train(folder, Averaging(), hooks)
    assert runner.iter == 6
    if rank == 0:
        assert found == []
    elif local_ranks._make_work is None:
        # This torch cannot answer for the other ranks.
        assert [one.verdict for one in found] == ['not_examined']
        assert 'waits for other ranks in c10d.allreduce_' in found[0].text
    else:
        (one,) = found
        assert (one.verdict, one.samples, one.rank) == ('bad_input', (1,), 1)
        assert one.notes == (
            'replayed on this rank alone, as if all others had its batch',
        )
        assert one.bundle.endswith('iter_3_rank_1')
    for tensor in weights(runner.model).values():
        copies = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(copies, tensor)
        assert torch.equal(*copies)


def refuse_what_would_hang(rank: int, folder: Path) -> None:
    hooks = [BadData(3)] if rank == 1 else []
    runner, found = train(folder, Meeting(), hooks)
    assert runner.iter == 6
    if get_rank() == 1:
        assert found[0].verdict == 'not_examined'
        assert 'waits for other ranks in c10d.barrier' in found[0].text


def work(rank: int, folder: Path) -> None:
    examine_on_one_rank(rank, folder / 'a')
    refuse_what_would_hang(rank, folder / 'b')


def test_two_ranks(tmp_path):
    run_ranks(work, tmp_path)
