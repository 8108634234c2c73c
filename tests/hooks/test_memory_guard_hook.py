"""Leaks for real: seen, forecast, told apart, and survived."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from mmstable.errors import RestartNeeded
from mmstable.events.records import MemoryAlarm
from mmstable.hooks import MemoryGuardHook
from mmstable.memory import host, leaks
from mmstable.memory import leaks as sampler
from mmstable.memory.host import Room, host_room
from mmstable.oom.report import empty_cache
from mmstable.report import read_events
from tests.loops.runs import epoch_loop, iter_loop, log_of, validation
from tests.patience import wait_until
from tests.toys import ToyData, ToyModel, assert_same, toy_runner, weights

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """As often as it is told to, whatever that costs.

    What earlier tests have left is given back first: a leak that fills it is
    no growth.
    """
    monkeypatch.setattr(sampler, '_MAX_SHARE', math.inf)
    empty_cache(torch.device('cpu'))


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(interval=0), '`interval` must be .* above 0, got 0'),
        (dict(action='stop'), '`action` must be one of warn, save, rest'),
        (dict(host_limit=0), '`host_limit` must be an int of at least 1'),
        (dict(host_limit='1 ton'), "`host_limit`: a size must be .* '1 ton'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=f'MemoryGuardHook: {message}'):
        MemoryGuardHook(**settings)


class Leaky(ToyData):
    """Keeps memory, or open files, where its samples are read."""

    def __init__(self, size=0, files=False, length=16):
        super().__init__(length)
        self.size, self.files, self.kept = size, files, []

    def __getitem__(self, index):
        if self.size:
            self.kept.append(b'x' * self.size)
        if self.files:
            self.kept.append(os.open(os.devnull, os.O_RDONLY))
        return super().__getitem__(index)


class Pace(Hook):
    """Iterations that last until the guard has looked once more.

    Args:
        leak: Called in every iteration.
        until: Stop training after an alarm with this action.
        least: Not as long as there is more left.
    """

    priority = 'HIGHEST'

    def __init__(self, leak=None, until=None, least=math.inf):
        self.leak, self.until, self.events = leak, until, []
        self.least = least

    def after_train_iter(self, runner, *args, **kwargs):
        if self.leak is not None:
            self.leak()
        (guard,) = (h for h in runner.hooks if isinstance(h, MemoryGuardHook))
        looks = guard._sampler
        looks.news.clear()
        wait_until(lambda: looks.news or not looks._thread.is_alive)

    def after_event(self, runner, event):
        if isinstance(event, MemoryAlarm):
            self.events.append(event)
            if event.action == self.until and event.left < self.least:
                runner.train_loop.stop_training = True


def run(tmp_path, pace, data=None, workers=0, loop=None, guard=None, **more):
    loader = DataLoader(
        data or ToyData(),
        batch_size=2,
        num_workers=workers,
        **({'persistent_workers': True} if workers else {}),
    )
    runner = toy_runner(
        tmp_path,
        hooks=[
            pace,
            dict(
                type='mmstable.MemoryGuardHook',
                **{'interval': 0.005, **(guard or {})},
            ),
            dict(type='mmstable.EventLogHook'),
            dict(type='mmstable.EmergencyCheckpointHook'),
        ],
        train_dataloader=loader,
        train_cfg=loop or iter_loop(10**4),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=10**6,
                by_epoch=False,
            ),
            logger=dict(type='LoggerHook', interval=10**6),
        ),
        **more,
    )
    try:
        runner.train()
    finally:
        loader._iterator = None
    return runner


def leak_main(size=4 * MIB):
    kept = []
    return lambda: kept.append(b'x' * size)


def test_a_leak_in_a_worker_is_seen_and_forecast(tmp_path):
    pace = Pace(until='warn')
    runner = run(
        tmp_path,
        pace,
        Leaky(4 * MIB),
        workers=2,
        guard=dict(host_limit='9GiB'),
    )
    event = pace.events[0]
    assert (event.resource, event.holder) == ('host', 'workers')
    assert (event.source, event.action) == ('setting', 'warn')
    assert (event.workers, event.prefetch) == (2, 2)
    # Two samples of 4 MiB in an iteration.
    assert 6 * MIB < event.growth < 16 * MIB
    assert event.iterations_left == pytest.approx(event.left / event.growth)
    text = log_of(runner)
    assert 'host RAM grows' in text
    assert 'dataloader workers hold' in text
    assert '2 workers x 2 prefetch. Workers leak' in text
    path = next(Path(runner.log_dir).glob('stability/events.jsonl'))
    assert any(isinstance(one, MemoryAlarm) for one in read_events(path))


def test_a_leak_of_the_training_process(tmp_path):
    pace = Pace(leak_main(), until='warn')
    runner = run(tmp_path, pace, guard=dict(host_limit='4GiB'))
    assert pace.events[0].holder == 'main_process'
    assert pace.events[0].growth == pytest.approx(4 * MIB, rel=0.25)
    assert 'The training process leaks' in log_of(runner)


@pytest.mark.parametrize(
    ('workers', 'holder'), [(0, 'main_process'), (2, 'workers')]
)
def test_descriptors_that_leak(tmp_path, monkeypatch, workers, holder):
    # As low as a real `ulimit -n`, but not for pytest.
    # Not in the module itself: mmengine would set the limit that it reads.
    limits = SimpleNamespace(
        getrlimit=lambda _: (1024, 1024), RLIMIT_NOFILE=7, RLIM_INFINITY=-1
    )
    monkeypatch.setattr(host, 'resource', limits)
    pace, data = Pace(until='warn'), Leaky(files=True)
    try:
        runner = run(tmp_path, pace, data, workers)
    finally:
        for one in data.kept:
            os.close(one)
    event = pace.events[0]
    assert (event.resource, event.limit) == ('descriptors', 1024)
    assert event.holder == holder
    # Two samples in an iteration, shared by two workers, which do not take
    # turns on a busy machine.
    assert event.growth == (
        pytest.approx(1, rel=0.6) if workers else pytest.approx(2, rel=0.25)
    )
    assert 'HDF5' in log_of(runner)


def test_shared_memory_that_leaks(tmp_path, monkeypatch):
    used = []
    room = host._shared_room
    if room() is None:
        pytest.skip('there is no /dev/shm')

    def grow():
        file = Path('/dev/shm') / f'mmstable-{os.getpid()}-{len(used)}'
        file.write_bytes(b'x' * (64 << 10))
        used.append(file)

    def small():
        limit, left, source = room()
        return Room(64 * MIB, 64 * MIB - (limit - left), source)

    monkeypatch.setattr(host, '_shared_room', small)
    try:
        pace = Pace(grow, until='warn')
        runner = run(tmp_path, pace)
    finally:
        for file in used:
            file.unlink()
    assert pace.events[0].resource == 'shared_memory'
    assert '/dev/shm' in log_of(runner)


def tree_now():
    return host.read_tree().tree


def test_a_checkpoint_is_saved_before_the_limit(tmp_path):
    pace = Pace(leak_main(), until='save')
    limit = tree_now() + 120 * MIB
    runner = run(tmp_path, pace, guard=dict(host_limit=limit))
    warned, saved = pace.events[0], pace.events[-1]
    assert (warned.action, saved.action) == ('warn', 'save')
    assert 0 < saved.left <= warned.left
    files = list(tmp_path.glob('emergency_iter_*.pth'))
    assert [file.stem for file in files] == [
        f'emergency_iter_{saved.iteration}'
    ]
    log = log_of(runner)
    assert 'nearly used up' in log
    assert 'mmstable: MemoryGuardHook: saved' in log


def test_warn_does_nothing_else(tmp_path):
    guard = dict(host_limit=tree_now() + 120 * MIB, action='warn')
    pace = Pace(leak_main(), until='warn', least=6 * MIB)
    runner = run(tmp_path, pace, guard=guard)
    assert {one.action for one in pace.events} == {'warn'}
    assert 'No action is taken' in log_of(runner)
    assert not list(tmp_path.glob('emergency*'))


def test_a_run_that_ends_to_be_started_again(tmp_path):
    # Far enough for growth to be seen before the limit is near.
    guard = dict(host_limit=tree_now() + 200 * MIB, action='restart')
    pace = Pace(leak_main())
    with pytest.raises(RestartNeeded) as stop:
        run(tmp_path, pace, loop=iter_loop(100), guard=guard)
    assert stop.value.exit_code == 22
    last = pace.events[-1]
    assert last.action == 'restart'
    # A busy machine may show the limit before the growth: then there is an
    # earlier file, too.
    path = tmp_path / f'emergency_iter_{last.iteration}.pth'
    # Resumed, it ends as a run that never stopped.
    more = dict(loop=iter_loop(100), custom_hooks=[])
    whole = run(tmp_path / 'whole', None, **more)
    rest = run(tmp_path, None, **more, resume=True, load_from=str(path))
    assert_same(weights(rest.model), weights(whole.model))


def test_growth_that_is_known_late_still_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, '_LEAST', 0.9)
    guard = dict(host_limit=tree_now() + 200 * MIB, action='restart')
    pace = Pace(leak_main())
    with pytest.raises(RestartNeeded):
        run(tmp_path, pace, loop=iter_loop(200), guard=guard)
    critical = [one.action for one in pace.events if one.action != 'warn']
    assert critical == ['save', 'restart']


def write_group(root, version, limit, used, cached):
    names = {
        1: ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_'),
        2: ('memory.max', 'memory.current', ''),
    }[version]
    group = root / 'sys/fs/cgroup' / ('memory/job' if version == 1 else 'job')
    group.mkdir(parents=True, exist_ok=True)
    (group / names[0]).write_text(f'{limit}\n')
    (group / names[1]).write_text(f'{used}\n')
    (group / 'memory.stat').write_text(
        f'anon {used}\n{names[2]}inactive_file {cached}\n'
    )
    (root / 'proc/self').mkdir(parents=True, exist_ok=True)
    line = '4:memory:/job/inner' if version == 1 else '0::/job/inner'
    (root / 'proc/self/cgroup').write_text(f'9:name=systemd:/\n{line}\n')


@pytest.mark.parametrize('version', [1, 2])
def test_the_limit_of_a_control_group(tmp_path, version):
    write_group(tmp_path, version, GIB, 700 * MIB, 100 * MIB)
    assert host_room(tmp_path) == Room(GIB, (1024 - 600) * MIB, 'cgroup')


@pytest.mark.parametrize(
    ('version', 'nothing'), [(1, 9223372036854771712), (2, 'max')]
)
def test_a_control_group_without_a_limit(tmp_path, version, nothing):
    write_group(tmp_path, version, nothing, 700 * MIB, 0)
    assert host_room(tmp_path).source == 'machine'
    assert host_room(tmp_path / 'none').source == 'machine'


def test_a_control_group_that_fills_up(tmp_path, monkeypatch):
    """Its files are read anew; nobody but this run grows in it."""
    root, used = tmp_path / 'root', [100 * MIB]
    write_group(root, 2, GIB, used[0], 0)
    leak = leak_main()

    def grow():
        leak()
        used[0] += 32 * MIB
        write_group(root, 2, GIB, used[0], 0)

    monkeypatch.setattr(host, 'host_room', lambda: host_room(root))
    pace = Pace(grow, until='save')
    runner = run(tmp_path / 'run', pace, loop=iter_loop(100))
    assert pace.events[-1].action == 'save'
    assert pace.events[-1].left < 100 * MIB
    assert {one.source for one in pace.events} == {'cgroup'}
    assert 'of the control group' in log_of(runner)


class Numberless(ToyModel):
    """Takes what validation gives, too."""

    def forward(self, inputs, targets, number=None, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


@pytest.mark.parametrize(
    'by_epoch', [True, pytest.param(False, marks=pytest.mark.soak)]
)
def test_a_healthy_run_stays_quiet(tmp_path, by_epoch):
    """Workers, validation and epochs, with a limit that is close."""
    pace = Pace()
    loop = (
        epoch_loop(4, val_interval=2)
        if by_epoch
        else iter_loop(30, val_interval=10)
    )
    guard = dict(host_limit=tree_now() + GIB)
    more = dict(validation(), model=Numberless())
    runner = run(tmp_path, pace, ToyData(), 2, loop, guard, **more)
    assert pace.events == []
    assert 'MemoryGuardHook:' not in log_of(runner)


def test_without_a_hook_that_saves(tmp_path):
    guard = dict(host_limit=tree_now() + MIB)
    pace = Pace()
    runner = run(
        tmp_path,
        pace,
        loop=iter_loop(20),
        custom_hooks=[
            pace,
            dict(type='mmstable.MemoryGuardHook', interval=0.005, **guard),
        ],
    )
    assert 'has no EmergencyCheckpointHook' in log_of(runner)


def test_a_reading_that_fails_is_told_and_nothing_else(tmp_path, monkeypatch):
    def fail():
        raise PermissionError('no /proc')

    monkeypatch.setattr(host, 'host_room', fail)
    runner = run(tmp_path, Pace(), loop=iter_loop(20))
    text = 'host memory cannot be monitored: PermissionError: no /proc.'
    assert log_of(runner).count(text) == 1


def test_the_figures_of_a_device(tmp_path, monkeypatch):
    retries = iter([0, 1, 1, 2, 3, 3])

    def read(device):
        return dict(
            allocated=GIB,
            peak=2 * GIB,
            reserved=3 * GIB,
            retries=next(retries, 4),
        )

    monkeypatch.setattr(host, 'read_device', read)
    runner = run(tmp_path, Pace(), loop=iter_loop(8))
    log = log_of(runner)
    assert '(1 time): 1.0 GiB in tensors, 3.0 GiB reserved' in log
    assert '(2 times)' not in log
    assert '(3 times)' in log
    text = next(Path(runner.log_dir).glob('vis_data/scalars.json')).read_text()
    assert '"train/stable/memory/device_reserved_mib": 3072.0' in text
    assert '"train/stable/memory/host_mib"' in text


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(tmp_path, hooks):
    with Ops() as seen:
        toy_runner(tmp_path, max_iters=8, hooks=hooks).train()
    return seen.names


def test_no_operation_is_dispatched(tmp_path):
    guard = dict(type='mmstable.MemoryGuardHook', interval=0.005)
    assert operations(tmp_path / 'a', [guard, Pace()]) == operations(
        tmp_path / 'b', []
    )


def test_the_thread_ends_with_the_run(tmp_path):
    import threading

    run(tmp_path, Pace(), loop=iter_loop(3))
    assert not [t for t in threading.enumerate() if 'memory' in t.name]
