"""Faults happen where, when and as they are told to, and are recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from torch import nn

from mmstable import SafeOptimWrapper
from mmstable.errors import ConfigError, InjectedError
from mmstable.faults.accidents import OutOfMemoryError
from mmstable.faults.kinds import KINDS
from mmstable.faults.schedule import Schedule, draw
from mmstable.hooks import FaultInjectorHook
from mmstable.report import InjectedFault, StepFault, read_events
from tests.loops.runs import log_of
from tests.ranks import run_ranks
from tests.toys import ToyModel, assert_same, toy_runner, weights

HEAD = 'net.head.weight'
STOCK = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
ADAM = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='AdamW', lr=0.01)
)
FP16 = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='AdamW', lr=0.01, fused=True),
)
LOOPS = {
    'mmengine': 'IterBasedTrainLoop',
    'mmstable': 'mmstable.SafeIterBasedTrainLoop',
}


class TermsModel(BaseModel):
    """A norm with statistics, and two losses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 2)

    def forward(self, inputs, targets, mode='tensor'):
        # A tensor in a list in a dict, as some preprocessors make them.
        if isinstance(inputs, dict):
            inputs = inputs['imgs'][0]
        out = self.head(self.body(inputs))
        if mode == 'loss':
            error = (out.float() - targets).square()
            parts = [error[:, 0].mean(), error[:, 1].mean()]
            return dict(loss_cls=parts[0], loss_bbox=parts, acc=error.mean())
        return out


def injector(*faults, **kwargs):
    return FaultInjectorHook(faults=list(faults), enabled=True, **kwargs)


def build(work_dir, *faults, hooks=(), seed=0, **kwargs):
    hook = injector(*faults, seed=seed)
    hooks = [hook, dict(type='mmstable.EventLogHook'), *hooks]
    return toy_runner(work_dir, hooks=hooks, **kwargs)


def train(work_dir, *faults, **kwargs):
    runner = build(work_dir, *faults, **kwargs)
    runner.train()
    return runner


def events(runner, kind):
    # Runs of one second share their directory.
    paths = Path(runner.log_dir, 'stability').glob('events*.jsonl')
    path = max(paths, key=lambda path: path.stat().st_mtime_ns)
    return [e for e in read_events(path) if isinstance(e, kind)]


def injected(runner):
    return [
        (e.iteration, e.kind, e.target, e.value)
        for e in events(runner, InjectedFault)
    ]


def step_faults(runner):
    return [(e.iteration, e.fault) for e in events(runner, StepFault)]


def hooks_on(model):
    counts = [len(p._backward_hooks or ()) for p in model.parameters()]
    for module in model.modules():
        counts.append(len(module._forward_hooks))
        counts.append(len(module._forward_pre_hooks))
    return sum(counts)


def is_finite(model):
    return all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize('value', ['NaN', 'Inf'])
def test_gradient_of_a_named_parameter(tmp_path, value, loop):
    fault = dict(kind=f'{value.lower()}_grad', param=HEAD, at=3)
    runner = train(
        tmp_path,
        fault,
        train_cfg=dict(type=LOOPS[loop], max_iters=6, val_interval=10**6),
    )
    assert injected(runner) == [(3, fault['kind'], HEAD, value)]
    (bad,) = events(runner, StepFault)
    assert (bad.iteration, bad.fault) == (3, 'nan_grad')
    assert bad.culprits == ((HEAD, value),)
    assert is_finite(runner.model)
    assert hooks_on(runner.model) == 0


def test_gradients_by_a_regular_expression(tmp_path):
    runner = train(
        tmp_path, dict(kind='inf_grad', param=r'net\.head\..*', at=[2, 6])
    )
    (second, last) = events(runner, StepFault)
    names = {'net.head.weight', 'net.head.bias'}
    for bad, iteration in ((second, 2), (last, 6)):
        assert bad.iteration == iteration
        assert {c.name for c in bad.culprits} == names
    assert {t[2] for t in injected(runner)} == names
    assert hooks_on(runner.model) == 0


def test_stock_wrapper_dies_of_it(tmp_path):
    fault = dict(kind='nan_grad', param=HEAD, at=3)
    runner = train(tmp_path, fault, optim_wrapper=STOCK)
    assert not is_finite(runner.model)
    assert injected(runner) == [(3, 'nan_grad', HEAD, 'NaN')]


