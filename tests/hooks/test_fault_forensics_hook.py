"""When a bad step is examined, and what is said of it."""

from __future__ import annotations

from collections import Counter

import psutil
import pytest
import torch
from mmengine.hooks import Hook
from torch.utils._python_dispatch import TorchDispatchMode

from mmstable import Culprit, FaultForensicsHook
from mmstable.events import Fault
from mmstable.events.records import FaultExplained, Poisoned
from mmstable.forensics import explain
from mmstable.report import read_events
from tests.forensics.planted_cases import CASES, Findings, build_runner
from tests.forensics.runs import HOOK, SGD, BadData, run
from tests.loops.runs import iter_loop, log_of
from tests.toys import INF, NAN, Sabotage, ToyModel, toy_runner

LOOPS = pytest.mark.parametrize(
    'loop',
    [iter_loop(6), dict(by_epoch=False, max_iters=6, val_interval=10**6)],
    ids=['safe', 'stock'],
)


@LOOPS
def test_bad_data_is_named_in_every_loop(tmp_path, loop):
    _, (found,) = run(tmp_path, BadData(3), train_cfg=loop)
    assert (found.iteration, found.fault) == (3, Fault.NAN_LOSS)
    assert (found.verdict, found.source) == ('bad_input', 'batch')
    assert (found.name, found.samples) == ('inputs', (1,))
    assert found.notes == ()


def test_log_and_event_file_have_it(tmp_path):
    runner, (found,) = run(
        tmp_path, BadData(3), dict(type='mmstable.EventLogHook')
    )
    begin = 'Iter 3: NaN was in the batch: inputs before the step'
    log = log_of(runner)
    first, verdict, bundle, *_ = log[log.index(begin) :].splitlines()
    assert verdict.startswith('Verdict: bad input data. inputs holds')
    assert bundle.endswith(f'mmstable replay {found.bundle} --trust-config')
    assert found.text.splitlines() == [first, verdict]
    path = next(tmp_path.glob('*/stability/events.jsonl'))
    events = list(read_events(path))
    assert found in events
    kinds = [one.event for one in events]
    assert kinds.index('step_fault') < kinds.index('fault_explained')


def test_the_same_verdict_is_said_again(tmp_path):
    grads = dict.fromkeys((3, 4), ('net.head.bias', NAN))
    runner, _ = run(tmp_path, Sabotage(grads=grads))
    assert log_of(runner).count('Verdict: not reproducible') == 2


def test_it_speaks_chinese(tmp_path):
    runner, _ = run(tmp_path, BadData(3), settings=dict(lang='zh_cn'))
    log = log_of(runner)
    assert 'Iter 3: 此步之前批数据 inputs 中已有 NaN' in log
    assert '结论：输入数据异常' in log


def test_so_many_are_examined_and_no_more(tmp_path):
    _, found = run(
        tmp_path, BadData(2, 3, 4, 5), settings=dict(max_per_fault=2)
    )
    assert [one.iteration for one in found] == [2, 3]
    _, found = run(
        tmp_path / 'none', BadData(2), settings=dict(max_per_fault=0)
    )
    assert found == []


def test_a_resumed_run_remembers_how_many(tmp_path):
    first, _ = run(tmp_path, BadData(2, 3))
    hook = next(h for h in first.hooks if isinstance(h, FaultForensicsHook))
    assert hook.state_dict() == {'explained': {'nan_loss': 2}}
    again = FaultForensicsHook(max_per_fault=2)
    again.load_state_dict(hook.state_dict())
    runner = toy_runner(
        tmp_path / 'more', hooks=[BadData(4), again], train_cfg=iter_loop(5)
    )
    runner.train()
    assert again.state_dict() == hook.state_dict()


AMP = dict(
    type='mmstable.SafeAmpOptimWrapper', loss_scale=1024.0, optimizer=SGD
)


class Steep(ToyModel):
    """Its gradients are too large for float16 at any scale above 1."""

    def forward(self, inputs, targets, mode='tensor'):
        outputs = self.net(inputs)
        return dict(loss=(outputs * 3e4).float().mean())


def test_a_streak_of_overflows_is_examined_once(tmp_path):
    kwargs = dict(optim_wrapper=AMP, model=Steep())
    _, (found,) = run(tmp_path, settings=dict(overflow_streak=3), **kwargs)
    assert (found.iteration, found.fault) == (3, Fault.OVERFLOW)
    assert (found.verdict, found.phase) == ('fp16_overflow', 'backward')
    assert 'with loss_scale 256' in found.text
    assert found.largest > 65504


def test_a_single_overflow_is_not_worth_it(tmp_path):
    _, found = run(
        tmp_path,
        Sabotage(grads={3: ('net.head.weight', INF)}),
        optim_wrapper=AMP,
    )
    assert found == []


def test_what_cannot_be_repeated_is_said(tmp_path):
    _, (found,) = run(tmp_path, Sabotage(grads={3: ('net.head.bias', NAN)}))
    assert found.verdict == 'not_reproduced'
    assert (found.op, found.samples, found.source) == ('', (), '')
    assert '`mmstable doctor`' in found.text


WINDOW = dict(
    type='mmstable.SafeOptimWrapper', optimizer=SGD, accumulative_counts=3
)


@LOOPS
@pytest.mark.parametrize('bad', [4, 5, 6])
def test_any_batch_of_a_window_is_found(tmp_path, loop, bad):
    _, (found,) = run(
        tmp_path, BadData(bad), optim_wrapper=WINDOW, train_cfg=loop
    )
    assert (found.iteration, found.verdict) == (6, 'bad_input')
    assert found.samples == (1,)
    # The rest of the window made a step.
    assert 'weights after the step' in found.text


