"""Signals and exceptions: saved, said, and gone on from."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.hooks import EMAHook, Hook

from mmstable.checkpoint import signals
from mmstable.checkpoint.signals import StopSignal
from mmstable.errors import StoppedBySignal
from mmstable.hooks import EmergencyCheckpointHook
from mmstable.report import RunEnd, read_events
from tests.loops.runs import (
    DropoutModel,
    Numbered,
    epoch_loop,
    iter_loop,
    loader,
    validation,
)
from tests.toys import NAN, assert_same, toy_runner, weights

ROOT = Path(__file__).resolve().parents[2]
HOOK = dict(type='mmstable.EmergencyCheckpointHook')
ITERATIONS = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=8)


class Do(Hook):
    """Do something after an iteration."""

    def __init__(self, iteration, action):
        self._iteration, self._action = iteration, action

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self._iteration:
            self._action(runner)


def runner_with(tmp_path, *hooks, **kwargs):
    kwargs.setdefault('train_cfg', ITERATIONS)
    return toy_runner(
        tmp_path,
        hooks=[*hooks, HOOK],
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=100,
                by_epoch=False,
            )
        ),
        **kwargs,
    )


def send(number):
    return lambda runner: os.kill(os.getpid(), number)


def handlers():
    numbers = [signal.Signals[name] for name in signals.SIGNALS]
    return [signal.getsignal(number) for number in (*numbers, signal.SIGCHLD)]


@pytest.fixture(autouse=True)
def not_below_nohup():
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize(
    'name', ['SIGTERM', 'SIGHUP', 'SIGINT', 'SIGUSR2', 'SIGXCPU']
)
def test_a_signal_saves_and_the_run_goes_on_exactly(tmp_path, name):
    whole = runner_with(tmp_path / 'whole')
    whole.train()
    number = signal.Signals[name]
    part = runner_with(tmp_path / 'part', Do(3, send(number)))
    with pytest.raises(StoppedBySignal, match=name) as info:
        part.train()
    assert info.value.exit_code == 128 + number
    path = tmp_path / 'part' / 'emergency_iter_3.pth'
    assert path.is_file()
    rest = runner_with(tmp_path / 'rest', load_from=str(path), resume=True)
    rest.train()
    assert_same(weights(rest.model), weights(whole.model))
    assert_same(
        rest.optim_wrapper.state_dict(), whole.optim_wrapper.state_dict()
    )


def test_repeats_are_ignored_and_then_all_is_as_before(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(signals, 'REPEATS', 600.0)
    previous = signal.signal(signal.SIGTERM, lambda *a: heard.append(a[0]))
    # Without SIGCHLD: the first workers of a process make torch take it.
    before = handlers()[:-1]
    try:
        runner = runner_with(tmp_path, Do(2, send(signal.SIGTERM)))
        with pytest.raises(StoppedBySignal, match='SIGTERM'):
            runner.train()
        send(signal.SIGTERM)(runner)
        send(signal.SIGHUP)(runner)
        assert heard == [signal.SIGTERM]
        monkeypatch.setattr(signals, 'REPEATS', 0.0)
        send(signal.SIGTERM)(runner)
        assert heard == [signal.SIGTERM] * 2
        assert handlers()[:-1] == before
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_second_signal_does_not_cut_the_save_short(tmp_path, monkeypatch):
    # As LSF sends them; none counts as the same one.
    monkeypatch.setattr(signals, 'REPEATS', 0.0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):

        def insist(runner, number=number):
            send(signal.SIGINT)(runner)
            send(number)(runner)

        work_dir = tmp_path / number.name
        runner = runner_with(work_dir, Do(2, insist))
        with pytest.raises(StoppedBySignal, match='SIGINT'):
            runner.train()
        assert (work_dir / 'emergency_iter_2.pth').is_file()


@pytest.mark.parametrize(
    ('code', 'reason'), [(0, 'stopped'), (3, 'exception')]
)
def test_sys_exit_is_the_end_that_it_is(tmp_path, code, reason):
    def leave(runner):
        sys.exit(code)

    log = dict(type='mmstable.EventLogHook', report=False)
    runner = runner_with(tmp_path, Do(2, leave), log)
    with pytest.raises(SystemExit):
        runner.train()
    events = read_events(Path(runner.log_dir, 'stability', 'events.jsonl'))
    (end,) = (one for one in events if isinstance(one, RunEnd))
    assert end.reason == reason
    (log_file,) = tmp_path.glob('*/*.log')
    assert f'sys.exit({code})' in log_file.read_text()
    assert list(tmp_path.glob('emergency_iter_*.pth'))


def test_what_is_ignored_stays_ignored(tmp_path):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        runner = runner_with(tmp_path, Do(2, send(signal.SIGHUP)))
        runner.train()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert runner.iter == 8


@pytest.mark.parametrize('kind', ['iter', 'epoch'])
def test_sigusr1_saves_and_training_continues(tmp_path, kind, capsys):
    def run(folder, *hooks, **kwargs):
        torch.manual_seed(0)
        runner = runner_with(
            folder,
            *hooks,
            model=DropoutModel(),
            train_cfg=iter_loop(9) if kind == 'iter' else epoch_loop(3),
            train_dataloader=loader(Numbered(9), shuffle=True),
            **kwargs,
        )
        runner.train()
        return runner

    before = handlers()
    whole = run(tmp_path / 'whole')
    capsys.readouterr()
    asked = [Do(n, send(signal.SIGUSR1)) for n in (4, 4, 7)]
    part = run(tmp_path / 'part', *asked)
    assert handlers() == before
    assert_same(weights(part.model), weights(whole.model))
    out = capsys.readouterr().out
    assert out.count('Training continues.') == 2
    for number in (4, 7):
        saved = tmp_path / 'part' / f'emergency_iter_{number}.pth'
        assert f'SIGUSR1: saved {saved}. Training continues.' in out
        rest = run(tmp_path / f'{number}', load_from=str(saved), resume=True)
        assert_same(weights(rest.model), weights(whole.model))


def test_a_signal_to_stop_counts_more_than_one_to_save(tmp_path):
    runner = runner_with(
        tmp_path,
        Do(3, send(signal.SIGUSR1)),
        Do(3, send(signal.SIGTERM)),
        Do(3, send(signal.SIGUSR1)),
    )
    with pytest.raises(StoppedBySignal, match='SIGTERM'):
        runner.train()


def test_an_open_window_is_finished_first(tmp_path):
    wrapper = dict(
        type='mmstable.SafeOptimWrapper',
        accumulative_counts=3,
        optimizer=dict(type='SGD', lr=0.1),
    )
    runner = runner_with(
        tmp_path, Do(4, send(signal.SIGTERM)), optim_wrapper=wrapper
    )
    with pytest.raises(StoppedBySignal, match='SIGTERM'):
        runner.train()
    assert (tmp_path / 'emergency_iter_6.pth').is_file()


def test_an_exception_saves_the_state_before_it(tmp_path, capsys):
    def fail(runner):
        raise RuntimeError('out of luck')

    before = handlers()
    runner = runner_with(tmp_path, Do(5, fail))
    with pytest.raises(RuntimeError, match='out of luck'):
        runner.train()
    assert handlers() == before
    (path,) = tmp_path.glob('emergency_iter_*.pth')
    out = capsys.readouterr().out
    assert 'training failed with RuntimeError' in out
    assert f'--resume-from {path}' in out


@pytest.mark.parametrize('kind', ['iter', 'epoch', 'after validation'])
def test_a_run_goes_on_exactly_after_an_exception(tmp_path, kind):
    class Failing(DropoutModel):
        """Fails when it has drawn random numbers already."""

        fails_at, count = 0, 0

        def forward(self, *args, mode='tensor', **kwargs):
            outputs = super().forward(*args, mode=mode, **kwargs)
            self.count += mode == 'loss'
            if self.count == self.fails_at:
                raise RuntimeError('no memory')
            return outputs

    loop = {
        'iter': iter_loop(9),
        'epoch': epoch_loop(3),
        'after validation': iter_loop(9, val_interval=4),
    }[kind]

    def run(folder, fails_at=0, **kwargs):
        torch.manual_seed(0)
        model = Failing()
        model.fails_at = fails_at
        runner = runner_with(
            folder,
            model=model,
            train_cfg=dict(loop),
            train_dataloader=loader(Numbered(9), shuffle=True),
            **(validation() if kind == 'after validation' else {}),
            **kwargs,
        )
        runner.train()
        return runner

    whole = run(tmp_path / 'whole')
    with pytest.raises(RuntimeError, match='no memory'):
        run(tmp_path / 'part', fails_at=5)
    saved = tmp_path / 'part' / 'emergency_iter_4.pth'
    rest = run(tmp_path / 'rest', load_from=str(saved), resume=True)
    assert_same(weights(rest.model), weights(whole.model))


def validating(folder, hooks=(), **kwargs):
    return runner_with(
        folder,
        *hooks,
        model=DropoutModel(),
        train_cfg=iter_loop(8, val_interval=3),
        train_dataloader=loader(Numbered(9), shuffle=True),
        **{**validation(), **kwargs},
    )


class InValidation(Hook):
    def __init__(self, action):
        self._action = action

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 3 and batch_idx == 0:
            self._action(runner)


def fail(runner):
    raise RuntimeError('no memory')


@pytest.mark.parametrize('action', [send(signal.SIGTERM), fail])
def test_weights_and_average_keep_their_places(tmp_path, action):
    def run(folder, *hooks, **kwargs):
        torch.manual_seed(0)
        average = EMAHook(momentum=0.5)
        runner = validating(folder, [average, *hooks], **kwargs)
        runner.train()
        return weights(runner.model), weights(average.ema_model)

    whole = run(tmp_path / 'whole')
    with pytest.raises((StoppedBySignal, RuntimeError)):
        run(tmp_path / 'part', InValidation(action))
    saved = tmp_path / 'part' / 'emergency_iter_3.pth'
    rest = run(tmp_path / 'rest', load_from=str(saved), resume=True)
    assert_same(rest, whole)


def test_validation_inside_a_window_is_not_saved(tmp_path):
    wrapper = dict(
        type='mmstable.SafeOptimWrapper',
        accumulative_counts=2,
        optimizer=dict(type='SGD', lr=0.1),
    )
    runner = validating(
        tmp_path, [InValidation(send(signal.SIGTERM))], optim_wrapper=wrapper
    )
    with pytest.raises(StoppedBySignal):
        runner.train()
    assert (tmp_path / 'emergency_iter_4.pth').exists()


def test_a_poisoned_state_is_not_saved(tmp_path):
    def poison(runner):
        with torch.no_grad():
            runner.model.net.head.weight[0, 0] = NAN
        raise RuntimeError('poisoned')

    with pytest.raises(RuntimeError, match='poisoned'):
        runner_with(tmp_path, Do(5, poison)).train()
    assert list(tmp_path.glob('emergency_iter_*.pth')) == []


def test_the_previous_handler_is_called(tmp_path):
    heard = []
    previous = signal.signal(signal.SIGUSR1, lambda *a: heard.append(a[0]))
    try:
        runner_with(tmp_path, Do(2, send(signal.SIGUSR1))).train()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert heard == [signal.SIGUSR1]


def test_a_forked_worker_dies_of_the_signal():
    stop = StopSignal(['SIGTERM'])
    stop.install()
    try:
        ready, begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(begun, b'.')
            time.sleep(30)
            os._exit(0)
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM
        assert stop.pending is None
    finally:
        stop.uninstall()


def test_without_what_it_needs_it_says_so(tmp_path, capsys):
    runner = toy_runner(tmp_path, hooks=[Do(2, send(signal.SIGTERM)), HOOK])
    with pytest.raises(StoppedBySignal, match='SIGTERM'):
        runner.train()
    assert 'nothing is saved without' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(interval=0), '`interval` must be an int of at least 1, got 0'),
        (dict(interval=True), '`interval` must be an int .* got True'),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        EmergencyCheckpointHook(**settings)


SLOW = """
_base_ = ['{root}/configs/_base_/default_runtime.py']
custom_imports = dict(imports=['slow_module'])
model = dict(type='SlowModel')
loader = dict(batch_size=2, num_workers=2, dataset=dict(type='SlowData'),
              collate_fn=dict(type='default_collate'))
