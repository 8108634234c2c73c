"""Runs that are looked into, and changed, while they run."""

from __future__ import annotations

import copy
import os
import threading
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict

from mmstable.errors import StoppedBySignal
from mmstable.hooks import LiveProbeHook
from mmstable.optim import SafeOptimWrapper
from mmstable.probe import probing, server
from mmstable.probe.probing import names_of
from mmstable.probe.server import ProbeError, ask, find_sockets
from mmstable.report import LiveChange, read_events
from tests.loops.runs import iter_loop, log_of
from tests.patience import wait_until
from tests.toys import (
    NAN,
    Sabotage,
    assert_same,
    read_saved,
    toy_net,
    toy_runner,
    weights,
)

PROBE = dict(type='mmstable.LiveProbeHook', use_probing=False)
OPTIMIZER = dict(type='SGD', lr=0.1, momentum=0.9)
WRAPPERS = {
    'safe': dict(type='mmstable.SafeOptimWrapper', optimizer=OPTIMIZER),
    'fused': dict(
        type='mmstable.SafeOptimWrapper',
        optimizer=dict(type='AdamW', lr=0.01, fused=True),
        clip_grad=dict(max_norm=1.0),
    ),
    'stock': dict(type='OptimWrapper', optimizer=OPTIMIZER),
}
# Each computes a rate from the one before.
SCHEDULE = [
    dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=4),
    dict(type='PolyLR', power=0.9, by_epoch=False, begin=4, end=20),
]
wrappers = pytest.mark.parametrize('wrapper', WRAPPERS)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(server.VARIABLE, str(tmp_path / 'sockets'))


class At(Hook):
    """Does something in the iteration after so many."""

    priority = 'HIGHEST'

    def __init__(self, iteration, work):
        self.iteration, self.work = iteration, work

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.iteration:
            self.work(runner)