def test_stock_wrappers_are_explained_as_far_as_possible(tmp_path):
    _, found = run(
        tmp_path,
        BadData(3),
        optim_wrapper=dict(type='OptimWrapper', optimizer=SGD),
    )
    assert [one.verdict for one in found][:1] == ['bad_weights']
    assert found[0].since == 3
    assert 'weights after the step' in found[0].text
    assert [one.iteration for one in found] == [3, 4, 5, 6]


def test_a_poisoned_state_is_named(tmp_path):
    class Poison(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter == 3:
                runner.model.net.head.bias.data[0] = INF

    runner, found = run(
        tmp_path,
        Poison(),
        settings=dict(max_per_fault=1),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=4, by_epoch=False
            )
        ),
    )
    (one,) = (one for one in found if one.fault is Fault.POISONED)
    assert (one.verdict, one.name) == ('bad_weights', 'net.head.bias')
    assert one.text.startswith('Iter 4: Inf in parameter net.head.bias')


def test_what_is_poisoned_may_be_no_tensor_of_the_model(tmp_path):
    runner = toy_runner(tmp_path)
    culprit = explain.explain_poison(
        runner,
        Poisoned(
            4, 0.0, (Culprit('optimizer.state.0.momentum_buffer', 'NaN'),)
        ),
    )
    assert culprit.event.name == 'optimizer.state.0.momentum_buffer'


class Once(ToyModel):
    """Cannot be run a second time on bad data."""

    def forward(self, inputs, targets, mode='tensor'):
        is_bad = not inputs.isfinite().all()
        if (
            is_bad
            and torch.utils._python_dispatch._get_current_dispatch_mode()
        ):
            raise RuntimeError('not again')
        return super().forward(inputs, targets, mode)


def test_a_replay_that_fails_does_not_end_the_run(tmp_path):
    runner, (found,) = run(tmp_path, BadData(3), model=Once())
    assert found.verdict == 'not_examined'
    assert 'the replay failed: RuntimeError: not again' in found.text
    assert runner.iter == 6


def test_time_is_bounded(tmp_path):
    _, (found,) = run(tmp_path, BadData(3), settings=dict(max_seconds=1e-9))
    assert found.verdict == 'not_examined'
    assert 'takes more than 1e-09 s' in found.text


def test_memory_is_bounded(tmp_path, monkeypatch):
    machine = psutil.virtual_memory()._replace(available=100)
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: machine)
    _, (found,) = run(tmp_path, BadData(3))
    assert found.verdict == 'not_examined'
    assert 'does not fit twice' in found.text


def test_a_bundle_that_cannot_be_written_is_no_reason_to_stop(tmp_path):
    class Block(Hook):
        def before_train(self, runner):
            folder = tmp_path / runner.timestamp / 'stability'
            folder.mkdir(parents=True)
            (folder / 'faults').write_text('in the way')

    runner, (found,) = run(tmp_path, Block(), BadData(3))
    assert (found.verdict, found.bundle) == ('bad_input', None)
    assert runner.iter == 6


def test_no_bundle_if_not_wanted(tmp_path):
    _, (found,) = run(tmp_path, BadData(3), settings=dict(max_bundle_size=0))
    assert found.bundle is None
    assert not list(tmp_path.glob('**/faults'))


def test_a_compiled_model_is_replayed_as_it_was_written(tmp_path):
    class Compiled(Hook):
        def before_train(self, runner):
            # As mmengine does for `compile=True`.
            model = runner.model
            model.forward = torch.compile(model.forward, backend='eager')

    _, (found,) = run(tmp_path, Compiled(), BadData(3))
    assert found.verdict == 'bad_input'
    assert found.notes == ('replayed without torch.compile',)


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


@LOOPS
def test_a_healthy_run_dispatches_nothing_more(tmp_path, loop):
    def count(name, hooks):
        runner = toy_runner(tmp_path / name, hooks=hooks, train_cfg=loop)
        with Count() as mode:
            runner.train()
        return mode.calls

    listener = [dict(type='mmstable.EventLogHook')]
    assert count('a', [*listener, HOOK]) == count('b', listener)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(max_per_fault=-1), '`max_per_fault` must be an int of at least'),
        (dict(overflow_streak=0), '`overflow_streak` must be an int of at'),
        (dict(max_seconds=0), '`max_seconds` must be a finite number above 0'),
        (dict(max_bundle_size=-1), '`max_bundle_size` must be a finite numb'),
        (dict(lang='fr'), '`lang` must be'),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=f'FaultForensicsHook: {message}'):
        FaultForensicsHook(**settings)


def test_one_iteration_is_examined_once(tmp_path):
    (case,) = (case for case in CASES if 'GAN' in case.name)
    findings = Findings()
    runner = build_runner(case, tmp_path, [HOOK, findings])
    model = runner.model

    class Both(type(model)):
        def judge(self, fake, flag):
            return super().judge(fake, flag)

        def train_step(self, data, optim_wrapper):
            data['inputs'] = [x * NAN for x in data['inputs']]
            return super().train_step(data, optim_wrapper)

    model.__class__ = Both
    runner.train()
    assert all(isinstance(one, FaultExplained) for one in findings.found)
    assert [one.iteration for one in findings.found] == [1, 2, 3]
