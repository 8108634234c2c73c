"""A line about a bad step, from its report alone."""

import pytest

from mmstable.events import Culprit, Fault, Origin, Outcome, StepReport
from mmstable.events.step_lines import describe_step
from mmstable.messages import use_language

STEP = dict(iteration=7, time=0.0)
SKIPPED = dict(STEP, outcome=Outcome.SKIPPED)
HEAD = Culprit('head.weight', 'NaN')


@pytest.mark.parametrize(
    ('report', 'line'),
    [
        (
            dict(SKIPPED, fault=Fault.NAN_GRAD, culprits=(HEAD,)),
            "Iter 7: gradient of 'head.weight' is NaN (1 parameter in 1 "
            'module), step skipped, loss_scale stays 1.0',
        ),
        (
            dict(
                SKIPPED,
                fault=Fault.OVERFLOW,
                culprits=(Culprit('a.w', 'Inf'), Culprit('a.b', 'Inf'))
                + (Culprit('b.w', 'Inf'), Culprit('c.w', 'Inf')),
                loss_scale=8.0,
                next_loss_scale=4.0,
            ),
            "Iter 7: gradients of 'a.w', 'b.w' are Inf (4 parameters in 3 "
            'modules, no NaN), step skipped, loss_scale 8.0 -> 4.0',
        ),
        (
            dict(
                STEP,
                outcome=Outcome.APPLIED,
                fault=Fault.NAN_LOSS,
                loss_terms=('loss_bbox', 'loss_cls'),
                dropped_micro_batches=2,
            ),
            'Iter 7: loss is NaN or Inf (loss_bbox, loss_cls) in 2 '
            'micro-batches, dropped from the step, loss_scale stays 1.0',
        ),
        (
            dict(SKIPPED, fault=Fault.SPIKE, grad_norm=12345.678),
            'Iter 7: spike (gradient norm 1.235e+04), step skipped, '
            'loss_scale stays 1.0',
        ),
        (
            dict(
                SKIPPED,
                fault=Fault.NAN_LOSS,
                loss_terms=('loss',),
                origins=(
                    Origin(1, 'node7', 'cuda:1', 'reduced_gradient'),
                    Origin(2, 'node7', 'cuda:2', 'loss'),
                ),
                copied_from=0,
            ),
            'Iter 7: loss is NaN or Inf, step skipped, loss_scale stays 1.0; '
            'began on rank 1 (node7, cuda:1, after the all-reduce) and 1 '
            'other rank; it had missed the update before, and now has the '
            'state of rank 0',
        ),
    ],
)
def test_english(report, line):
    found = describe_step('Iter 7', StepReport(**report), True, max_names=2)
    assert found == line


def test_chinese():
    use_language('zh_cn')
    report = StepReport(
        **STEP,
        outcome=Outcome.APPLIED,
        fault=Fault.NAN_GRAD,
        culprits=(HEAD,),
        origins=(Origin(1, 'node7', 'cuda:1', 'gradient'),),
    )
    assert describe_step('Iter 7 [gen]', report, False, 3) == (
        "Iter 7 [gen]: 检测到参数 'head.weight' 的梯度为 NaN（1 个模块中共 "
        '1 个参数），权重已被异常梯度更新。未使用 loss_scale；源自 rank 1'
        '（node7，cuda:1）'
    )
