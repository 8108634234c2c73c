"""Lines about bad steps, from a real ``Runner``."""

import math
import re

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict

from mmstable.hooks import GradNanLoggerHook
from tests.optim.test_against_stock import CpuAmpOptimWrapper
from tests.torch_features import sgd
from tests.toys import (
    INF,
    NAN,
    Sabotage,
    ToyModel,
    spoil_gradient,
    toy_runner,
)

AMP = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=1024.0,
    optimizer=dict(type='SGD', lr=0.01),
)


def train(
    tmp_path, capsys, sabotage, hook=None, max_iters=6, wrapper=AMP, **kwargs
):
    """Train, and return the runner and its log lines without their head."""
    hook = hook or dict(type='mmstable.GradNanLoggerHook')
    runner = toy_runner(
        tmp_path, wrapper, max_iters, [sabotage, hook], **kwargs
    )
    capsys.readouterr()
    runner.train()
    out = capsys.readouterr().out
    lines = re.findall(r'- mmengine - ((?:INFO|WARNING) - .*)', out)
    return runner, [line for line in lines if 'Iter(train)' not in line]


def about(lines, text):
    return [line for line in lines if text in line]


def test_a_bad_gradient_in_english(tmp_path, capsys):
    _, lines = train(
        tmp_path, capsys, Sabotage(grads={3: ('net.head.weight', NAN)})
    )
    assert about(lines, 'NaN') == [
        "INFO - Iter 3: gradient of 'net.head.weight' is NaN (1 parameter in "
        '1 module), step skipped, loss_scale 1024.0 -> 512.0'
    ]


def test_a_bad_gradient_in_chinese(tmp_path, capsys):
    hook = dict(type='mmstable.GradNanLoggerHook', lang='zh_cn')
    _, lines = train(
        tmp_path, capsys, Sabotage(grads={3: ('net.head.weight', NAN)}), hook
    )
    # As a widespread guide tells its readers to look for it.
    line = 'FP16混合精度训练已启用 (loss_scale=1024.0)'
    assert len(about(lines, line)) == 1
    assert about(lines, 'NaN') == [
        "INFO - Iter 3: 检测到参数 'net.head.weight' 的梯度为 NaN（1 个"
        '模块中共 1 个参数），跳过此次更新。当前 loss_scale: 512.0（此前 '
        '1024.0）'
    ]


@pytest.mark.parametrize(
    ('lang', 'line'),
    [
        (
            'en',
            'WARNING - Iter 2: loss is NaN or Inf, step skipped, loss_scale '
            'stays 1024.0',
        ),
        (
            'zh_cn',
            'WARNING - Iter 2: 检测到 loss 为 NaN 或 Inf，跳过此次更新。'
            '当前 loss_scale: 1024.0（不变）',
        ),
    ],
)
def test_a_bad_loss(tmp_path, capsys, lang, line):
    hook = dict(type='mmstable.GradNanLoggerHook', lang=lang)
    _, lines = train(tmp_path, capsys, Sabotage(loss=[2]), hook)
    assert about(lines, 'Iter 2') == [line]


def test_culprits_are_grouped_by_module(tmp_path, capsys):
    names = ('net.backbone.weight', 'net.backbone.bias', 'net.norm.weight')

    class SpoilThree(Sabotage):
        def before_train_iter(self, runner, *args, **kwargs):
            if runner.iter == 1:
                for name in (*names, 'net.head.bias'):
                    handle = spoil_gradient(runner.model, name, -INF)
                    self._handles.append(handle)

    _, lines = train(
        tmp_path,
        capsys,
        SpoilThree(),
        None,
        wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.01),
        ),
    )
    assert about(lines, 'Iter 2') == [
        "WARNING - Iter 2: gradients of 'net.backbone.weight', "
        "'net.norm.weight', 'net.head.bias' are Inf (4 parameters in 3 "
        'modules, no NaN), step skipped, no loss_scale in use'
    ]


def test_a_dropped_micro_batch(tmp_path, capsys):
    _, lines = train(
        tmp_path,
        capsys,
        Sabotage(loss=[2]),
        wrapper=dict(AMP, accumulative_counts=3),
    )
    assert about(lines, 'NaN') == [
        'WARNING - Iter 3: loss is NaN or Inf in 1 micro-batch, dropped from '
        'the step, loss_scale stays 1024.0'
    ]


def test_finding_a_scale_at_the_start_is_no_reason_to_worry(tmp_path, capsys):
    sabotage = Sabotage(
        grads=dict.fromkeys(range(1, 9), ('net.head.weight', INF))
    )
    runner, lines = train(tmp_path, capsys, sabotage, max_iters=30)
    assert len(about(lines, 'Iter')) == 8
    assert about(lines, 'WARNING - Iter') == []
    assert runner.optim_wrapper.skipped_steps == 8


def test_too_many_overflows_come_with_advice_once(tmp_path, capsys):
    bad = [25, 26, 27, 28, 29, 30]
    sabotage = Sabotage(grads=dict.fromkeys(bad, ('net.head.weight', INF)))
    _, lines = train(tmp_path, capsys, sabotage, max_iters=31)
    (warning,) = about(lines, 'WARNING - Iter')
    assert re.match(
        r'WARNING - Iter 26: 2 of the last 26 steps were bad, 2 in a row; '
        r'more than 5 %, or 5 in a row, are too many. What to change: lower '
        r'the learning rate .*; do NOT raise loss_scale',
        warning,
    )