@pytest.mark.parametrize(
    ('fault', 'terms'),
    [
        (dict(kind='nan_loss'), {'loss_cls': 'NaN', 'loss_bbox': 'NaN'}),
        (dict(kind='inf_loss', term='loss_bbox'), {'loss_bbox': 'Inf'}),
    ],
)
def test_losses(tmp_path, fault, terms):
    runner = train(tmp_path, {**fault, 'at': 3}, model=TermsModel())
    assert {t[2]: t[3] for t in injected(runner)} == terms
    (bad,) = events(runner, StepFault)
    assert (bad.iteration, bad.fault) == (3, 'nan_loss')
    spoiled = {
        name
        for name, value in bad.losses.items()
        if not torch.isfinite(torch.tensor(value))
    }
    assert spoiled == {'loss', *terms}
    assert hooks_on(runner.model) == 0


def test_a_loss_that_is_no_dict(tmp_path):
    class Plain(ToyModel):
        def train_step(self, data, optim_wrapper):
            loss = self(**data, mode='loss')
            optim_wrapper.update_params(loss)
            return dict(loss=loss)

        def forward(self, inputs, targets, mode='tensor'):
            return super().forward(inputs, targets, mode)['loss']

    runner = train(tmp_path, dict(kind='nan_loss', at=2), model=Plain())
    assert injected(runner) == [(2, 'nan_loss', 'loss', 'NaN')]
    assert step_faults(runner) == [(2, 'nan_loss')]


@pytest.mark.parametrize('nested', [False, True])
def test_input(tmp_path, nested):
    class Wrapping(nn.Module):
        def forward(self, data, training=False):
            imgs = data['inputs']
            inputs = dict(ids=torch.tensor([1]), imgs=(imgs,))
            return dict(inputs=inputs, targets=data['targets'])

    class Model(TermsModel):
        def __init__(self):
            super().__init__()
            if nested:
                self.data_preprocessor = Wrapping()

    runner = train(tmp_path, dict(kind='inf_input', at=3), model=Model())
    path = 'inputs.imgs[0]' if nested else 'inputs'
    assert injected(runner) == [(3, 'inf_input', path, 'Inf')]
    assert step_faults(runner) == [(3, 'nan_loss')]


def test_a_named_input_leaves_the_data_set_alone(tmp_path):
    fault = dict(kind='nan_input', input='targets', at=[2, 10])
    seen = []

    class Look(Hook):
        def after_train_iter(self, runner, batch_idx, data_batch, outputs):
            seen.append(data_batch['targets'].clone())

    runner = train(tmp_path, fault, max_iters=10, hooks=[Look()])
    assert [t[2] for t in injected(runner)] == ['targets', 'targets']
    assert all(torch.isfinite(targets).all() for targets in seen)


