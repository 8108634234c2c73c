"""Bad steps of several ranks are examined where they began."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.dist import get_rank
from mmengine.model import MMDistributedDataParallel
from torch import distributed as dist
from torch import nn

from mmstable.forensics import replay
from mmstable.state.rng import capture_rng
from tests.dist.test_sharded import runner as sharded_runner
from tests.forensics.planted_cases import Findings
from tests.forensics.runs import HOOK, BadData, run
from tests.ranks import run_ranks
from tests.torch_features import needs_fsdp
from tests.toys import ToyModel, assert_same, weights

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


class Noisy(ToyModel):
    """Random numbers, and statistics of a batch."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.2)

    def forward(self, inputs, targets, mode='tensor'):
        return super().forward(self.drop(self.norm(inputs)), targets, mode)


def train(folder, model, hooks, settings=None):
    return run(
        folder,
        *hooks,
        settings=settings,
        model=MMDistributedDataParallel(model),
        launcher='pytorch',
    )


def examine_on_one_rank(rank: int, folder: Path) -> None:
    hooks = [BadData(3)] if rank == 1 else []
    runner, found = train(folder, Averaging(), hooks)
    assert runner.iter == 6
    if rank == 0:
        assert found == []
    elif replay._make_work is None:
        # This torch cannot answer for the other ranks.
        assert [one.verdict for one in found] == ['not_examined']
        assert 'waits for other ranks in c10d.allreduce_' in found[0].text
    else:
        (one,) = found
        assert (one.verdict, one.samples, one.rank) == ('bad_input', (1,), 1)
        assert 'replayed on this rank alone' in one.notes[0]
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


def leave_no_trace(rank: int, folder: Path) -> None:
    """With and without the hook, both ranks end alike, bit by bit."""

    def end(name, settings):
        hooks = [BadData(3)] if rank == 1 else []
        runner, found = train(folder / name, Noisy(), hooks, settings)
        assert bool(found) is (rank == 1 and settings is None)
        state = runner.optim_wrapper.optimizer.state_dict()['state']
        return weights(runner.model), state, capture_rng()

    assert_same(end('with', None), end('without', dict(max_per_fault=0)))


def refuse_shards(rank: int, folder: Path) -> None:
    findings = Findings()
    hooks = [BadData(3)] if rank == 1 else []
    runner = sharded_runner(folder, custom_hooks=[*hooks, HOOK, findings])
    runner.train()
    assert runner.iter == 6
    if rank == 1:
        (found,) = findings.found
        assert found.verdict == 'not_examined'
        assert 'ranks hold parts of the weights (FSDP)' in found.text


def work(rank: int, folder: Path) -> None:
    examine_on_one_rank(rank, folder / 'a')
    refuse_what_would_hang(rank, folder / 'b')
    leave_no_trace(rank, folder / 'c')


def test_two_ranks(tmp_path):
    run_ranks(work, tmp_path)


@pytest.mark.soak
@needs_fsdp
def test_shards_are_not_replayed(tmp_path):
    run_ranks(refuse_shards, tmp_path)