def test_five_in_a_row_are_too_many(tmp_path, capsys):
    hook = dict(type='mmstable.GradNanLoggerHook', lang='zh_cn')
    _, lines = train(
        tmp_path, capsys, Sabotage(loss=[2, 3, 4, 5, 6]), hook, max_iters=7
    )
    (warning,) = about(lines, '连续')
    assert 'WARNING - Iter 6: 最近 6 步中有 5 个异常步' in warning
    assert '调整 loss_scale 无济于事' in warning


def test_a_healthy_run_is_quiet(tmp_path, capsys):
    runner, lines = train(tmp_path, capsys, Sabotage(), max_iters=30)
    assert about(lines, 'NaN') == []
    assert 'train/stable/skip_rate' not in runner.message_hub.log_scalars
    assert about(lines, 'stable/sk') == []


def test_bursts_are_counted_not_printed(tmp_path, capsys):
    hook = dict(type='mmstable.GradNanLoggerHook', max_lines=3)
    _, lines = train(
        tmp_path,
        capsys,
        Sabotage(loss=range(2, 16), grads={111: ('net.head.bias', NAN)}),
        hook,
        max_iters=112,
    )
    told = about(lines, 'step skipped')
    assert [line.split(':')[0][-6:].strip() for line in told] == [
        'Iter 2',
        'Iter 3',
        'Iter 4',
        'er 111',
    ]
    (note,) = about(lines, 'not printed')
    assert 'INFO - 11 more bad steps (NaN or Inf) between Iter 5 and' in note
    assert 'Iter 15' in note
    assert lines.index(note) < lines.index(told[-1])


def test_the_end_of_a_run_tells_what_was_left_out(tmp_path, capsys):
    hook = dict(type='mmstable.GradNanLoggerHook', max_lines=1)
    _, lines = train(tmp_path, capsys, Sabotage(loss=[2, 3]), hook)
    assert len(about(lines, '1 more bad step (NaN or Inf)')) == 1


def test_mmengines_wrapper_is_observed(tmp_path, capsys):
    runner, lines = train(
        tmp_path,
        capsys,
        Sabotage(grads={3: ('net.norm.bias', NAN)}),
        wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01)),
        max_iters=3,
    )
    assert len(about(lines, 'can only observe OptimWrapper')) == 1
    assert (
        "WARNING - Iter 3: gradient of 'net.norm.bias' is NaN (1 parameter in "
        '1 module), WEIGHTS UPDATED WITH IT, no loss_scale in use' in lines
    )
    assert runner.model.net.norm.bias.isnan().any()


@pytest.mark.parametrize('fused', [False, True])
def test_mmengines_amp_wrapper_is_observed(tmp_path, capsys, fused):
    model = ToyModel()
    optimizer = sgd(model.parameters(), lr=0.01, fused=fused)
    runner, lines = train(
        tmp_path,
        capsys,
        Sabotage(grads={3: ('net.norm.bias', INF)}),
        wrapper=CpuAmpOptimWrapper(1024.0, optimizer=optimizer),
        model=model,
        max_iters=5,
    )
    assert about(lines, 'NaN')[1:] == [
        "INFO - Iter 3: gradient of 'net.norm.bias' is Inf (1 parameter in 1 "
        'module, no NaN), step skipped, loss_scale 1024.0 -> 512.0'
    ]
    hub = runner.message_hub
    assert hub.get_scalar('train/stable/skipped').current() == 1
    assert hub.get_scalar('train/stable/loss_scale').current() == 512.0


def test_scalars_reach_tensorboard(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    runner, _ = train(
        tmp_path,
        capsys,
        Sabotage(loss=[2]),
        max_iters=4,
        visualizer=dict(
            type='Visualizer',
            vis_backends=[dict(type='TensorboardVisBackend')],
        ),
    )
    runner.visualizer.close()
    (path,) = tmp_path.glob('*/vis_data/events.out*')
    events = EventAccumulator(str(path))
    events.Reload()

    def values(tag):
        return [event.value for event in events.Scalars(tag)]

    assert values('stable/skipped') == [1, 1, 1]
    assert values('stable/loss_scale') == [1024.0] * 4
    assert values('stable/skip_rate') == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert all(map(math.isfinite, values('grad_norm')))


class TwoPlayers(ToyModel):
    """One optimizer for the head, one for the rest."""

    def train_step(self, data, optim_wrapper):
        losses = {}
        for wrapper in optim_wrapper.values():
            with wrapper.optim_context(self):
                loss = self(**data, mode='loss')
            losses, _ = self.parse_losses(loss)
            wrapper.update_params(losses)
        return dict(loss=losses)


def test_several_wrappers_are_told_apart(tmp_path, capsys):
    from mmstable import SafeOptimWrapper

    model = TwoPlayers()
    head = list(model.net.head.parameters())
    rest = [p for p in model.parameters() if all(p is not h for h in head)]
    wrapper = OptimWrapperDict(
        head=SafeOptimWrapper(torch.optim.SGD(head, lr=0.01)),
        rest=OptimWrapper(torch.optim.SGD(rest, lr=0.01)),
    )
    runner, lines = train(
        tmp_path,
        capsys,
        Sabotage(grads={2: ('net.head.bias', NAN)}),
        wrapper=wrapper,
        model=model,
    )
    assert len(about(lines, "Iter 2 [head]: gradient of 'net.head.bias'")) == 1
    hub = runner.message_hub
    assert hub.get_scalar('train/stable/head/skip_rate').current() > 0
    # One of mmengine, which skips nothing.
    assert 'train/stable/rest/bad_rate' not in hub.log_scalars


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            dict(lang='zh'),
            r"`lang` must be one of en, zh_cn, got 'zh'",
        ),
        (dict(max_lines='x'), "`max_lines` must be an int .* got 'x'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GradNanLoggerHook(**settings)