@pytest.mark.parametrize(
    ('fault', 'target', 'entry'),
    [
        (dict(kind='nan_weight', param='head.bias'), 'head.bias', None),
        (
            dict(kind='inf_buffer', buffer='body.1.running_mean'),
            'body.1.running_mean',
            None,
        ),
        (
            dict(kind='nan_state', param='head.bias'),
            'head.bias.exp_avg',
            'exp_avg',
        ),
        (
            dict(kind='inf_state', param='head.bias', entry='exp_avg_sq'),
            'head.bias.exp_avg_sq',
            'exp_avg_sq',
        ),
    ],
)
def test_poison(tmp_path, fault, target, entry):
    poison = []

    class Look(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            state = runner.model.state_dict()
            if entry:
                head = runner.model.head.bias
                state = {
                    f'head.bias.{key}': value
                    for key, value in runner.optim_wrapper.optimizer.state[
                        head
                    ].items()
                }
            poison.append(
                [k for k, v in state.items() if not torch.isfinite(v).all()]
            )

    runner = train(
        tmp_path,
        {**fault, 'at': 3},
        model=TermsModel(),
        max_iters=3,
        optim_wrapper=ADAM,
        hooks=[Look()],
    )
    assert poison == [[], [], [target]]
    assert [t[2] for t in injected(runner)] == [target]


def test_spikes_are_finite(tmp_path):
    plain = train(tmp_path / 'plain')
    runner = train(
        tmp_path / 'spiky',
        dict(kind='spike_loss', factor=100.0, at=2),
        dict(kind='spike_grad', param=HEAD, factor=50, at=4),
        dict(kind='spike_grad', at=5),
    )
    losses = {
        name: run.message_hub.get_scalar('train/loss').data[0].tolist()
        for name, run in (('plain', plain), ('spiky', runner))
    }
    assert losses['spiky'][0] == losses['plain'][0]
    assert losses['spiky'][1] == pytest.approx(100 * losses['plain'][1])
    assert injected(runner) == [
        (2, 'spike_loss', 'loss', '100.0'),
        (4, 'spike_grad', HEAD, '50'),
        (5, 'spike_grad', 'all', '1000.0'),
    ]
    assert is_finite(runner.model)


def test_one_micro_batch_of_a_window(tmp_path):
    runner = train(
        tmp_path,
        dict(kind='nan_loss', at=2),
        dict(kind='nan_grad', param=HEAD, at=5),
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            accumulative_counts=3,
            optimizer=dict(type='SGD', lr=0.1),
        ),
    )
    dropped, spoiled = events(runner, StepFault)
    assert (dropped.iteration, dropped.dropped_micro_batches) == (3, 1)
    assert (spoiled.iteration, spoiled.fault) == (6, 'nan_grad')
    assert [t[0] for t in injected(runner)] == [2, 5]


def test_fp16_takes_it_for_an_overflow(tmp_path):
    fault = dict(kind='inf_grad', param=HEAD, at=3)
    runner = train(tmp_path, fault, optim_wrapper=FP16)
    assert step_faults(runner) == [(3, 'overflow')]
    assert is_finite(runner.model)


class TwoSteps(ToyModel):
    """Steps two optimizers, and never calls itself."""

    def train_step(self, data, optim_wrapper):
        for wrapper in optim_wrapper.values():
            loss = self.forward(**data, mode='loss')['loss']
            wrapper.update_params(loss)
        return dict(loss=loss.detach())


def two_wrappers(model):
    parts = dict(body=model.net.backbone, head=model.net.head)
    return OptimWrapperDict(
        **{
            name: SafeOptimWrapper(torch.optim.SGD(part.parameters(), lr=0.1))
            for name, part in parts.items()
        }
    )


def test_several_optimizers(tmp_path):
    model = TwoSteps()
    runner = train(
        tmp_path,
        dict(kind='nan_grad', param=HEAD, at=2),
        dict(kind='oom', at=4),
        model=model,
        optim_wrapper=two_wrappers(model),
    )
    assert injected(runner) == [(2, 'nan_grad', HEAD, 'NaN')]
    assert [e.wrapper for e in events(runner, StepFault)] == ['head']
    # This model leaves out what the fault was to happen in.
    text = log_of(runner)
    assert 'iteration 4 had no place for faults[1] (oom: ' in text
    assert hooks_on(model) == 0


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize(
    ('fault', 'error', 'told'),
    [
        (dict(kind='oom'), OutOfMemoryError, {'oom'}),
        (dict(kind='exception'), InjectedError, {'exception'}),
        (dict(kind='exception', where='data'), InjectedError, {'exception'}),
        (dict(kind='nan_loss', term='x'), ConfigError, {'spike_loss'}),
        (dict(kind='inf_input', input='x'), ConfigError, set()),
    ],
)
def test_errors_leave_nothing_behind(tmp_path, fault, error, told, loop):
    runner = build(
        tmp_path,
        dict(kind='nan_grad', param='head.bias', at=3),
        dict(kind='spike_loss', at=3),
        {**fault, 'at': 3},
        model=TermsModel(),
        train_cfg=dict(type=LOOPS[loop], max_iters=6, val_interval=10**6),
    )
    with pytest.raises(error):
        runner.train()
    assert hooks_on(runner.model) == 0
    assert {kind for _, kind, _, _ in injected(runner)} == told


