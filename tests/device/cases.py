"""Cases for a process that has the simulated device."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch.nn import functional

from tests.device import fakecuda


def copy_is_late() -> None:
    pinned = torch.empty(4, pin_memory=True)
    pinned.copy_(torch.ones(4, device='cuda'), non_blocking=True)
    assert pinned.isnan().all()
    torch.cuda.current_stream().synchronize()
    assert pinned.eq(1).all()


def side_stream_is_waited_for() -> None:
    values, pinned = torch.ones(4, device='cuda'), torch.empty(4).pin_memory()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with fakecuda.counting() as counts:
        side.wait_stream(main)
        with torch.cuda.stream(side):
            pinned.copy_(values, non_blocking=True)
            done = side.record_event()
        main.synchronize()
        assert pinned.isnan().all(), 'the other stream was not waited for'
        main.wait_event(done)
        values.fill_(2)
        done.synchronize()
    assert pinned.eq(1).all()
    assert counts.races == 0


def unordered_streams_are_a_race() -> None:
    values, pinned = torch.ones(4, device='cuda'), torch.empty(4).pin_memory()
    side = torch.cuda.Stream()
    with fakecuda.counting() as counts:
        values.fill_(1)
        with torch.cuda.stream(side):
            pinned.copy_(values, non_blocking=True)
        values.fill_(2)
        side.synchronize()
    assert counts.races == 1
    assert pinned.eq(2).all()


def kernel_fails_late() -> None:
    values = torch.ones(4, device='cuda')
    fakecuda.break_device(after=0, late=True)
    total = values.add(1).sum()
    with pytest.raises(torch.AcceleratorError, match='device-side assert'):
        total.item()
    with pytest.raises(torch.AcceleratorError, match='device-side assert'):
        values.add(1)


def label_out_of_range_asserts() -> None:
    logits = torch.zeros(2, 3, device='cuda')
    with pytest.raises(torch.AcceleratorError, match='device-side assert'):
        functional.cross_entropy(logits, torch.tensor([0, 7], device='cuda'))
    with pytest.raises(torch.AcceleratorError, match='device-side assert'):
        logits.cpu()
    fakecuda.repair_device()
    assert logits.cpu().eq(0).all()


def hung_device_blocks_the_host_only() -> None:
    values = torch.ones(4, device='cuda')
    fakecuda.hang_device()
    values.add_(1)
    waiting = threading.Thread(target=values.sum().item, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    fakecuda.repair_device()
    waiting.join()


def eight_devices_have_their_own_state() -> None:
    assert torch.cuda.device_count() == 8
    torch.cuda.manual_seed_all(0)
    with torch.cuda.device(5):
        first = torch.rand(2, device='cuda')
    assert first.device.index == 5
    assert fakecuda.contexts() == [5]
    with pytest.raises(RuntimeError, match='same device'):
        first + torch.ones(2, device='cuda:6')
    fakecuda.set_capacity(1000, device=7)
    with pytest.raises(torch.OutOfMemoryError, match='out of memory'):
        torch.empty(1000, device='cuda:7')


def compiling_is_refused() -> None:
    with pytest.raises(RuntimeError, match='does not run torch.compile'):
        torch.compile(torch.nn.Linear(1, 1))


def own_generator_only() -> None:
    from mmstable.state.rng import capture_rng, restore_rng

    torch.cuda.set_device(3)
    state = capture_rng()
    assert len(state['devices']['cuda']) == 1
    drawn = torch.rand(3, device='cuda')
    restore_rng(state)
    assert torch.rand(3, device='cuda').equal(drawn)
    assert fakecuda.contexts() == [3]


def snapshots_take_what_they_need() -> None:
    """Values of two dtypes, in memory that is pinned in its own size."""
    from mmstable.state.snapshot import HostMemory

    sizes = [(96, 96), (384, 96), (7,), ()]
    tensors = [torch.rand(size, device='cuda') for size in sizes]
    tensors.append(
        torch.rand(2, 3, 5, 5, device='cuda').to(
            memory_format=torch.channels_last
        )
    )
    tensors.append(torch.arange(5, device='cuda'))
    before = fakecuda.pinned_bytes()
    memory = HostMemory(tensors)
    with fakecuda.counting() as counts:
        copies = [memory.copy(one) for one in tensors]
    assert (counts.kernels, counts.syncs) == (0, 0)
    needed = sum(one.numel() * one.element_size() for one in tensors)
    assert fakecuda.pinned_bytes() - before == needed
    torch.cuda.synchronize()
    for tensor, copy in zip(tensors, copies):
        assert copy.values.equal(tensor.cpu())
        assert copy.values.stride() == tensor.stride()
    del memory, copies, copy
    gc.collect()
    assert fakecuda.pinned_bytes() == before


def a_checkpoint_is_written_from_a_snapshot() -> None:
    """Without a wait for the device, and as it was when it was taken."""
    from mmstable.checkpoint import content
    from mmstable.state.snapshot import HostMemory

    tensors = {
        'weight': torch.rand(7, 5, device='cuda'),
        'image': torch.rand(2, 3, 5, 5, device='cuda').to(
            memory_format=torch.channels_last
        ),
        'step': torch.tensor(3.0, device='cuda'),
    }
    expected = {name: one.cpu() for name, one in tensors.items()}
    memory = HostMemory(tensors.values())
    with fakecuda.counting() as counts:
        for one in tensors.values():
            memory.copy(one)
        done = torch.cuda.current_stream().record_event()
        kept = memory.storages()
        found = content._on_host(tensors, kept)
        captured = content.capture(found, kept)
        for one in tensors.values():
            one.zero_()
    assert counts.syncs == 0
    done.synchronize()
    for name, one in expected.items():
        assert captured[name].equal(one)
        assert captured[name].stride() == one.stride()
        size = captured[name].untyped_storage().nbytes()
        assert size == one.untyped_storage().nbytes()


def change_during_a_copy_is_a_race() -> None:
    values, pinned = torch.ones(4, device='cuda'), torch.empty(4).pin_memory()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with fakecuda.counting() as counts:
        side.wait_stream(main)
        with torch.cuda.stream(side):
            pinned.copy_(values, non_blocking=True)
        values.fill_(2)
        side.synchronize()
    assert (counts.races, pinned.eq(2).all()) == (1, True)
