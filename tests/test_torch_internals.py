"""The private names of torch that mmstable reads are in this torch."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from mmengine.utils import digit_version
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch, signal_handling

from mmstable import torch_internals
from mmstable.torch_internals import Collectives

c10d = getattr(torch._C, '_distributed_c10d', None)
# Older releases lack some of them, and the code does without there.
newest = pytest.mark.skipif(
    digit_version(torch.__version__) < digit_version('2.13'),
    reason='older releases of torch may have none',
)


class Numbers(torch.utils.data.Dataset):
    """Gives what the loader is seen doing when it reads without workers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        frame = sys._getframe()
        self.loader = torch_internals.asked_loader(frame)
        self.samples = torch_internals.asked_samples(frame)
        self.waits = torch_internals.waits_for_data(frame)
        return index


def test_a_loader_that_reads_by_itself():
    data = Numbers()
    batches = iter(DataLoader(data, batch_size=2))
    next(batches)
    assert data.loader is batches
    assert data.samples == [0, 1]
    assert data.waits
    assert torch_internals.batches_read(batches) == 1
    assert torch_internals.worker_pids(batches) == []
    assert torch_internals.awaited_worker(batches) is None


def test_a_loader_with_workers():
    batches = iter(DataLoader(Numbers(), num_workers=2))
    workers = [one.pid for one in batches._workers]
    assert torch_internals.worker_pids(batches) == workers
    assert torch_internals.awaited_worker(batches) == 0
    next(batches)
    assert torch_internals.awaited_worker(batches) == 1
    assert torch_internals.batches_read(batches) == 1


class Batches:
    """Tells whether the loader is being opened when it asks for indices."""

    def __iter__(self):
        self.is_opened = torch_internals.starts_loader(sys._getframe())
        return iter([[0], [1]])

    def __len__(self) -> int:
        return 2


def test_a_loader_that_is_being_opened():
    batches = Batches()
    iter(DataLoader(Numbers(), batch_sampler=batches))
    assert batches.is_opened
    assert not torch_internals.starts_loader(sys._getframe())


@pytest.mark.parametrize(
    ('owner', 'name'),
    [
        (signal_handling, '_set_SIGCHLD_handler'),
        (dataloader._BaseDataLoaderIter, '__next__'),
        (fetch._MapDatasetFetcher, torch_internals.FETCH),
        (torch._C, '_current_graph_task_id'),
        pytest.param(torch._C, '_current_autograd_node', marks=newest),
        pytest.param(torch.autograd, '_get_sequence_nr', marks=newest),
        pytest.param(c10d, '_create_work_from_future', marks=newest),
    ],
)
def test_functions(owner, name):
    assert callable(getattr(owner, name))


def test_the_argument_that_holds_the_indices():
    method = getattr(fetch._MapDatasetFetcher, torch_internals.FETCH)
    assert torch_internals.FETCH_ARGUMENT in method.__code__.co_varnames


@newest
def test_a_flight_recorder():
    assert any(hasattr(c10d, one) for one in torch_internals.FLIGHT_RECORDERS)


@newest
def test_tools_that_count_memory():
    mode, tracker = torch_internals.memory_tools()
    assert callable(mode.from_tensor)
    assert callable(tracker.track_external)
    assert callable(tracker.get_tracker_snapshot)


def test_operators():
    assert torch_internals.is_operator(torch.ops.aten.add.Tensor)
    assert not torch_internals.is_operator(torch.add)


def test_a_backward_pass_is_seen():
    found = []
    value = torch.ones(1, requires_grad=True)
    doubled = 2 * value
    doubled.register_hook(
        lambda _: found.append(torch_internals.in_backward())
    )
    doubled.backward()
    assert found == [True]
    assert not torch_internals.in_backward()


def recorded(**status) -> bytes:
    return json.dumps(
        {
            'entries': [{'profiling_name': 'nccl:all_reduce'}],
            'pg_status': {'0': status},
        }
    ).encode()


@pytest.mark.parametrize(
    ('record', 'expected'),
    [
        (
            recorded(
                last_enqueued_collective='4', last_completed_collective='3'
            ),
            Collectives(4, 'all_reduce'),
        ),
        (
            recorded(
                last_enqueued_collective='4', last_completed_collective='4'
            ),
            Collectives(4),
        ),
        (b'{}', Collectives()),
        (b'no JSON', Collectives()),
        (recorded(last_enqueued_collective='x'), Collectives()),
    ],
)
def test_the_flight_recorder(monkeypatch, record, expected):
    recorder = torch._C._distributed_c10d
    monkeypatch.setattr(
        recorder, '_dump_fr_trace_json', lambda: record, raising=False
    )
    monkeypatch.setattr(
        torch_internals, 'FLIGHT_RECORDERS', ('_dump_fr_trace_json',)
    )
    assert torch_internals.read_collectives() == expected


def test_a_torch_without_a_flight_recorder(monkeypatch):
    monkeypatch.setattr(torch_internals, 'FLIGHT_RECORDERS', ('_absent',))
    assert torch_internals.read_collectives() == Collectives()