def test_a_run_that_goes_on_is_spared(tmp_path):
    faults = [
        dict(kind='exception', message='a\nb', at=4),
        dict(kind='nan_grad', param=HEAD, at=4),
    ]
    checkpoints = dict(
        checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False)
    )
    with pytest.raises(InjectedError, match='a\nb'):
        train(tmp_path, *faults, default_hooks=checkpoints)
    rest = train(
        tmp_path,
        *faults,
        load_from=str(tmp_path / 'iter_2.pth'),
        resume=True,
    )
    assert rest.iter == 6
    assert [t[:2] for t in injected(rest)] == [(4, 'nan_grad')]
    assert 'iteration 4 is spared exception' in log_of(rest)
    ledger = (tmp_path / 'injected_faults.rank0.txt').read_text()
    assert len(ledger.splitlines()) == 1


@pytest.mark.parametrize('where', ['forward', 'data'])
def test_signal(tmp_path, where):
    heard = []
    previous = signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
    try:
        runner = train(
            tmp_path,
            dict(kind='signal', signal='SIGUSR2', where=where, at=2),
        )
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert heard == [1]
    assert injected(runner) == [(2, 'signal', where, 'SIGUSR2')]


KILLED = """
import sys
from tests.hooks.test_fault_injector_hook import train
train(sys.argv[1], dict(kind='signal', signal='SIGKILL', at=3))
"""


