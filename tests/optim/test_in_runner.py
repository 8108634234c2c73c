"""The wrappers through a real ``Runner``."""

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmstable import Fault, SafeAmpOptimWrapper, SafeOptimWrapper
from tests.toys import NAN, Sabotage, assert_same, toy_runner, weights


def config_of(kind, **kwargs):
    return dict(
        type=f'mmstable.{kind}',
        optimizer=dict(type='AdamW', lr=0.01, fused=True),
        clip_grad=dict(max_norm=35, norm_type=2),
        **kwargs,
    )


def scalar(runner, key):
    return runner.message_hub.get_scalar(f'train/{key}').data[0].tolist()


def test_faults_are_survived_and_logged(tmp_path):
    runner = toy_runner(
        tmp_path,
        config_of('SafeAmpOptimWrapper', loss_scale=1024.0),
        max_iters=8,
        hooks=[
            Sabotage(inputs=[3], loss=[5], grads={7: ('net.head.weight', NAN)})
        ],
    )
    runner.train()
    wrapper = runner.optim_wrapper
    assert isinstance(wrapper, SafeAmpOptimWrapper)
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (5, 3)
    assert len(scalar(runner, 'grad_norm')) == 5
    # Written when it changes; log lines and back-ends get the newest value.
    assert scalar(runner, 'stable/skipped') == [1, 2, 3]
    # Only the last of the three faults is one of scaling.
    assert scalar(runner, 'stable/loss_scale')[-2:] == [512.0, 512.0]
    assert all(p.isfinite().all() for p in runner.model.parameters())


def test_a_start_value_above_the_default_cap_finds_its_level(tmp_path):
    wrapper = config_of(
        'SafeAmpOptimWrapper', loss_scale=dict(init_scale=2.0**40)
    )
    runner = toy_runner(tmp_path, wrapper, max_iters=40)
    runner.train()
    scales = scalar(runner, 'stable/loss_scale')
    assert max(scales) == 2.0**39
    assert runner.optim_wrapper.applied_steps > 5


def test_a_fault_is_named(tmp_path):
    seen = []

    class Listener(Sabotage):
        def after_train_iter(self, runner, *args, **kwargs):
            super().after_train_iter(runner)
            seen.append(runner.optim_wrapper.last_step)

    runner = toy_runner(
        tmp_path,
        config_of('SafeOptimWrapper'),
        max_iters=3,
        hooks=[Listener(grads={2: ('net.norm.bias', NAN)})],
    )
    runner.train()
    assert isinstance(runner.optim_wrapper, SafeOptimWrapper)
    assert [r.iteration for r in seen] == [1, 2, 3]
    assert seen[1].fault is Fault.NAN_GRAD
    assert seen[1].culprits == (('net.norm.bias', 'NaN'),)


@pytest.mark.parametrize(
    ('kind', 'kwargs', 'line'),
    [
        (
            'SafeAmpOptimWrapper',
            dict(loss_scale=1024.0),
            'mmstable: FP16 mixed precision enabled (loss_scale=1024.0, '
            'floor 1.0, clip max_norm=35)',
        ),
        (
            'SafeAmpOptimWrapper',
            dict(dtype='bfloat16'),
            'mmstable: BF16 mixed precision enabled (clip max_norm=35)',
        ),
        (
            'SafeOptimWrapper',
            dict(),
            'mmstable: fp32 training protected (clip max_norm=35)',
        ),
    ],
)
def test_one_line_says_what_is_on(tmp_path, capsys, kind, kwargs, line):
    toy_runner(tmp_path, config_of(kind, **kwargs), max_iters=2).train()
    assert capsys.readouterr().out.count(line) == 1


def test_the_loss_scale_is_in_the_log_line(tmp_path, capsys):
    toy_runner(
        tmp_path,
        config_of('SafeAmpOptimWrapper', loss_scale=1024.0),
        max_iters=2,
    ).train()
    out = capsys.readouterr().out
    assert 'stable/loss_scale: 1024.0000' in out
    assert 'stable/skipped' not in out
    assert 'grad_norm' in out


def test_resuming_a_checkpoint_goes_on_as_if_unbroken(tmp_path):
    wrapper = config_of('SafeAmpOptimWrapper', loss_scale=64.0)
    hooks = [Sabotage(grads={2: ('net.head.weight', NAN)})]
    whole = toy_runner(tmp_path / 'whole', wrapper, 8, hooks)
    whole.train()
    part = toy_runner(
        tmp_path / 'part',
        wrapper,
        8,
        hooks,
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=4, by_epoch=False)
        ),
    )
    part.train()
    rest = toy_runner(
        tmp_path / 'rest',
        wrapper,
        8,
        load_from=str(tmp_path / 'part' / 'iter_4.pth'),
        resume=True,
    )
    rest.train()
    assert_same(weights(rest.model), weights(whole.model))
    assert_same(
        rest.optim_wrapper.state_dict(), whole.optim_wrapper.state_dict()
    )
    assert rest.optim_wrapper.skipped_steps == 1


def test_from_a_config_file_alone(tmp_path):
    path = tmp_path / 'overlay.py'
    path.write_text(
        "optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper', "
        "loss_scale=1024., optimizer=dict(type='SGD', lr=0.1))\n"
    )
    runner = toy_runner(
        tmp_path / 'run', Config.fromfile(path).optim_wrapper, max_iters=1
    )
    assert isinstance(runner, Runner)
    runner.train()
    assert runner.optim_wrapper.last_step.loss_scale == 1024.0
    assert runner.optim_wrapper.last_step.applied
    assert torch.is_tensor(runner.model.net.head.weight)
