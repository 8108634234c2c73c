"""Steps far above all before: held, repeated, and judged by the answer."""

from __future__ import annotations

import copy

import pytest
import torch
from mmengine.optim import OptimWrapperDict

from mmstable import SafeOptimWrapper
from mmstable.events import Action, Fault
from mmstable.report import read_events
from tests.guard.runs import CAREFUL, FUSED, SPIKES, Jump, run, stopped
from tests.loops.runs import log_of
from tests.toys import (
    Sabotage,
    ToyData,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)

LOGGER = dict(type='mmstable.GradNanLoggerHook')
LOOP = dict(type='mmstable.SafeIterBasedTrainLoop', val_interval=10**6)
ASKS = dict(spike=SPIKES)
SKIPS = dict(spike=SPIKES, actions=dict(spike='skip'))
ACCUMULATES = dict(CAREFUL, accumulative_counts=2)


def ask(folder, faults=(), wrapper=CAREFUL, iters=12, **kwargs):
    loop = dict(LOOP, max_iters=iters)
    return run(folder, ASKS, faults, wrapper, iters, train_cfg=loop, **kwargs)


def events(folder):
    (path,) = folder.glob('*/stability/events.jsonl')
    return [e for e in read_events(path) if e.event == 'held_step']


class Once(Sabotage):
    """A fault that is gone when the step is repeated."""

    def __init__(self, at, where='loss', factor=1e3) -> None:
        super().__init__()
        self.at, self.where, self.factor = at, where, factor

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 not in self.at:
            return
        model = runner.model
        if self.where == 'loss':

            def spoil(*args):
                handle.remove()
                return {k: v * self.factor for k, v in args[2].items()}

            handle = model.register_forward_hook(spoil)
        else:

            def enlarge(grad):
                handle.remove()
                return grad * self.factor

            handle = model.net.head.weight.register_hook(enlarge)


@pytest.mark.parametrize('where', ['loss', 'gradient'])
@pytest.mark.parametrize(
    'wrapper',
    [CAREFUL, FUSED, ACCUMULATES],
    ids=['plain', 'fused', 'accumulation'],
)
def test_a_fault_of_the_machine_is_skipped(tmp_path, wrapper, where):
    runner = ask(tmp_path, [Once([11], where), LOGGER], wrapper, 12)
    (bad,) = runner.diary.bad
    assert (bad.fault, bad.skipped) == (Fault.TRANSIENT, True)
    (held,) = events(tmp_path)
    assert held.verdict == 'transient'
    assert held.again < held.value / 100
    before, after = (10, 12) if wrapper is ACCUMULATES else (10, 11)
    assert_same(runner.diary.states[after], runner.diary.states[before])
    text = log_of(runner)
    assert 'transient fault, step skipped' in text
    assert 'mmstable doctor' not in text


def test_the_second_one_advises_a_test_of_the_machine(tmp_path):
    runner = ask(tmp_path, [Once([8, 11])])
    assert runner.optim_wrapper.skipped_steps == 2
    assert log_of(runner).count('mmstable doctor') == 1
    assert runner.diary.done == []


@pytest.mark.parametrize(
    'wrapper', [CAREFUL, ACCUMULATES], ids=['plain', 'accumulation']
)
def test_the_same_again_is_applied_as_in_stock(tmp_path, wrapper):
    jump = [Jump([11, 12], 30.0)]
    runner = ask(tmp_path / 'a', jump, wrapper, 16)
    stock = toy_runner(
        tmp_path / 'b', dict(wrapper, type='OptimWrapper'), 16, jump
    )
    stock.train()
    assert_same(weights(runner.model), weights(stock.model))
    assert_same(
        runner.optim_wrapper.optimizer.state_dict()['state'],
        stock.optim_wrapper.optimizer.state_dict()['state'],
    )
    (held,) = events(tmp_path / 'a')
    assert held.verdict == 'reproducible'
    assert held.again == pytest.approx(held.value)
    assert runner.optim_wrapper.skipped_steps == 0
    assert runner.diary.done == runner.diary.bad == []
    assert ', again ' in log_of(runner)


