"""Two hosts with two ranks each: what happens when one of them goes away?

The hosts are network namespaces, see ``tests/chaos/hosts.py``. A line for each
case goes to the file that ``MMSTABLE_SOAK_TABLE`` names: the table of
``docs/*/distributed.md``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import pytest

from mmstable.checkpoint.loading import load_checkpoint
from tests.chaos.hosts import Hosts, wait_all, why_not
from tests.patience import PATIENCE, wait_until
from tests.toys import assert_same

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
# Seconds until a rank counts as lost, and what all may take after that.
LOST_AFTER, REST = 20, 10
PORT = 29611

MODULE = """
import os, sys, time
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS


@DATASETS.register_module()
class HostsData(torch.utils.data.Dataset):
    metainfo = dict()

    def __init__(self, broken_on=-1):
        if os.environ['RANK'] == str(broken_on):
            raise FileNotFoundError('no data on this host')

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return dict(inputs=torch.full((8,), index / 64))


@MODELS.register_module()
class HostsModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.5),
            torch.nn.Linear(16, 1))

    def forward(self, inputs, mode='tensor'):
        time.sleep(0.02)
        return dict(loss=self.layers(inputs).square().mean())


@HOOKS.register_module()
class Fault(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        name = os.environ.get('FAULT', '')
        flag = os.path.join(runner.work_dir, 'failed')
        if runner.iter == 52 and os.environ['RANK'] == '3' and name:
            if not os.path.exists(flag):
                open(flag, 'w').close()
                raise RuntimeError('a broken sample')
"""
CONFIG = f"""
custom_imports = dict(imports=['hosts_module'])
model = dict(type='HostsModel')
train_dataloader = dict(
    batch_size=4, num_workers=0, collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='HostsData'))
train_cfg = dict(type='IterBasedTrainLoop', max_iters=120)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0, end=120)]
custom_hooks = [
    dict(type='Fault'),
    dict(type='mmstable.RankFailureHook', lost_after={LOST_AFTER}.0)]
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=35),
    logger=dict(type='LoggerHook', interval=10))
log_processor = dict(by_epoch=False)
randomness = dict(seed=3)
"""


class Machines:
    """Two hosts, their files and what they train."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._port = PORT
        (folder / 'hosts_module.py').write_text(MODULE)
        (folder / 'config.py').write_text(CONFIG)

    def srun(
        self, name: str, *options: str, **env: str
    ) -> list[subprocess.Popen]:
        """Start what Slurm would: rank 0 keeps the store."""
        self._port += 1
        words = ['-m', 'mmstable', 'train', 'config.py', *options]
        return [
            self.hosts.start(
                rank // 2,
                [*words, '--launcher', 'pytorch', '--work-dir', name],
                self.folder,
                self.log(name, rank),
                dict(
                    RANK=str(rank),
                    WORLD_SIZE='4',
                    LOCAL_RANK=str(rank % 2),
                    MASTER_ADDR=self.hosts.address(0),
                    MASTER_PORT=str(self._port),
                    **env,
                ),
            )
            for rank in range(4)
        ]

    def dist_train(
        self, name: str, *options: str, **env: str
    ) -> list[subprocess.Popen]:
        """Start a supervisor on each host."""
        self._port += 1
        words = ['-m', 'mmstable', 'dist-train', 'config.py', '2', *options]
        words += ['--master-addr', self.hosts.address(0)]
        words += ['--port', str(self._port), '--work-dir', name]
        return [
            self.hosts.start(
                node,
                [*words, '--node-rank', str(node)],
                self.folder,
                self.log(name, 2 * node),
                env,
            )
            for node in range(2)
        ]

    def log(self, name: str, rank: int) -> Path:
        return self.folder / f'{name}.{rank}.log'

    def text(self, name: str, rank: int) -> str:
        return self.log(name, rank).read_text(errors='replace')

    def wait_for(self, name: str, pattern: str) -> None:
        wait_until(lambda: re.search(pattern, self.text(name, 0)), 120)

    def reasons(self, name: str, ranks: Sequence[int]) -> list[str]:
        """The failure that each of them has logged."""
        pattern = r'(rank \d[^\n]*? failed[^\n]*?)\. (?:This rank|All ranks)'
        found = [re.findall(pattern, self.text(name, r)) for r in ranks]
        return [one[-1] if one else '' for one in found]

    def finish(self, name: str) -> None:
        """Resume, and train to the end."""
        for rank in range(4):
            self.log(name, rank).unlink(missing_ok=True)
        ends = wait_all(self.srun(name, '--resume'), 180 * PATIENCE)
        assert [code for code, __ in ends] == [0] * 4, self.text(name, 0)[
            -3000:
        ]

    def final(self, name: str) -> dict[str, Any]:
        return load_checkpoint(self.folder / name / 'iter_120.pth')

    def is_exact(self, name: str) -> bool:
        try:
            for key in ('state_dict', 'optimizer', 'param_schedulers'):
                assert_same(self.final(name)[key], self.final('whole')[key])
        except AssertionError:
            return False
        return True


