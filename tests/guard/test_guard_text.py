"""What the guard says, from what it has done alone."""

import pytest

from mmstable.events import Action, Fault, Intervention
from mmstable.guard.report import (
    ConfiguredRate,
    describe_intervention,
    describe_stop,
    give_advice,
)
from mmstable.messages import use_language


def done(action, **facts):
    return Intervention(
        iteration=9,
        time=0.0,
        action=action,
        fault=Fault.SPIKE,
        reason='loss jumped',
        since=8,
        **facts,
    )


@pytest.mark.parametrize(
    ('action', 'recovery', 'end'),
    [
        (Action.WARN, 0, '; reported only'),
        (Action.SKIP, 0, ', step skipped'),
        (Action.LOWER_LR, 0, '; learning rate x 0.5'),
        (
            Action.LOWER_LR,
            100,
            '; learning rate x 0.5, back to 1 in 100 iterations',
        ),
    ],
)
def test_every_line_says_what_was_done(action, recovery, end):
    line = describe_intervention(done(action, lr_factor=0.5), 1, 3, recovery)
    assert line == f'Iter 9: spike: loss jumped{end}'


@pytest.mark.parametrize(
    ('source', 'where'),
    [('memory', 'in memory'), ('a/iter_4.pth', 'a/iter_4.pth')],
)
def test_a_rollback_says_where_to(source, where):
    facts = dict(restored=4, source=source, lr_factor=0.5)
    line = describe_intervention(done(Action.ROLLBACK, **facts), 2, 3, 0)
    assert line == (
        'Iter 9: spike: loss jumped. Rolled back to the state of iteration 4 '
        f'({where}), resumed with the next batch; learning rate x 0.5. '
        'Rollback 2 of 3'
    )


@pytest.mark.parametrize(
    'fault', [fault for fault in Fault if fault is not Fault.OOM]
)
def test_there_is_advice_for_every_fault(fault):
    configured = ConfiguredRate('optim_wrapper.optimizer.lr', 0.01)
    rate, clip, cause = give_advice(fault, configured)
    assert '(optim_wrapper.optimizer.lr is 0.01 in the config: try 0.005)' in (
        rate
    )
    assert 'clip_grad.max_norm' in clip
    assert cause
    assert give_advice(fault, None)[0].startswith('lower the learning rate or')


@pytest.mark.parametrize(
    ('rollbacks', 'command', 'text'),
    [
        (
            0,
            None,
            'loss jumped. Nothing was validated or saved after that. What to '
            'change: a; b. There is no good checkpoint from before: start a '
            'new run. (details: file)',
        ),
        (
            1,
            'mmstable train',
            'loss jumped. 1 rollback did not help. Nothing was validated or '
            'saved after that. What to change: a; b. Resume with: mmstable '
            'train (details: file)',
        ),
    ],
)
def test_a_stop_has_a_reason_and_a_way_out(rollbacks, command, text):
    stop = done(Action.STOP)
    assert describe_stop(
        stop, rollbacks, ['a', 'b'], command, None, 'file'
    ) == (
        'training is stopped at iteration 9, because of spike since '
        f'iteration 8: {text}'
    )


def test_chinese():
    use_language('zh_cn')
    stop = done(Action.STOP)
    assert describe_stop(stop, 2, ['甲', '乙'], 'mmstable', None, 'file') == (
        '训练在第 9 次迭代停止：自第 8 次迭代起出现 spike：loss jumped。'
        '已回滚 2 次，仍无效。此后未做验证，也未保存。建议修改：甲；乙。'
        '恢复训练：mmstable（详见 file）'
    )
