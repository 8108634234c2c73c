"""Old keys in new configs, and settings that are wrong."""

from __future__ import annotations

import copy
import re

import pytest

from mmstable.errors import UsageError
from mmstable.finding import Severity
from mmstable.legacy.translate import Translation, translate
from mmstable.settings import runtime_hooks

SGD = dict(type='SGD', lr=0.1)
CLIP = dict(max_norm=35, norm_type=2)
EPOCHS = dict(type='EpochBasedRunner', max_epochs=12)
ITERS = dict(type='IterBasedRunner', max_iters=100)
FP16 = 'Fp16OptimizerHook'


def paths(translation: Translation, severity: Severity) -> list[str]:
    return [one.path for one in translation.of_severity(severity)]


NEW = dict(
    # Variables of the author; mmseg 1.x has them.
    optimizer=SGD,
    seed=1,
    total_epochs=3,
    dist_params=dict(backend='nccl'),
    optim_wrapper=dict(type='OptimWrapper', optimizer=SGD, clip_grad=None),
    train_cfg=dict(by_epoch=True, max_epochs=3),
    env_cfg=dict(dist_cfg=dict(backend='nccl')),
    randomness=dict(seed=1),
    param_scheduler=[dict(type='PolyLR')],
    custom_hooks=[dict(type='EMAHook', momentum=0.1)],
)


def test_a_new_config_stays_as_it_is() -> None:
    before = copy.deepcopy(NEW)
    translation = translate(NEW)
    assert translation.settings == before
    assert list(translation.settings) == list(before)
    assert not translation.changed


def test_a_new_leaf_may_add_to_an_old_base() -> None:
    new = translate(
        dict(optimizer=SGD, runner=EPOCHS)
        | dict(train_cfg=dict(val_interval=5))
        | dict(optim_wrapper=dict(type='AmpOptimWrapper', loss_scale=4.0))
    ).settings
    assert new['train_cfg'] == dict(
        type='mmstable.SafeEpochBasedTrainLoop', max_epochs=12, val_interval=5
    )
    assert new['optim_wrapper'] == dict(
        type='mmstable.SafeAmpOptimWrapper', loss_scale=4.0, optimizer=SGD
    )


def test_a_runner_may_say_the_same_as_the_loop() -> None:
    runner = dict(type='EpochBasedRunner', max_epochs=3)
    translation = translate({**NEW, 'runner': runner})
    assert translation.settings == NEW
    assert not paths(translation, Severity.ERROR)


def test_old_keys_that_ask_for_nothing_change_nothing() -> None:
    for old in (dict(fp16=None), dict(optimizer_config=None)):
        translation = translate({**NEW, **old})
        assert translation.settings == NEW
        assert not paths(translation, Severity.WARNING)


def test_old_keys_that_mmengine_ignores_are_brought_to_life() -> None:
    old = dict(fp16=dict(loss_scale=8.0), lr_config=None)
    grad_clip = dict(optimizer_config=dict(grad_clip=CLIP))
    translation = translate({**NEW, **old, **grad_clip})
    assert translation.settings['optim_wrapper'] == dict(
        type='mmstable.SafeAmpOptimWrapper',
        optimizer=SGD,
        clip_grad=CLIP,
        loss_scale=8.0,
    )
    assert not paths(translation, Severity.ERROR)
    first, *rest = translation.settings['custom_hooks']
    assert [first] == NEW['custom_hooks']
    assert rest == [*runtime_hooks().values()]


@pytest.mark.parametrize('prefix', ['', 'mmstable.'])
def test_a_hook_that_is_there_is_not_added_again(prefix: str) -> None:
    hook = dict(type=f'{prefix}GradNanLoggerHook', lang='zh_cn')
    new = translate({**NEW, 'fp16': {}, 'custom_hooks': [hook]}).settings
    assert new['custom_hooks'][0] == hook
    kinds = [one['type'].rpartition('.')[2] for one in new['custom_hooks']]
    assert sorted(kinds) == sorted(runtime_hooks())


@pytest.mark.parametrize(
    ('old', 'path'),
    [
        (dict(lr_config=dict(policy='poly')), 'lr_config'),
        (
            dict(optimizer_config=dict(grad_clip=dict(max_norm=1))),
            'optimizer_config.grad_clip',
        ),
        (dict(fp16=dict(loss_scale=2.0)), 'fp16'),
        (dict(runner=dict(EPOCHS)), 'runner'),
        (dict(runner=dict(ITERS)), 'runner'),
        (dict(checkpoint_config=dict(interval=9)), 'checkpoint_config'),
    ],
)
def test_contradictions_are_serious(old: dict, path: str) -> None:
    new = copy.deepcopy(NEW)
    new['optim_wrapper'].update(clip_grad=CLIP, loss_scale=8.0)
    new['default_hooks'] = dict(checkpoint=dict(type='CheckpointHook'))
    translation = translate({**new, **old})
    assert paths(translation, Severity.ERROR) == [path]
    assert 'contradicts' in str(translation.findings[-1])