def test_a_fatal_signal_is_recorded_first(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', KILLED, str(tmp_path)], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.rglob('events.jsonl')
    (fault,) = (e for e in read_events(path) if isinstance(e, InjectedFault))
    assert (fault.iteration, fault.value) == (3, 'SIGKILL')
    assert (tmp_path / 'injected_faults.rank0.txt').exists()


def test_a_hang_lasts_and_ctrl_c_ends_it(tmp_path):
    start = time.monotonic()
    train(tmp_path / 'a', dict(kind='hang', seconds=0.3, at=2))
    assert time.monotonic() - start > 0.3

    fault = dict(kind='hang', seconds=50, where='data', at=2)
    runner = build(tmp_path / 'b', fault)
    interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    assert time.monotonic() - start < 20
    assert injected(runner) == [(2, 'hang', 'data', '50')]


def test_hooks_hear_of_it(tmp_path):
    class Listener(Hook):
        def __init__(self):
            self.heard = []

        def after_fault_injected(self, runner, fault):
            self.heard.append((fault.iteration, fault.kind, fault.rank))

    listener = Listener()
    train(
        tmp_path,
        dict(kind='nan_loss', between=(2, 3)),
        hooks=[listener],
    )
    assert listener.heard == [(2, 'nan_loss', 0), (3, 'nan_loss', 0)]


def test_probability_is_the_same_after_a_resume(tmp_path):
    fault = dict(kind='nan_loss', probability=0.4, between=[2, 19])
    settings = dict(max_iters=20, seed=1)
    whole = injected(train(tmp_path / 'whole', fault, **settings))
    checkpoints = dict(
        checkpoint=dict(type='CheckpointHook', interval=10, by_epoch=False)
    )
    train(tmp_path / 'part', fault, default_hooks=checkpoints, **settings)
    rest = train(
        tmp_path / 'rest',
        fault,
        load_from=str(tmp_path / 'part' / 'iter_10.pth'),
        resume=True,
        **settings,
    )
    late = [t for t in whole if t[0] > 10]
    assert injected(rest) == late
    assert 0 < len(late) < len(whole)
    others = injected(train(tmp_path / 'other', fault, max_iters=20, seed=2))
    assert others != whole


def test_draws_are_even_and_independent():
    schedule = Schedule(probability=0.3)
    hits = [
        [i for i in range(4000) if schedule.is_due(i, rank, 0, index)]
        for rank, index in ((0, 0), (1, 0), (0, 1))
    ]
    for some in hits:
        assert len(some) == pytest.approx(1200, rel=0.1)
    common = len(set(hits[0]) & set(hits[1]))
    assert common == pytest.approx(360, rel=0.2)
    assert draw(1, 2) == draw(1, 2) != draw(2, 1)


def test_what_is_not_due_changes_nothing(tmp_path):
    plain = toy_runner(tmp_path / 'plain')
    plain.train()
    never = train(
        tmp_path / 'never',
        dict(kind='nan_weight', param=HEAD, at=7),
        dict(kind='oom', at=3, rank=[1, 2]),
    )
    assert_same(weights(never.model), weights(plain.model))
    text = log_of(never)
    assert 'THIS RUN IS BROKEN ON PURPOSE, by 2 fault(s), seed 0' in text
    assert (
        "[0] nan_weight: NaN in the weight 'net.head.weight', at iteration 7 "
        '(NEVER: the run ends with iteration 6)'
    ) in text
    assert 'at iteration 3, on ranks 1, 2 (NEVER: there are 1 rank(s)' in text
    assert list(never.hooks[0]._due) == []


def test_without_faults_it_is_silent(tmp_path):
    runner = toy_runner(tmp_path, hooks=[FaultInjectorHook()])
    runner.train()
    assert 'FaultInjectorHook: ' not in log_of(runner)


def test_refuses_without_enabled():
    with pytest.raises(ValueError, match='`faults` has 1 of them.*enabled=T'):
        FaultInjectorHook(faults=[dict(kind='oom', at=1)])


@pytest.mark.parametrize(
    ('fault', 'error', 'message'),
    [
        ('oom', TypeError, r"faults\[0\] must be a dict, got 'oom'"),
        (dict(at=1), ValueError, '`kind` is missing; it must be one of nan_'),
        (
            dict(kind='nan_gradient', at=1),
            ValueError,
            "'nan_gradient' is not there; close to it: 'nan_grad'.*one of",
        ),
        (dict(kind='oom'), ValueError, r'\(oom\): one of `at`, `between` and'),
        (dict(kind='oom', at=1, between=(1, 2)), ValueError, 'by itself'),
        (
            dict(kind='oom', at=0),
            ValueError,
            '`at` must be an int of at l.* 0',
        ),
        (dict(kind='oom', at=[]), ValueError, r'`at` must be .* got \[\]'),
        (dict(kind='oom', at=True), ValueError, '`at` must be .* got True'),
        (dict(kind='oom', at=1, rank=-1), ValueError, '`rank` must .* got -1'),
        (dict(kind='oom', between=3), ValueError, r'\(first, last\).* got 3'),
        (dict(kind='oom', between=(5, 4)), ValueError, r'got \(5, 4\)'),
        (
            dict(kind='oom', probability=0),
            ValueError,
            '`probability` .* got 0',
        ),
        (dict(kind='oom', probability='1'), ValueError, "got '1'"),
        (
            dict(kind='oom', at=1, param='a'),
            ValueError,
            r'\(oom\): no setting `param`; there is at, between',
        ),
        (
            dict(kind='nan_grad', at=1),
            ValueError,
            r'FaultInjectorHook: faults\[0\] \(nan_grad\): `param` is missing',
        ),
        (dict(kind='nan_grad', at=1, param=3), TypeError, '`param` .* got 3'),
        (
            dict(kind='nan_grad', at=1, param='('),
            ValueError,
            r"`param` '\(' is not a regular expression",
        ),
        (dict(kind='nan_buffer', at=1), ValueError, '`buffer` is missing'),
        (dict(kind='nan_loss', at=1, term=''), TypeError, "`term` .* got ''"),
        (dict(kind='nan_input', at=1, input=1), TypeError, '`input` .* got 1'),
        (
            dict(kind='nan_state', at=1, param='a', entry=1),
            TypeError,
            '`entry` must be a name, got 1',
        ),
        (dict(kind='spike_loss', at=1, factor=1), ValueError, 'above 1'),
        (
            dict(kind='spike_grad', at=1, factor=float('inf')),
            ValueError,
            '`factor` must be a finite number.*got inf',
        ),
        (dict(kind='hang', at=1), ValueError, '`seconds` is missing'),
        (dict(kind='hang', at=1, seconds=0), ValueError, '`seconds` .*got 0'),
        (
            dict(kind='hang', at=1, seconds=1, where='loss'),
            ValueError,
            "`where` must be one of .*got 'loss'",
        ),
        (
            dict(kind='signal', at=1, signal='SIGTREM'),
            ValueError,
            "'SIGTREM' is not there; close to it: 'SIGTERM'",
        ),
        (
            dict(kind='exception', at=1, message=1),
            TypeError,
            '`message` must be a str, got 1',
        ),
    ],
)
def test_bad_settings(fault, error, message):
    with pytest.raises(error, match=message):
        injector(fault)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(enabled=1), '`enabled` must be a bool, got 1'),
        (dict(seed=0.5), '`seed` must be an int, got 0.5'),
        (dict(faults=dict(kind='oom')), '`faults` must be a list of dicts'),
    ],
)
def test_bad_arguments(settings, message):
    with pytest.raises(TypeError, match=f'FaultInjectorHook: {message}'):
        FaultInjectorHook(**settings)


