"""Which part of the loss was not finite."""

from __future__ import annotations

import pytest
import torch

from mmstable.events import Fault
from tests.loops.runs import iter_loop
from tests.toys import NAN, ToyModel, toy_runner


class TwoLosses(ToyModel):
    """Two terms, one of which is spoiled in some iterations."""

    def __init__(self, bad=()) -> None:
        super().__init__()
        self.bad, self.count = bad, 0

    def forward(self, inputs, targets, mode='tensor'):
        self.count += 1
        error = self.net(inputs) - targets
        factor = NAN if self.count in self.bad else 1.0
        return dict(
            loss_cls=error.square().mean(),
            loss_bbox=[error.abs().mean() * factor],
            acc=torch.tensor(NAN),
        )


def reports(tmp_path, bad, counts=1, train_cfg=None, hook='GradNanLoggerHook'):
    runner = toy_runner(
        tmp_path,
        dict(
            type='mmstable.SafeOptimWrapper',
            accumulative_counts=counts,
            optimizer=dict(type='SGD', lr=0.1),
        ),
        model=TwoLosses(bad),
        hooks=[dict(type=f'mmstable.{hook}')],
        **({} if train_cfg is None else dict(train_cfg=train_cfg)),
    )
    seen = []
    original = runner.call_hook

    def call_hook(stage, **kwargs):
        original(stage, **kwargs)
        if stage == 'after_train_iter':
            seen.append(runner.optim_wrapper.last_step)

    runner.call_hook = call_hook
    runner.train()
    return seen


@pytest.mark.parametrize('loop', [None, iter_loop(6)])
@pytest.mark.parametrize('hook', ['GradNanLoggerHook', 'EventLogHook'])
def test_the_bad_term_is_named(tmp_path, loop, hook):
    seen = reports(tmp_path, bad=[3], train_cfg=loop, hook=hook)
    assert seen[2].fault is Fault.NAN_LOSS
    assert seen[2].loss_terms == ('loss_bbox',)
    assert all(one.loss_terms == () for one in seen[:2] + seen[3:])


def test_a_term_of_an_earlier_iteration_of_the_window_is_named(tmp_path):
    seen = reports(tmp_path, bad=[1], counts=3)
    assert seen[2].applied
    assert seen[2].dropped_micro_batches == 1
    assert seen[2].loss_terms == ('loss_bbox',)
    assert seen[5].loss_terms == ()


def test_a_naming_is_not_a_step(tmp_path):
    runner = toy_runner(tmp_path, model=TwoLosses([2]))
    runner.train()
    wrapper = runner.optim_wrapper
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (5, 1)


def test_a_single_loss_has_its_own_name(tmp_path):
    class Single(ToyModel):
        def forward(self, inputs, targets, mode='tensor'):
            return dict(loss=self.net(inputs).mean() * NAN)

    runner = toy_runner(
        tmp_path,
        model=Single(),
        max_iters=1,
        hooks=[dict(type='mmstable.GradNanLoggerHook')],
    )
    runner.train()
    assert runner.optim_wrapper.last_step.loss_terms == ('loss',)


def test_the_log_names_it(tmp_path):
    reports(tmp_path, bad=[3])
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert 'Iter 3: loss is NaN or Inf (loss_bbox), step skipped' in log