class Counting(ToyModel):
    """Every eighth step has another objective."""

    def __init__(self, counter) -> None:
        super().__init__()
        self.calls, self.seen = 0, []
        self.register_buffer('number', torch.zeros((), dtype=torch.long))
        self.counter = counter

    def forward(self, *args, **kwargs):
        losses = super().forward(*args, **kwargs)
        if self.counter == 'number':
            self.calls += 1
            count = self.calls
        elif self.counter == 'list':
            self.seen.append(0)
            count = len(self.seen)
        else:
            self.number += 1
            count = int(self.number)
        factor = 100.0 if count % 8 == 0 else 1.0
        return {k: v * factor for k, v in losses.items()}


@pytest.mark.parametrize('counter', ['number', 'list', 'buffer'])
def test_a_model_that_counts_its_steps_is_not_misjudged(tmp_path, counter):
    runner = ask(tmp_path, model=Counting(counter), iters=20)
    assert runner.optim_wrapper.skipped_steps == 0
    (held,) = events(tmp_path)
    # A plain number is rewound; nobody knows what a list was before.
    is_rewound = counter == 'number'
    assert held.verdict == ('reproducible' if is_rewound else 'not_asked')
    assert is_rewound or 'a step changes' in held.reason


class Own(ToyModel):
    """Draws from a source that is no generator of torch."""

    def __init__(self) -> None:
        super().__init__()
        numbers = iter(([1.0] * 8 + [1e3, 1.0, 50.0]) * 9)
        # As it is, an iterator keeps a step from being repeated.
        self.draw = numbers.__next__

    def forward(self, *args, **kwargs):
        losses = ToyModel.forward(self, *args, **kwargs)
        factor = self.draw()
        return {k: v * factor for k, v in losses.items()}


def test_what_is_not_deterministic_is_applied(tmp_path):
    runner = ask(tmp_path, model=Own(), iters=9)
    assert runner.optim_wrapper.skipped_steps == 0
    (held,) = events(tmp_path)
    assert held.reason == 'it gives something else every time'


class Changing(ToyModel):
    """Writes to its batch: a repeated step would not have the same."""

    def forward(self, inputs, targets, mode='tensor'):
        losses = super().forward(inputs, targets, mode)
        targets.mul_(0.001)
        return losses


def test_a_batch_that_a_step_changes_is_not_asked_about(tmp_path):
    class Far(ToyData):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            if index == 15:
                sample['targets'] = sample['targets'] + 1e3
            return sample

    runner = ask(
        tmp_path,
        model=Changing(),
        train_dataloader=torch.utils.data.DataLoader(Far(), batch_size=2),
        iters=8,
    )
    assert runner.optim_wrapper.skipped_steps == 0
    (held,) = events(tmp_path)
    assert (held.verdict, held.samples) == ('not_asked', ())
    assert 'batch' in held.reason


def test_the_sample_is_named(tmp_path):
    class Far(ToyData):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            factor = 1e3 if index == 13 else 1.0
            return dict(
                inputs=sample['inputs'],
                targets=sample['targets'] * factor,
                img_path=f'{index}.png',
            )

    class Named(ToyModel):
        def forward(self, inputs, targets, img_path=None, mode='tensor'):
            return super().forward(inputs, targets, mode)

    runner = ask(
        tmp_path,
        model=Named(),
        train_dataloader=torch.utils.data.DataLoader(Far(), batch_size=2),
        iters=8,
    )
    (held,) = events(tmp_path)
    assert held.verdict == 'reproducible'
    assert held.samples == ('img_path=13.png',)
    assert 'sample img_path=13.png; applied' in log_of(runner)


