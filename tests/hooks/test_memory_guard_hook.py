"""Leaks for real: seen, forecast, told apart, and survived."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, get_worker_info

from mmstable.errors import RestartNeeded
from mmstable.events.records import MemoryAlarm
from mmstable.hooks import MemoryGuardHook, SafeCheckpointHook
from mmstable.hooks import memory_guard_hook as module
from mmstable.memory import process_tree, sampler
from mmstable.memory.device_memory import DeviceReading
from mmstable.memory.host_limit import Room, host_room
from mmstable.report import read_events
from tests.loops.runs import epoch_loop, iter_loop, log_of, validation
from tests.toys import ToyData, assert_same, toy_runner, weights

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """As often as it is told to, whatever that costs."""
    monkeypatch.setattr(sampler, '_RARELY', 0)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(interval=0), '`interval` must be .* above 0, got 0'),
        (dict(action='stop'), '`action` must be one of warn, save, lower_w'),
        (dict(host_limit=0), '`host_limit` must be an int of at least 1'),
        (dict(host_limit='1 ton'), "`host_limit`: a size is .* '1 ton'"),
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
    """Iterations that take their time, and what happens in them."""

    priority = 'HIGHEST'

    def __init__(self, seconds=0.01, action=None):
        self.seconds, self.action, self.events = seconds, action, []

    def after_train_iter(self, runner, *args, **kwargs):
        time.sleep(self.seconds)
        if self.action is not None:
            self.action()

    def after_event(self, runner, event):
        if isinstance(event, MemoryAlarm):
            self.events.append(event)


class UntilAlarm(Pace):
    """Ends the run with the first alarm, to save time."""

    def after_event(self, runner, event):
        super().after_event(runner, event)
        if self.events:
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
                **{'interval': 0.04, **(guard or {})},
            ),
            dict(type='mmstable.EventLogHook'),
            dict(type='mmstable.EmergencyCheckpointHook'),
        ],
        train_dataloader=loader,
        train_cfg=loop or iter_loop(600),
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


def test_a_leak_in_a_worker_is_seen_and_forecast(tmp_path):
    pace = UntilAlarm()
    runner = run(
        tmp_path, pace, Leaky(MIB), workers=2, guard=dict(host_limit='3GiB')
    )
    event = pace.events[0]
    assert (event.resource, event.holder) == ('host', 'workers')
    assert (event.source, event.action) == ('setting', 'warn')
    assert (event.workers, event.prefetch) == (2, 2)
    # Two samples of 1 MiB in an iteration.
    assert event.growth == pytest.approx(2 * MIB, rel=0.25)
    assert event.iterations_left == pytest.approx(event.left / event.growth)
    text = log_of(runner)
    assert 'host RAM grows' in text
    assert 'dataloader workers hold' in text
    assert '2 workers x 2 prefetch. Workers leak' in text
    path = next(Path(runner.log_dir).glob('stability/events.jsonl'))
    assert any(isinstance(one, MemoryAlarm) for one in read_events(path))


def test_a_leak_of_the_training_process(tmp_path):
    kept, pace = [], UntilAlarm()
    pace.action = lambda: kept.append(torch.ones(MIB // 4))
    runner = run(tmp_path, pace, guard=dict(host_limit='2GiB'))
    assert pace.events[0].holder == 'main_process'
    assert pace.events[0].growth == pytest.approx(MIB, rel=0.25)
    assert 'The training process leaks' in log_of(runner)


@pytest.mark.parametrize(
    ('workers', 'holder'), [(0, 'main_process'), (2, 'workers')]
)
def test_descriptors_that_leak(tmp_path, monkeypatch, workers, holder):
    # As low as a real `ulimit -n`, but not for pytest.
    monkeypatch.setattr(process_tree, '_max_files', lambda: 1024)
    pace, data = UntilAlarm(), Leaky(files=True)
    try:
        runner = run(tmp_path, pace, data, workers)
    finally:
        for one in data.kept:
            os.close(one)
    event = pace.events[0]
    assert (event.resource, event.limit) == ('descriptors', 1024)
    assert event.holder == holder
    assert event.growth == pytest.approx(2 if workers == 0 else 1, rel=0.1)
    assert 'HDF5' in log_of(runner)


def test_shared_memory_that_leaks(tmp_path, monkeypatch):
    used = []
    room = process_tree._shared_room
    if room() is None:
        pytest.skip('there is no /dev/shm')

    def grow():
        file = Path('/dev/shm') / f'mmstable-{os.getpid()}-{len(used)}'
        file.write_bytes(b'x' * (64 << 10))
        used.append(file)

    def small():
        limit, left, source = room()
        return Room(64 * MIB, 64 * MIB - (limit - left), source)

    monkeypatch.setattr(process_tree, '_shared_room', small)
    try:
        pace = UntilAlarm(action=grow)
        runner = run(tmp_path, pace)
    finally:
        for file in used:
            file.unlink()
    assert pace.events[0].resource == 'shared_memory'
    assert '/dev/shm' in log_of(runner)


def leak_main(size=4 * MIB):
    kept = []
    return lambda: kept.append(b'x' * size)


def tree_now():
    return process_tree.read_tree().tree


def test_a_checkpoint_is_saved_before_the_limit(tmp_path):
    limit = tree_now() + 500 * MIB
    pace = Pace(0.02, leak_main())
    runner = run(
        tmp_path, pace, loop=iter_loop(110), guard=dict(host_limit=limit)
    )
    warned, saved = pace.events[0], pace.events[-1]
    assert (warned.action, saved.action) == ('warn', 'save')
    assert 0 < saved.left < warned.left
    files = list(tmp_path.glob('emergency_iter_*.pth'))
    assert [file.stem for file in files] == [
        f'emergency_iter_{saved.iteration}'
    ]
    log = log_of(runner)
    assert 'nearly used up' in log
    assert 'mmstable: MemoryGuardHook: saved' in log
    assert runner.iter == 110


def test_warn_does_nothing_else(tmp_path):
    guard = dict(host_limit=tree_now() + 500 * MIB, action='warn')
    pace = Pace(0.02, leak_main())
    run(tmp_path, pace, loop=iter_loop(110), guard=guard)
    assert {one.action for one in pace.events} == {'warn'}
    assert pace.events[-1].left < 100 * MIB
    assert not list(tmp_path.glob('emergency*'))


def test_a_run_that_ends_to_be_started_again(tmp_path):
    guard = dict(host_limit=tree_now() + 500 * MIB, action='restart')
    pace = Pace(0.02, leak_main())
    with pytest.raises(RestartNeeded) as stop:
        run(tmp_path, pace, loop=iter_loop(200), guard=guard)
    assert stop.value.exit_code == 22
    assert pace.events[-1].action == 'restart'
    assert list(tmp_path.glob('emergency_iter_*.pth'))
    # What it resumes to is what it would have been.
    quiet = dict(action='warn')
    whole = run(tmp_path / 'b', Pace(0), loop=iter_loop(200), guard=quiet)
    rest = run(
        tmp_path,
        Pace(0),
        loop=iter_loop(200),
        guard=quiet,
        resume=True,
        load_from=str(next(tmp_path.glob('emergency_iter_*.pth'))),
    )
    assert_same(weights(rest.model), weights(whole.model))


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
        used[0] += 4 * MIB
        write_group(root, 2, GIB, used[0], 0)

    monkeypatch.setattr(process_tree, 'host_room', lambda: host_room(root))
    pace = Pace(0.01, grow)
    runner = run(tmp_path / 'run', pace, loop=iter_loop(225))
    assert [one.action for one in pace.events][-1] == 'save'
    assert {one.source for one in pace.events} == {'cgroup'}
    assert 'of the control group' in log_of(runner)


class Slow(ToyData):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.parametrize('by_epoch', [False, True])
def test_a_healthy_run_stays_quiet(tmp_path, by_epoch):
    """Workers, validation and epochs, with a limit that is close."""
    pace = Pace()
    loop = (
        epoch_loop(12, val_interval=3)
        if by_epoch
        else iter_loop(100, val_interval=30)
    )
    guard = dict(host_limit=tree_now() + GIB)
    more = validation()
    more['model'] = NumberFree()
    runner = run(tmp_path, pace, Slow(), 2, loop, guard, **more)
    assert pace.events == []
    assert 'MemoryGuardHook:' not in log_of(runner)


class NumberFree(torch.nn.Module):
    """Made below: a toy model that takes what validation gives."""


from tests.toys import ToyModel  # noqa: E402


class NumberFree(ToyModel):  # noqa: F811
    def forward(self, inputs, targets, number=None, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


def test_fewer_workers_at_once(tmp_path):
    pace, seen = Pace(), []

    class Reading(Leaky):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            info = get_worker_info()
            sample['number'] = torch.tensor([index, info.num_workers])
            return sample

    class Order(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            seen.append(data_batch['number'].tolist())

    pace.hook = Order()
    runner = toy_like_run(
        tmp_path,
        pace,
        [Order()],
        Reading(MIB),
        4,
        iter_loop(120),
        dict(host_limit='3GiB', action='lower_workers'),
    )
    assert pace.events[0].action == 'lower_workers'
    loader = runner.train_dataloader
    assert (loader.num_workers, loader.prefetch_factor) == (2, 1)
    assert 'read by new workers from here on: 2 workers x 1' in log_of(runner)
    # No sample is missing, none comes twice, and fewer read them.
    assert [i for batch in seen for i, _ in batch] == [
        i % 16 for i in range(240)
    ]
    assert (seen[0][0][1], seen[-1][0][1]) == (4, 2)


def toy_like_run(tmp_path, pace, hooks, data, workers, loop, guard):
    return run(
        tmp_path,
        pace,
        data,
        workers,
        loop,
        guard,
        model=NumberFree(),
        custom_hooks=[
            pace,
            dict(type='mmstable.MemoryGuardHook', interval=0.04, **guard),
            *hooks,
        ],
    )


def test_fewer_workers_at_the_next_epoch(tmp_path):
    pace = Pace()
    runner = run(
        tmp_path,
        pace,
        Leaky(MIB, length=80),
        4,
        epoch_loop(4),
        dict(host_limit='1GiB', action='lower_workers'),
    )
    assert 'lower_workers' in {one.action for one in pace.events}
    loader = runner.train_dataloader
    assert loader.num_workers < 4
    assert 'from the next pass over the data on: 2 workers' in log_of(runner)
    assert runner.iter == 160


def test_without_a_hook_that_saves(tmp_path):
    guard = dict(host_limit=tree_now() + MIB)
    pace = Pace()
    runner = run(
        tmp_path,
        pace,
        loop=iter_loop(20),
        custom_hooks=[
            pace,
            dict(type='mmstable.MemoryGuardHook', interval=0.04, **guard),
        ],
    )
    assert 'nothing is saved without EmergencyCheckpointHook' in log_of(runner)


def test_a_reading_that_fails_is_told_and_nothing_else(tmp_path, monkeypatch):
    def fail():
        raise PermissionError('no /proc')

    monkeypatch.setattr(process_tree, 'host_room', fail)
    runner = run(tmp_path, Pace(), loop=iter_loop(20))
    text = 'host memory cannot be watched: PermissionError: no /proc.'
    assert log_of(runner).count(text) == 1


def test_the_figures_of_a_device(tmp_path, monkeypatch):
    retries = iter([0, 0, 1, 1, 2, 2, 3, 3])

    def read(device):
        return DeviceReading(GIB, 2 * GIB, 3 * GIB, next(retries, 4))

    monkeypatch.setattr(module, 'read_device', read)
    runner = run(tmp_path, Pace(), loop=iter_loop(60))
    log = log_of(runner)
    assert '(1 time): 1.0 GiB in tensors, 3.0 GiB reserved' in log
    assert '(2 times)' not in log
    assert '(3 times)' in log
    text = next(Path(runner.log_dir).glob('vis_data/*.json')).read_text()
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
        toy_runner(tmp_path, max_iters=8, hooks=[Pace(0.05), *hooks]).train()
    return seen.names


def test_no_operation_is_dispatched(tmp_path):
    guard = dict(type='mmstable.MemoryGuardHook', interval=0.04)
    assert operations(tmp_path / 'a', [guard]) == operations(
        tmp_path / 'b', []
    )


def test_the_thread_ends_with_the_run(tmp_path):
    import threading

    run(tmp_path, Pace(0), loop=iter_loop(3))
    assert not [t for t in threading.enumerate() if 'memory' in t.name]


def test_the_saving_hook_is_the_one_that_is_asked():
    # The request goes to EmergencyCheckpointHook, which asks this one.
    assert hasattr(SafeCheckpointHook, 'save_emergency')