class Client(Hook):
    """Asks a run something from another thread, and awaits the answer.

    The next step is not begun before the request is there.
    """

    priority = 'HIGHEST'

    def __init__(self, iteration, command, **arguments):
        self.iteration, self.command = iteration, command
        self.arguments, self.answer = arguments, None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter != self.iteration:
            return
        (path,) = find_sockets()
        self.thread = threading.Thread(target=self._ask, args=(path,))
        self.thread.start()
        boundary = live_run(runner).boundary
        wait_until(lambda: boundary.waiting or not self.thread.is_alive())

    def _ask(self, path):
        try:
            self.answer = ask(path, self.command, **self.arguments)
        except ProbeError as error:
            self.answer = error

    def result(self):
        self.thread.join(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def live_run(runner):
    return next(
        hook._run for hook in runner.hooks if isinstance(hook, LiveProbeHook)
    )


def run(work_dir, wrapper='safe', hooks=(), max_iters=10, **settings):
    settings.setdefault('param_scheduler', copy.deepcopy(SCHEDULE))
    runner = toy_runner(
        work_dir,
        copy.deepcopy(WRAPPERS[wrapper])
        if isinstance(wrapper, str)
        else wrapper,
        max_iters,
        [dict(type='mmstable.EventLogHook'), *hooks],
        **settings,
    )
    runner.train()
    return runner


def changes(runner):
    path = Path(runner.log_dir, 'stability', 'events.jsonl')
    return [e for e in read_events(path) if isinstance(e, LiveChange)]


class Factor(Hook):
    """What a changed learning rate has to be equal to.

    Args:
        factors: Iterations done to the factor from then on.
    """

    def __init__(self, factors):
        self.factors, self.factor = factors, 1.0

    def before_train(self, runner):
        optimizer = runner.optim_wrapper.optimizer
        step, (group,) = optimizer.step, optimizer.param_groups

        def multiplied(*args, **kwargs):
            own = group['lr']
            group['lr'] = own * self.factor
            try:
                return step(*args, **kwargs)
            finally:
                group['lr'] = own

        optimizer.step = multiplied

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.factor = self.factors.get(runner.iter, self.factor)


@wrappers
def test_a_healthy_run_is_the_same(tmp_path, wrapper):
    probed = run(tmp_path / 'probed', wrapper, [PROBE])
    plain = run(tmp_path / 'plain', wrapper)
    assert_same(weights(probed.model), weights(plain.model))
    assert_same(
        probed.optim_wrapper.state_dict(), plain.optim_wrapper.state_dict()
    )
    assert find_sockets() == []


@wrappers
def test_a_changed_rate_survives_the_schedule(tmp_path, wrapper):
    client = Client(3, 'set_lr', factor=0.5)
    changed = run(tmp_path / 'changed', wrapper, [PROBE, client])
    expected = run(tmp_path / 'expected', wrapper, [Factor({3: 0.5})])
    plain = run(tmp_path / 'plain', wrapper)
    assert_same(weights(changed.model), weights(expected.model))
    assert any(
        (weights(changed.model)[k] != v).any()
        for k, v in weights(plain.model).items()
    )
    # The schedule, and what a checkpoint holds, know nothing of it.
    assert_same(
        changed.optim_wrapper.optimizer.param_groups[0]['lr'],
        plain.optim_wrapper.optimizer.param_groups[0]['lr'],
    )
    answer = client.result()
    assert answer['done'] and answer['iteration'] == 3
    (change,) = changes(changed)
    assert (change.what, change.iteration) == ('lr', 3)
    assert change.wrapper == 'optim_wrapper'
    assert change.after == pytest.approx(change.before / 2)
    assert answer['value'] == {'optim_wrapper': change.after}


def test_a_rate_can_be_named(tmp_path):
    client, later = Client(3, 'set_lr', lr=0.01), Client(3, 'status')
    later.iteration = 4
    run(tmp_path, 'safe', [PROBE, client, later], param_scheduler=None)
    assert client.result()['value'] == {'optim_wrapper': pytest.approx(0.01)}
    status = later.result()
    assert status['lr'] == {'optim_wrapper': pytest.approx(0.01)}
    assert status['lr_factors'] == {'optim_wrapper': pytest.approx(0.1)}
    assert (status['iteration'], status['max_iters']) == (4, 10)
    assert status['phase'].startswith('hook')


@wrappers
def test_the_rate_that_code_writes_becomes_a_factor(tmp_path, wrapper):
    notes = []

    def push(runner):
        one = live_run(runner)

        def work():
            with one.noticing_changes('pg["lr"] *= 0.5') as lines:
                for group in runner.optim_wrapper.param_groups:
                    group['lr'] *= 0.5
            notes.extend(lines)

        one.boundary.post(work)

    changed = run(tmp_path / 'a', wrapper, [PROBE, At(3, push), At(5, push)])
    expected = run(tmp_path / 'b', wrapper, [Factor({3: 0.5, 5: 0.25})])
    assert_same(weights(changed.model), weights(expected.model))
    assert 'learning rate times 0.5 from iteration 4 on' in notes[0]
    kinds = [(one.what, one.iteration) for one in changes(changed)]
    assert kinds == [('code', 3), ('lr', 3), ('code', 5), ('lr', 5)]
    assert changes(changed)[0].text == 'pg["lr"] *= 0.5'


@pytest.mark.parametrize('rate', [0.0, -0.1, float('nan'), float('inf')])
def test_a_rate_that_is_none_does_not_stay(tmp_path, rate):
    notes = []

    def push(runner):
        one = live_run(runner)

        def work():
            with one.noticing_changes('') as lines:
                runner.optim_wrapper.param_groups[0]['lr'] = rate
            notes.extend(lines)

        one.boundary.post(work)

    changed = run(tmp_path / 'a', 'safe', [PROBE, At(3, push)])
    plain = run(tmp_path / 'b', 'safe')
    assert_same(weights(changed.model), weights(plain.model))
    assert 'a learning rate must stay above 0' in notes[0]


def test_a_guard_that_lowers_the_rate_and_a_factor_go_together(tmp_path):
    guard = dict(type='mmstable.DivergenceGuardHook', warmup=dict(iters=8))
    client = Client(3, 'set_lr', factor=0.5)
    both = run(tmp_path / 'both', 'safe', [guard, PROBE, client])
    expected = run(tmp_path / 'expected', 'safe', [guard, Factor({3: 0.5})])
    assert_same(weights(both.model), weights(expected.model))
    rate = both.optim_wrapper.optimizer.param_groups[0]['lr']
    assert rate == expected.optim_wrapper.optimizer.param_groups[0]['lr']


@wrappers
@pytest.mark.parametrize('clip_hook', [False, True])
def test_a_changed_limit_holds_for_the_next_clipping(
    tmp_path, wrapper, clip_hook
):
    settings = {**copy.deepcopy(WRAPPERS[wrapper]), 'clip_grad': None}
    hooks = [PROBE, Client(0, 'set_clip', max_norm=0.01)]
    if clip_hook:
        hooks.append(dict(type='mmstable.GradClipHook', max_norm=100))
    else:
        settings['clip_grad'] = dict(max_norm=100)
    changed = run(tmp_path / 'changed', settings, hooks)
    reference = {**copy.deepcopy(WRAPPERS[wrapper])}
    reference['clip_grad'] = dict(max_norm=0.01)
    expected = run(tmp_path / 'expected', reference)
    for key, value in weights(expected.model).items():
        torch.testing.assert_close(changed.model.state_dict()[key], value)
    (change,) = changes(changed)
    assert (change.what, change.before, change.after) == ('clip', 100, 0.01)


class TwoNets(BaseModel):
    """Two nets, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.gen, self.disc = toy_net(0), toy_net(1)

    def train_step(self, data, optim_wrapper):
        losses = {}
        for name in ('gen', 'disc'):
            loss = getattr(self, name)(data['inputs']).square().mean()
            optim_wrapper[name].update_params(loss)
            losses[f'loss_{name}'] = loss.detach()
        return losses

    def forward(self, *args, **kwargs):
        raise NotImplementedError


def test_wrappers_of_a_gan_can_be_changed_apart(tmp_path):
    def train(name, hooks):
        model = TwoNets()
        wrapper = OptimWrapperDict(
            **{
                part: SafeOptimWrapper(
                    torch.optim.SGD(getattr(model, part).parameters(), 0.1)
                )
                for part in ('gen', 'disc')
            }
        )
        return run(
            tmp_path / name,
            wrapper,
            hooks,
            max_iters=6,
            model=model,
            param_scheduler=None,
        )

    client = Client(2, 'set_lr', factor=0.5, wrapper='gen')
    code = []

    def read(runner):
        names = names_of(live_run(runner))
        code.append(list(names['optimizer']))
        code.append(names['trainer'].grad_clip)

    changed = train('changed', [PROBE, client, At(4, read)])
    plain = train('plain', [])
    assert list(client.result()['value']) == ['gen']
    assert_same(weights(changed.model.disc), weights(plain.model.disc))
    assert any(
        (weights(changed.model.gen)[key] != value).any()
        for key, value in weights(plain.model.gen).items()
    )
    assert code == [['gen', 'disc'], {'gen': None, 'disc': None}]


@pytest.mark.parametrize(
    ('command', 'arguments', 'error'),
    [
        ('set_lr', dict(), 'must be a number above 0, such as 0.001'),
        ('set_lr', dict(lr=-1), 'must be a number above 0, such as 0.001'),
        ('set_lr', dict(lr=1, factor=2), 'must be a number above 0'),
        ('set_lr', dict(lr='x'), '`lr`: must be a number'),
        ('set_lr', dict(lr=float('inf')), '`lr`: must be finite'),
        (
            'set_lr',
            dict(lr=1, wrapper='gen'),
            "unknown optimizer wrapper 'gen'",
        ),
        ('set_clip', dict(max_norm=0), 'the clip limit must be a number'),
        ('set_clip', dict(), '`max_norm`: must be a number'),
        ('save', dict(), 'it needs mmstable.EmergencyCheckpointHook'),
        ('sql', dict(query='SELECT 1'), '--probe probing`, after'),
        ('eval', dict(code='1'), 'must be one of status'),
        ('events', dict(count=1000), '`count`: must be 1 to 100'),
    ],
)
def test_what_cannot_be_done_is_told(tmp_path, command, arguments, error):
    client = Client(2, command, **arguments)
    runner = run(tmp_path, 'safe', [PROBE, client])
    with pytest.raises(ProbeError, match=error):
        client.result()
    assert changes(runner) == []
    assert runner.iter == 10


def test_what_can_be_read(tmp_path):
    asked = {
        name: Client(4, name)
        for name in ('status', 'stacks', 'steps', 'events', 'memory', 'speed')
    }
    for number, client in enumerate(asked.values()):
        client.iteration = 4 + number
    bad = Sabotage(grads={3: ('net.head.weight', NAN)})
    run(tmp_path, 'safe', [bad, PROBE, *asked.values()], max_iters=12)
    found = {name: client.result() for name, client in asked.items()}
    assert found['status']['work_dir'] == str(tmp_path)
    assert found['status']['skipped'] == {'optim_wrapper': 1}
    assert found['status']['probing'] is False
    (name, calls), *_ = found['stacks']['threads']
    assert name == 'MainThread'
    assert any('before_train_iter' in call for call in calls)
    (step,) = found['steps']
    assert (step['iteration'], step['fault']) == (3, 'nan_grad')
    assert step['culprits'] == ['net.head.weight']
    assert [one['event'] for one in found['events']] == ['step_fault']
    assert found['memory']['tree'] > 10**6


SAVER = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', by_epoch=False, interval=10**6
    )
)
EMERGENCY = dict(type='mmstable.EmergencyCheckpointHook')


def test_a_checkpoint_now(tmp_path):
    client = Client(3, 'save')
    runner = run(
        tmp_path, 'safe', [PROBE, EMERGENCY, client], default_hooks=SAVER
    )
    assert client.result()['done']
    assert (tmp_path / 'emergency_iter_4.pth').exists()
    assert 'mmstable: probe: saved ' in log_of(runner)
    assert [one.what for one in changes(runner)] == ['save']
    assert runner.iter == 10


def test_the_end_after_this_iteration_and_a_resume_with_the_change(tmp_path):
    hooks = [PROBE, EMERGENCY]
    lower = Client(2, 'set_lr', factor=0.5)
    clip = Client(3, 'set_clip', max_norm=0.5)
    settings = dict(default_hooks=SAVER, train_cfg=iter_loop(10))
    whole = run(tmp_path / 'whole', 'safe', [*hooks, lower, clip], **settings)
    lower, clip = Client(2, 'set_lr', factor=0.5), copy.copy(clip)
    stop = Client(4, 'stop')
    part = tmp_path / 'part'
    with pytest.raises(StoppedBySignal, match='SIGTERM') as error:
        run(part, 'safe', [*hooks, lower, clip, stop], **settings)
    assert error.value.exit_code == 143
    assert stop.result()['done']
    saved = part / 'emergency_iter_5.pth'
    state = read_saved(saved)['mmstable']['LiveProbeHook']
    assert state == dict(
        lr_factors={'optim_wrapper': [0.5]}, clips={'optim_wrapper': 0.5}
    )
    rest = run(
        tmp_path / 'rest',
        'safe',
        hooks,
        load_from=str(saved),
        resume=True,
        **copy.deepcopy(settings),
    )
    assert_same(weights(rest.model), weights(whole.model))
    assert 'live changes from before the resume' in log_of(rest)
    assert find_sockets() == []


def test_to_stop_twice_is_to_stop_once(tmp_path):
    def stop_twice(runner):
        (path,) = find_sockets()
        boundary = live_run(runner).boundary
        for _ in range(2):
            thread = threading.Thread(target=ask, args=(path, 'stop'))
            thread.start()
            wait_until(lambda: boundary.waiting)
            boundary.visit()
            thread.join()

    with pytest.raises(StoppedBySignal, match='SIGTERM'):
        run(
            tmp_path,
            'safe',
            [PROBE, EMERGENCY, At(3, stop_twice)],
            default_hooks=SAVER,
        )
    assert (tmp_path / 'emergency_iter_4.pth').exists()


def test_a_run_that_fails_leaves_no_socket_for_the_next_one(tmp_path):
    def fail(runner):
        raise RuntimeError('on purpose')

    for name in ('a', 'b'):
        # A stock loop tells no hook.
        with pytest.raises(RuntimeError, match='on purpose'):
            run(tmp_path / name, 'safe', [PROBE, At(2, fail)])
        assert len(find_sockets()) <= 1
    run(tmp_path / 'c', 'safe', [PROBE])
    assert find_sockets() == []


def test_without_a_socket_training_goes_on(tmp_path):
    (tmp_path / 'sockets').write_text('in the way')
    runner = run(tmp_path / 'run', 'safe', [PROBE])
    assert runner.iter == 10
    assert 'its socket could not be created' in log_of(runner)


def test_probing_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr('mmstable.probe.probing.is_installed', lambda: False)
    wanted = dict(type='mmstable.LiveProbeHook', use_probing=True)
    runner = run(tmp_path / 'a', 'safe', [wanted])
    assert '`probing` is not installed' in log_of(runner)
    quiet = run(tmp_path / 'b', 'safe', [dict(type='mmstable.LiveProbeHook')])
    assert 'is not installed' not in log_of(quiet)


def test_probing_is_started_only_on_request(tmp_path, monkeypatch):
    name = 'mmstable.probe.probing'
    monkeypatch.setattr(f'{name}.is_installed', lambda: True)

    def started(console):
        raise AssertionError('probing was started')

    monkeypatch.setattr(f'{name}.ProbingBridge', started)
    runner = run(tmp_path, 'safe', [dict(type='mmstable.LiveProbeHook')])
    log = log_of(runner)
    assert 'EVERY user of this machine' not in log
    assert 'only you can use its socket' in log


def test_settings_that_would_open_ports_are_hidden(monkeypatch):
    monkeypatch.setenv('PROBING_PORT', '8080')
    with probing._without_settings():
        assert 'PROBING_PORT' not in os.environ
    assert os.environ['PROBING_PORT'] == '8080'


@pytest.mark.parametrize(
    ('said', 'expected'), [(None, False), ('off', False), ('on', True)]
)
def test_modules_are_measured_if_somebody_asks_for_it(
    tmp_path, monkeypatch, said, expected
):
    monkeypatch.delenv('PROBING_TORCH_PROFILING', raising=False)
    if said is not None:
        monkeypatch.setenv('PROBING_TORCH_PROFILING', said)
    calls = []

    class Bridge:
        traces = False

        def __init__(self, console):
            pass

        def add_step(self, report):
            pass

        def add_event(self, event):
            pass

        def trace_modules(self):
            calls.append('traced')

        def close(self):
            pass

    name = 'mmstable.probe.probing'
    monkeypatch.setattr(f'{name}.is_installed', lambda: True)
    monkeypatch.setattr(f'{name}.ProbingBridge', Bridge)
    hook = dict(type='mmstable.LiveProbeHook', use_probing=True)
    runner = run(tmp_path, 'safe', [hook])
    assert calls == ['traced'] * expected
    assert 'EVERY user of this machine can now run code' in log_of(runner)


def test_a_flag_must_be_one():
    with pytest.raises(TypeError, match='LiveProbeHook: `use_probing` must'):
        LiveProbeHook(use_probing='yes')