@pytest.fixture(scope='module')
def machines(tmp_path_factory: Any) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp('machines')
    with Hosts(2, folder) as hosts:
        machines = Machines(hosts, folder)
        ends = wait_all(machines.srun('whole'), 180 * PATIENCE)
        assert [code for code, __ in ends] == [0] * 4, machines.text(
            'whole', 0
        )[-3000:]
        yield machines


def note(line: str) -> None:
    path = os.environ.get('MMSTABLE_SOAK_TABLE')
    if path:
        with open(path, 'a', encoding='utf-8') as file:
            file.write(f'{line}\n')


def kill(
    processes: Sequence[subprocess.Popen], number: int = signal.SIGKILL
) -> None:
    for process in processes:
        process.send_signal(number)


def cut_for(seconds: float, times: int = 1) -> Callable[..., None]:
    def act(hosts: Hosts, processes: Sequence[subprocess.Popen]) -> None:
        for _ in range(times):
            hosts.cut(1)
            time.sleep(seconds)
            hosts.join(1)
            time.sleep(1.5 * (times > 1))

    return act


def power_loss(number: int) -> Callable[..., None]:
    def act(hosts: Hosts, processes: Sequence[subprocess.Popen]) -> None:
        hosts.cut(number)
        kill(processes[2 * number : 2 * number + 2])

    return act


def pause(seconds: float) -> Callable[..., None]:
    def act(hosts: Hosts, processes: Sequence[subprocess.Popen]) -> None:
        kill(processes[3:], signal.SIGSTOP)
        time.sleep(seconds)
        kill(processes[3:], signal.SIGCONT)

    return act


