"""Copies of tensors that do not fit into one block of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from mmstable.state.snapshot import HostMemory
from tests.ranks import run_ranks

pytest.importorskip('torch.distributed.tensor', reason='needs DTensor')


def copy_and_restore(rank: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    if not dist.is_initialized():
        dist.init_process_group('gloo')
    mesh = init_device_mesh('cpu', (dist.get_world_size(),))
    whole = torch.arange(8.0)
    tensors = [distribute_tensor(whole, mesh, [Shard(0)]), torch.ones(3)]
    memory = HostMemory(tensors)
    copies = [memory.copy(one) for one in tensors]
    for one in tensors:
        one.zero_()
    restored = [c.restore(one) for c, one in zip(copies, tensors)]
    assert restored[0].full_tensor().equal(whole)
    assert restored[1].equal(torch.ones(3))
    # The plain one is in the block.
    assert [block.numel() for block in memory.blocks] == [3]


@pytest.mark.dist
def test_sharded_tensors_are_copied_beside_plain_ones(tmp_path):
    run_ranks(copy_and_restore, tmp_path)


def test_memory_for_mps_is_not_pinned():
    with FakeTensorMode():
        tensor = torch.empty(3, device='mps')
    # Without an accelerator torch refuses to pin.
    (block,) = HostMemory([tensor]).blocks
    assert (block.device.type, block.numel()) == ('cpu', 3)