@pytest.mark.parametrize(
    ('old', 'message'),
    [
        (dict(fp16=True), 'fp16: must be a dict, got True.'),
        (
            dict(fp16=dict(loss_scale='dynamc')),
            "fp16: loss_scale: must be 'dynamic', a number or a dict, got "
            "'dynamc'.",
        ),
        (
            dict(fp16=dict(loss_scale=0)),
            'a finite number above 0, got 0.',
        ),
        (
            dict(
                fp16=dict(loss_scale=8.0),
                optimizer_config=dict(type=FP16, loss_scale=4.0),
            ),
            'fp16.loss_scale: 8.0 contradicts optimizer_config.loss_scale, '
            'which is 4.0.',
        ),
        (
            dict(fp16=dict(los_scale=8.0)),
            'fp16: no setting `los_scale`; there are type, ',
        ),
        (
            dict(optimizer_config=dict(loss_scale=8.0)),
            'optimizer_config.loss_scale: needs an fp16',
        ),
        (
            dict(optimizer_config=dict(grad_clp=CLIP)),
            'no setting `grad_clp`; there are type, grad_clip, ',
        ),
        (
            dict(optimizer_config=dict(grad_clip=dict(max_nrm=3))),
            'optimizer_config.grad_clip: ',
        ),
        (
            dict(optimizer_config=dict(cumulative_iters=0)),
            'optimizer_config: `cumulative_iters` must be an int of at '
            'least 1, got 0.',
        ),
        (dict(lr_config=dict(step=3)), 'lr_config: needs a `policy`.'),
        (
            dict(lr_config=dict(policy='step')),
            "lr_config: policy 'step' needs `step`.",
        ),
        (
            dict(lr_config=dict(policy='exp', gama=3)),
            "lr_config: policy 'exp': no setting `gama`; there are gamma. "
            'Did you mean gamma?',
        ),
        (
            dict(lr_config=dict(policy='fixed', warmup='slow')),
            'lr_config: `warmup` must be one of constant, linear, exp, got '
            "'slow'.",
        ),
        (
            dict(lr_config=dict(policy='cyclic', by_epoch=True)),
            "lr_config: policy 'cyclic' needs `by_epoch=False`",
        ),
        (
            dict(
                runner=ITERS,
                lr_config=dict(
                    policy='poly',
                    warmup='exp',
                    warmup_iters=3,
                    warmup_by_epoch=True,
                ),
            ),
            'lr_config: `warmup_by_epoch` needs an epoch-based run.',
        ),
        (
            dict(runner=dict(type='IterBasedRunner', max_epochs=3)),
            'runner: IterBasedRunner needs `max_iters`.',
        ),
        (
            dict(runner=dict(type='EpochBasedRunner', max_epochs=0)),
            'runner: `max_epochs` must be an int of at least 1, got 0.',
        ),
        (
            dict(runner=EPOCHS, total_epochs=3),
            'total_epochs: 3 contradicts runner.max_epochs, which is 12.',
        ),
        (dict(workflow=['train']), "like [('train', 1)], got ['train']."),
        (
            dict(checkpoint_config=dict(interval_=3)),
            'checkpoint_config: no setting `interval_`; ',
        ),
        (
            dict(log_config=dict(interval=0)),
            'log_config: `interval` must be an int of at least 1, got 0.',
        ),
        (
            dict(log_config=dict(hooks=['TextLoggerHook'])),
            'log_config.hooks: must be a dict with a `type`, got '
            "'TextLoggerHook'.",
        ),
        (
            dict(total_epochs=1, custom_hooks=[dict(priority=3)]),
            'custom_hooks[0]: must be a dict with a `type`, got',
        ),
    ],
)
def test_what_mmcv_refused_is_refused(old: dict, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        translate(old)


def test_misspelt_keys_are_listed() -> None:
    old = dict(optimizer=SGD, optimzer_config=dict(), dataset_type='A', lr=0.1)
    translation = translate(old)
    assert paths(translation, Severity.WARNING) == ['optimzer_config']
    assert 'Did you mean optimizer_config?' in str(translation.findings[0])


def test_a_setting_that_mmengine_ignores_is_added_to_the_rest() -> None:
    new = {**NEW, 'cudnn_benchmark': True}
    assert translate(new).settings['env_cfg'] == dict(
        dist_cfg=dict(backend='nccl'), cudnn_benchmark=True
    )


def test_contradictions_about_logs_are_not_serious() -> None:
    visualizer = dict(type='SegLocalVisualizer')
    log = dict(interval=5, hooks=[dict(type='TextLoggerHook')])
    translation = translate(
        {**NEW, 'visualizer': visualizer, 'log_config': log}
    )
    assert paths(translation, Severity.WARNING) == ['log_config']
    assert not paths(translation, Severity.ERROR)
    found = translation.settings['visualizer']
    assert found['type'] == 'SegLocalVisualizer'
    assert found['vis_backends'] == [dict(type='LocalVisBackend')]