def test_one_percent_of_the_iterations_are_repeated(tmp_path):
    """Each jump is 60 times the last: 12 within 1000 iterations."""

    class Higher(Jump):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            self.factor = 60.0 ** ((runner.iter + 1) // 10)
            super().before_train_iter(runner, batch_idx, data_batch)

    wrapper = dict(CAREFUL, optimizer=dict(type='SGD', lr=1e-30))
    runner = ask(tmp_path, [Higher(range(10, 130, 10))], wrapper, iters=130)
    verdicts = [held.verdict for held in events(tmp_path)]
    assert verdicts == ['reproducible'] * 10 + ['not_asked'] * 2
    assert runner.optim_wrapper.applied_steps == 130


def test_a_stock_loop_is_not_asked(tmp_path):
    runner = run(tmp_path, ASKS, [Once([10])], CAREFUL, iters=11)
    assert runner.optim_wrapper.skipped_steps == 0
    (held,) = events(tmp_path)
    assert held.reason == 'the train loop is not one of mmstable'


def test_a_spike_can_be_skipped_by_choice(tmp_path):
    faults = [Jump([10]), LOGGER]
    runner = run(tmp_path, SKIPS, faults, CAREFUL, iters=11)
    (done,) = runner.diary.done
    assert (done.iteration, done.fault, done.action) == (
        10,
        Fault.SPIKE,
        Action.SKIP,
    )
    (bad,) = runner.diary.bad
    assert (bad.fault, bad.skipped) == (Fault.SPIKE, True)
    assert bad.loss > 100
    assert_same(runner.diary.states[10], runner.diary.states[9])
    text = log_of(runner)
    assert 'Iter 10: spike: grad_norm jumped to ' in text
    assert 'Iter 10: spike (loss ' in text


def test_a_spike_can_be_a_mere_warning(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='warn'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=11)
    assert {(d.iteration, d.fault, d.action) for d in runner.diary.done} == {
        (10, Fault.SPIKE, Action.WARN)
    }
    assert runner.diary.bad == []


def test_spikes_of_a_stock_wrapper_are_reported(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='warn'))
    stock = dict(CAREFUL, type='OptimWrapper')
    runner = run(tmp_path, guard, [Jump([10])], stock, iters=14)
    (done,) = runner.diary.done
    assert (done.subject, done.action) == ('grad_norm', Action.WARN)
    assert 'backward' not in vars(runner.optim_wrapper)


@pytest.mark.parametrize('wrapper', [CAREFUL, FUSED], ids=['plain', 'fused'])
def test_a_healthy_run_is_the_same_with_the_default_guard(tmp_path, wrapper):
    def train(folder, hooks):
        runner = toy_runner(
            tmp_path / folder, copy.deepcopy(wrapper), 150, hooks
        )
        runner.train()
        assert runner.optim_wrapper.skipped_steps == 0
        return weights(runner.model)

    guard = dict(type='mmstable.DivergenceGuardHook')
    assert_same(train('with', [guard]), train('without', []))


def test_the_limits_are_known_after_a_resume(tmp_path):
    run(
        tmp_path,
        SKIPS,
        wrapper=CAREFUL,
        iters=10,
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=10, by_epoch=False)
        ),
    )
    runner = run(
        tmp_path / 'rest',
        SKIPS,
        [Jump([11])],
        CAREFUL,
        iters=12,
        load_from=str(tmp_path / 'iter_10.pth'),
        resume=True,
    )
    assert [d.iteration for d in runner.diary.done] == [11]