# What is done; the ranks that are left to end by themselves; the rank that
# they blame, None if they go on; whether the resumed run is exact.
CASES: dict[str, tuple[Any, list[int], int | None, bool]] = {
    'exception on rank 3': ('raise', [0, 1, 2, 3], 3, True),
    'SIGKILL of rank 1': (lambda h, p: kill(p[1:2]), [0, 2, 3], 1, False),
    'SIGKILL of host 1': (lambda h, p: kill(p[2:]), [0, 1], 2, False),
    'SIGKILL of host 0': (lambda h, p: kill(p[:2]), [2, 3], 0, False),
    'power loss of host 1': (power_loss(1), [0, 1], 2, False),
    'power loss of host 0': (power_loss(0), [2, 3], 0, False),
    'link cut for 5 s': (cut_for(5), [0, 1, 2, 3], None, True),
    'link cut for 30 s': (cut_for(30), [0, 1, 2, 3], -1, False),
    'link cut for ever': (lambda h, p: h.cut(1), [0, 1, 2, 3], -1, False),
    'link flapping': (cut_for(1, 8), [0, 1, 2, 3], None, True),
    'SIGSTOP of rank 3': (
        lambda h, p: kill(p[3:], signal.SIGSTOP),
        [0, 1, 2],
        3,
        False,
    ),
    'SIGSTOP of rank 3 for 8 s': (pause(8), [0, 1, 2, 3], None, True),
    'SIGTERM to host 1': (
        lambda h, p: kill(p[2:], signal.SIGTERM),
        [0, 1, 2, 3],
        None,
        True,
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_nobody_hangs_and_little_is_lost(
    machines: Machines, case: str
) -> None:
    act, left, blamed, exact = CASES[case]
    name = case.replace(' ', '_')
    env = {'FAULT': 'raise'} if act == 'raise' else {}
    processes = machines.srun(name, **env)
    try:
        machines.wait_for(name, r'Iter\(train\) +\[ *50/')
        if callable(act):
            thread = threading.Thread(
                target=act, args=(machines.hosts, processes)
            )
            thread.start()
        limit = (LOST_AFTER + REST) * PATIENCE
        if blamed is None:
            # They go on, or stop in order.
            limit = 120 * PATIENCE
        ends = wait_all([processes[rank] for rank in left], limit)
        if callable(act):
            thread.join()
    finally:
        for number in range(2):
            machines.hosts.join(number)
        for process in processes:
            machines.hosts.kill_host(process)
    codes = [code for code, __ in ends]
    assert None not in codes, [machines.text(name, r)[-2000:] for r in left]
    seconds = max(one for __, one in ends)
    reasons = machines.reasons(name, left)
    if blamed is not None and blamed >= 0:
        assert all(f'rank {blamed}' in one for one in reasons), reasons
        assert len(set(reasons)) == 1, reasons
    elif blamed is not None:
        # Either side blames the other.
        assert reasons[0] == reasons[1] != reasons[2] == reasons[3]
    saved = sorted((machines.folder / name).glob('emergency_iter_*.pth'))
    if codes != [0] * len(codes):
        assert saved, [machines.text(name, r)[-3000:] for r in left]
        text = ''.join(machines.text(name, r) for r in left)
        machines.finish(name)
        # What is not exact, is said not to be.
        assert exact or 'is not exactly the state before' in text
    is_exact = machines.is_exact(name)
    assert is_exact or not exact
    files = ', '.join(path.name for path in saved) or 'no need'
    note(
        f'| {case} | {codes} | {seconds:.0f} | {files} | '
        f'{"exact" if is_exact else "approximate"} |'
    )


def test_a_failure_while_building_has_one_reason(machines: Machines) -> None:
    options = ['--cfg-options', 'train_dataloader.dataset.broken_on=3']
    processes = machines.srun('building', *options)
    ends = wait_all(processes, 60 * PATIENCE)
    codes = [code for code, __ in ends]
    assert None not in codes, machines.text('building', 0)[-3000:]
    assert codes[:3] == [21] * 3
    for rank in range(3):
        text = machines.text('building', rank)
        assert 'rank 3 (host1) failed' in text, text[-2000:]
        assert 'no data on this host' in text
    note(f'| failure while building | {codes} | {max(s for _, s in ends):.0f}')


def test_restarts_with_two_hosts_and_then_with_one(machines: Machines) -> None:
    options = ['--max-restarts', '3', '--nnodes', '1:2']
    both = machines.dist_train('restarts', *options, FAULT='raise')
    machines.wait_for('restarts', r'Restart 1 of 3')
    machines.wait_for('restarts', r'Iter\(train\) +\[ *80/')
    text = machines.text('restarts', 0)
    assert 'the run ended: rank 3 (host1) failed: RuntimeError' in text
    assert 'the run ended: rank 3 (host1) failed: RuntimeError' in (
        machines.text('restarts', 2)
    )
    begin = time.monotonic()
    machines.hosts.cut(1)
    ends = wait_all(both, 300 * PATIENCE)
    machines.hosts.join(1)
    text = machines.text('restarts', 0)
    assert [code for code, __ in ends] == [0, 21], text[-3000:]
    assert 'Restart 2 of 3' in text
    assert 'runs on 1 of 2 machines' in text
    assert 'the supervisor of the first machine' in (
        machines.text('restarts', 2)
    )
    assert (machines.folder / 'restarts' / 'iter_120.pth').is_file()
    note(
        f'| restart with 2 hosts, then with 1 | {[c for c, _ in ends]} | '
        f'{time.monotonic() - begin:.0f}'
    )