train_dataloader = dict(
    **loader, sampler=dict(type='InfiniteSampler', shuffle=True))
val_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='SlowMetric')
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=40,
                 val_interval=2)
val_cfg = dict(type='ValLoop')
optim_wrapper = dict(type='mmstable.SafeOptimWrapper',
                     optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(checkpoint=dict(
    type='mmstable.SafeCheckpointHook', by_epoch=False, interval=10))
"""
SLOW_MODULE = """
import time
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS


@DATASETS.register_module()
class SlowData(torch.utils.data.Dataset):
    metainfo = dict()

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return dict(inputs=torch.full((4,), index / 20))


@METRICS.register_module()
class SlowMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return dict(x=0.0)


@MODELS.register_module()
class SlowModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, mode='tensor'):
        out = self.layer(inputs)
        if mode == 'loss':
            return dict(loss=out.square().mean())
        print('validating', flush=True)
        time.sleep(0.3)
        return [out]
"""


@pytest.mark.parametrize(
    ('number', 'to_group'),
    [
        (signal.SIGTERM, True),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.soak),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.soak),
    ],
)
@pytest.mark.soak
def test_a_signal_during_validation(tmp_path, number, to_group):
    (tmp_path / 'slow_module.py').write_text(SLOW_MODULE)
    (tmp_path / 'slow.py').write_text(SLOW.format(root=ROOT))
    process = subprocess.Popen(
        [sys.executable, str(ROOT / 'tools/train.py'), 'slow.py']
        + ['--work-dir', 'run'],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': f'{tmp_path}:{ROOT}'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    out = []
    for line in process.stdout:
        out.append(line)
        if line.startswith('validating'):
            if to_group:
                # As a terminal and Slurm do: the workers get it, too.
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            break
    out.append(process.communicate(timeout=60)[0])
    text = ''.join(out)
    assert process.returncode == 128 + number, text
    (path,) = (tmp_path / 'run').glob('emergency_iter_2.pth')
    command = re.search(r'Resume with: (.*)', text).group(1)
    assert command.endswith(f'--work-dir run --resume-from {path}')
    assert 'Traceback' not in text
    # And that is a command which works.
    args = command.split()[2:] + ['--cfg-options', 'train_cfg.max_iters=3']
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools/train.py'), *args],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': f'{tmp_path}:{ROOT}'},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
