"""Two ranks that are changed through one of them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel

from mmstable.hooks import LiveProbeHook
from mmstable.probe import server
from mmstable.probe.server import ask, find_sockets
from mmstable.report import LiveChange, read_events
from tests.patience import wait_until
from tests.ranks import run_ranks
from tests.toys import ToyModel, toy_runner, weights

LAST = 60


class Ask(Hook):
    """Rank 1 asks its own socket; the other one knows nothing of it."""

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.answer = None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter != 7 or os.environ['RANK'] != '1':
            return
        self.ranks = sorted(
            ask(path, 'status')['rank'] for path in find_sockets()
        )
        self.thread = threading.Thread(target=self._change)
        self.thread.start()
        (hook,) = (h for h in runner.hooks if isinstance(h, LiveProbeHook))
        wait_until(lambda: hook._run.boundary.waiting)

    def _change(self) -> None:
        (path,) = find_sockets(os.getpid())
        self.answer = ask(path, 'set_lr', factor=0.5)


def change_through_one(rank: int, folder: Path) -> None:
    os.environ[server.VARIABLE] = str(folder / 'sockets')
    asking = Ask()
    runner = toy_runner(
        folder / 'run',
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
        ),
        LAST,
        [
            asking,
            dict(type='mmstable.EventLogHook'),
            dict(type='mmstable.LiveProbeHook', use_probing=False),
            dict(type='mmstable.ReplicaCheckHook', interval=20),
        ],
        param_scheduler=[
            dict(type='PolyLR', by_epoch=False, begin=0, end=LAST)
        ],
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
    )
    runner.train()
    if rank == 1:
        asking.thread.join(10)
        assert asking.ranks == [0, 1]
        assert asking.answer['within'] == 20
    torch.save(weights(runner.model), folder / f'weights_{rank}.pth')


def test_all_ranks_change_after_the_same_iteration(tmp_path):
    run_ranks(change_through_one, tmp_path)
    first, second = (
        torch.load(tmp_path / f'weights_{rank}.pth') for rank in range(2)
    )
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    found = []
    for path in sorted(tmp_path.rglob('events*.jsonl')):
        events = [e for e in read_events(path) if isinstance(e, LiveChange)]
        found += [(e.rank, e.what, e.iteration) for e in events]
    assert sorted(found) == [(0, 'lr', 20), (1, 'lr', 20)]


class Forge(Hook):
    """Writes a change into the store as another process could."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 7 and os.environ['RANK'] == '1':
            (hook,) = (h for h in runner.hooks if isinstance(h, LiveProbeHook))
            requests = hook._run._changes._requests
            change = dict(what='lr', wrapper='optim_wrapper', values=[-1.0])
            forged = dict(after=0, token='x', change=change)
            requests._store.set(requests._key, json.dumps(forged))


def refuse_a_forged_change(rank: int, folder: Path) -> None:
    os.environ[server.VARIABLE] = str(folder / 'sockets')
    runner = toy_runner(
        folder / 'run',
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.1),
        ),
        30,
        [Forge(), dict(type='mmstable.LiveProbeHook')],
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
    )
    runner.train()
    (hook,) = (h for h in runner.hooks if isinstance(h, LiveProbeHook))
    assert hook.state_dict() == {}
    assert [e for e in hook._run.events if isinstance(e, LiveChange)] == []


def test_a_forged_change_is_made_by_no_rank(tmp_path):
    run_ranks(refuse_a_forged_change, tmp_path)
    log = ''.join(p.read_text() for p in tmp_path.rglob('*.log'))
    assert '`values`: must be 1e-12 to 1e+12, got -1' in log