class Adversaries(ToyModel):
    """Losses a million times apart, stepped at different rates.

    Args:
        jumps (dict): Iteration to the part whose loss jumps in it.
    """

    def __init__(self, jumps) -> None:
        super().__init__()
        self.jumps, self.count = jumps, 0

    def train_step(self, data, optim_wrapper):
        self.count += 1
        data = self.data_preprocessor(data, True)
        for name, level in (('disc', 1e3), ('gen', 1e-3), ('gen', 1e-3)):
            if name == 'disc' and self.count % 2:
                continue
            wrapper = optim_wrapper[name]
            with wrapper.optim_context(self):
                loss = self(**data, mode='loss')['loss'] * level
            if self.jumps.get(self.count) == name:
                loss = loss * 1e4
            wrapper.update_params(loss)
            optim_wrapper.zero_grad()
            if name == 'disc':
                shown = loss.detach()
        return {} if self.count % 2 else dict(loss=shown)

    def wrappers(self):
        return OptimWrapperDict(
            disc=SafeOptimWrapper(
                torch.optim.SGD(self.net.head.parameters(), lr=1e-6)
            ),
            gen=SafeOptimWrapper(
                torch.optim.SGD(self.net.backbone.parameters(), lr=1e-2)
            ),
        )


@pytest.mark.parametrize('wrong', ['', 'disc', 'gen'])
def test_two_wrappers_have_levels_of_their_own(tmp_path, wrong):
    model = Adversaries({40: wrong})
    runner = toy_runner(
        tmp_path,
        model.wrappers(),
        45,
        [
            dict(type='mmstable.DivergenceGuardHook', **SKIPS),
            dict(type='mmstable.EventLogHook'),
            LOGGER,
        ],
        model=model,
    )
    runner.train()
    skipped = {
        name: wrapper.skipped_steps
        for name, wrapper in runner.optim_wrapper.items()
    }
    wanted = {'disc': 1, 'gen': 2}
    assert skipped == {
        name: count if name == wrong else 0 for name, count in wanted.items()
    }
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    told = [
        e
        for e in read_events(path)
        if e.event in ('intervention', 'step_fault')
    ]
    assert {e.fault for e in told} == ({Fault.SPIKE} if wrong else set())
    if wrong:
        assert f'Iter 40 [{wrong}]: spike (loss ' in log_of(runner)
        assert f'spike: {wrong}/grad_norm jumped to ' in log_of(runner)


HUGE = {6: ('net.head.weight', 1e25)}
ADAM = dict(type='AdamW', lr=0.01)


@pytest.mark.parametrize('at', [1, 6])
@pytest.mark.parametrize('fused', [False, True])
def test_squares_that_overflow_the_optimizer_are_a_spike(tmp_path, fused, at):
    runner = run(
        tmp_path,
        faults=[Sabotage(grads={at: HUGE[6]})],
        wrapper=dict(CAREFUL, optimizer=dict(ADAM, fused=fused)),
        iters=8,
    )
    (bad,) = runner.diary.bad
    assert (bad.iteration, bad.fault, bad.skipped) == (at, Fault.SPIKE, True)
    assert bad.grad_norm == pytest.approx(1e25)
    optimizer = runner.optim_wrapper.optimizer
    for state in optimizer.state.values():
        assert state['exp_avg_sq'].isfinite().all()
    if at > 1:
        assert_same(runner.diary.states[at], runner.diary.states[at - 1])


@pytest.mark.parametrize(
    'settings',
    [
        dict(optimizer=dict(type='SGD', lr=1e-30)),
        dict(optimizer=ADAM, clip_grad=dict(max_norm=1.0)),
        dict(optimizer=ADAM, clip_grad=dict(type='value', clip_value=1.0)),
    ],
    ids=['no_squares', 'clipped', 'clipped_by_value'],
)
def test_huge_gradients_that_do_no_harm_are_applied(tmp_path, settings):
    runner = run(
        tmp_path,
        faults=[Sabotage(grads=HUGE)],
        wrapper=dict(CAREFUL, **settings),
        iters=8,
    )
    assert runner.optim_wrapper.applied_steps == 8


def test_steps_that_the_optimizer_can_never_hold_end_the_run(tmp_path):
    huge = dict.fromkeys(range(4, 99), HUGE[6])
    error = stopped(
        tmp_path,
        dict(max_rollbacks=1),
        [Sabotage(grads=huge)],
        wrapper=dict(CAREFUL, optimizer=ADAM),
    )
    assert 'because of spike since iteration ' in str(error)