@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (
            dict(kind='nan_grad', param='net.heed.weight'),
            r"faults\[0\] \(nan_grad\): `param` 'net.heed.weight' is not "
            "there; close to it: 'net.head.weight'",
        ),
        (
            dict(kind='nan_weight', param='[0-9]+'),
            "is not there; there is 'net.backbone.weight', .*, ...",
        ),
        (dict(kind='nan_state', param='x'), "`param` 'x' is not there"),
        (dict(kind='nan_buffer', buffer='x'), 'there is nothing'),
    ],
)
def test_names_that_are_not_in_the_model(tmp_path, fault, message):
    runner = build(tmp_path, {**fault, 'at': 2})
    with pytest.raises(ConfigError, match=message):
        runner.train()


@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (dict(kind='nan_loss', term='loss_bax'), "close to it: 'loss_bbox'"),
        (dict(kind='nan_input', input='target'), "close to it: 'targets'"),
        (
            dict(kind='nan_state', param='head.bias', entry='exp'),
            "`entry` 'exp' is not there; close to it: 'exp_avg'",
        ),
    ],
)
def test_names_that_only_the_iteration_knows(tmp_path, fault, message):
    runner = build(
        tmp_path,
        {**fault, 'at': 2},
        model=TermsModel(),
        optim_wrapper=ADAM,
    )
    with pytest.raises(ConfigError, match=message):
        runner.train()


def test_inputs_that_cannot_hold_a_nan(tmp_path):
    class Bytes(ToyModel):
        def train_step(self, data, optim_wrapper):
            data = {key: value.byte() for key, value in data.items()}
            return super().train_step(data, optim_wrapper)

    runner = build(tmp_path, dict(kind='nan_input', at=1), model=Bytes())
    with pytest.raises(ConfigError, match='no floating-point tensor in inp'):
        runner.train()


def test_a_frozen_parameter_is_reported(tmp_path):
    model = ToyModel()
    model.net.head.weight.requires_grad_(False)
    fault = dict(kind='nan_grad', param=HEAD, at=2)
    runner = train(tmp_path, fault, model=model)
    assert injected(runner) == []
    assert 'iteration 2 had no place for faults[0]' in log_of(runner)


def test_every_kind_is_documented():
    for language in ('en', 'zh_cn'):
        page = Path(__file__).parents[2] / 'docs' / language
        text = (page / 'fault_injection.md').read_text(encoding='utf-8')
        for kind, (action, _) in KINDS.items():
            assert f'`{kind}`' in text
            for field in KINDS[kind].settings():
                assert f'`{field.name}`' in text, (action, field.name)


def on_one_rank(rank, folder):
    from mmengine.model import MMDistributedDataParallel

    runner = build(
        folder,
        dict(kind='nan_grad', param=HEAD, at=2, rank=1),
        dict(kind='nan_loss', at=4, rank=0),
        dict(kind='nan_input', at=5, rank=[1]),
        launcher='none',
        model=MMDistributedDataParallel(ToyModel()),
    )
    runner.train()
    assert is_finite(runner.model)
    assert hooks_on(runner.model) == 0
    # All ranks leave out the same steps.
    assert runner.optim_wrapper.skipped_steps == 3


@pytest.mark.dist
def test_only_on_the_chosen_rank(tmp_path):
    run_ranks(on_one_rank, tmp_path)
    found = []
    for path in tmp_path.rglob('events*.jsonl'):
        for event in read_events(path):
            if isinstance(event, InjectedFault):
                found.append((event.rank, event.iteration, event.kind))
    assert sorted(found) == [
        (0, 4, 'nan_loss'),
        (1, 2, 'nan_grad'),
        (1, 5, 'nan_input'),
    ]
