"""Key by key: what becomes of a config of mmcv 1.x."""

from __future__ import annotations

from typing import Any

import pytest

from mmstable.finding import Severity
from mmstable.legacy.translate import Translation, translate
from mmstable.settings import runtime_hooks

SGD = dict(type='SGD', lr=0.1)
CLIP = dict(max_norm=35, norm_type=2)
EPOCHS = dict(type='EpochBasedRunner', max_epochs=12)
ITERS = dict(type='IterBasedRunner', max_iters=100)
FP16 = 'Fp16OptimizerHook'


def left(translation: Translation) -> list[str]:
    return [one.path for one in translation.of_severity(Severity.WARNING)]


def serious(translation: Translation) -> list[str]:
    return [one.path for one in translation.of_severity(Severity.ERROR)]


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        (dict(fp16=None), {}),
        (dict(fp16=dict()), dict(loss_scale=512.0)),
        (dict(fp16=dict(loss_scale=1024.0)), dict(loss_scale=1024.0)),
        (dict(fp16=dict(loss_scale=64)), dict(loss_scale=64.0)),
        (dict(fp16=dict(loss_scale='dynamic')), dict(loss_scale='dynamic')),
        (
            dict(fp16=dict(loss_scale=dict(init_scale=8.0))),
            dict(loss_scale=dict(init_scale=8.0)),
        ),
        (
            dict(
                fp16=dict(
                    loss_scale=dict(
                        init_scale=8.0,
                        mode='static',
                        scale_factor=4.0,
                        scale_window=9,
                    )
                )
            ),
            dict(
                loss_scale=dict(
                    init_scale=8.0,
                    frozen=True,
                    growth_factor=4.0,
                    backoff_factor=0.25,
                    growth_interval=9,
                )
            ),
        ),
        (
            dict(fp16=dict(loss_scale=dict(enabled=False))),
            dict(loss_scale=dict(init_scale=1.0, frozen=True)),
        ),
        (dict(optimizer_config=None), {}),
        (dict(optimizer_config=dict(grad_clip=None)), {}),
        (dict(optimizer_config=dict(grad_clip=CLIP)), dict(clip_grad=CLIP)),
        (
            dict(optimizer_config=dict(type='OptimizerHook', grad_clip=CLIP)),
            dict(clip_grad=CLIP),
        ),
        (
            dict(optimizer_config=dict(type=FP16, loss_scale=16.0)),
            dict(loss_scale=16.0),
        ),
        (
            # As mmseg writes it: the mark in one place, the scale in another.
            dict(
                optimizer_config=dict(type=FP16, loss_scale=16.0), fp16=dict()
            ),
            dict(loss_scale=16.0),
        ),
        (
            dict(
                optimizer_config=dict(
                    type='GradientCumulativeOptimizerHook', cumulative_iters=4
                )
            ),
            dict(accumulative_counts=4),
        ),
        (
            dict(
                optimizer_config=dict(
                    type='GradientCumulativeFp16OptimizerHook',
                    cumulative_iters=4,
                    grad_clip=CLIP,
                    coalesce=True,
                )
            ),
            dict(loss_scale=512.0, clip_grad=CLIP, accumulative_counts=4),
        ),
        (
            # Of Swin Transformer, with apex.
            dict(
                optimizer_config=dict(
                    type='DistOptimizerHook',
                    update_interval=2,
                    use_fp16=True,
                    grad_clip=None,
                )
            ),
            dict(loss_scale='dynamic', accumulative_counts=2),
        ),
    ],
)
def test_the_wrapper(old: dict[str, Any], new: dict[str, Any]) -> None:
    kind = 'SafeAmp' if 'loss_scale' in new else 'Safe'
    translation = translate(dict(optimizer=SGD, **old))
    assert translation.settings == dict(
        optim_wrapper=dict(
            type=f'mmstable.{kind}OptimWrapper', optimizer=SGD, **new
        ),
        # A safe wrapper does not skip silently.
        custom_hooks=[
            dict(type=f'mmstable.{name}') for name in runtime_hooks()
        ],
    )
    assert not left(translation)
    assert not serious(translation)


def test_settings_of_parameters_move_to_the_wrapper() -> None:
    paramwise = dict(custom_keys={'.bias': dict(decay_mult=0.0)})
    for constructor in ({}, dict(constructor='DefaultOptimizerConstructor')):
        translation = translate(
            dict(optimizer=dict(SGD, paramwise_cfg=paramwise, **constructor))
        )
        assert translation.settings['optim_wrapper'] == dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=SGD,
            paramwise_cfg=paramwise,
        )
    translation = translate(dict(optimizer=dict(SGD, constructor='Mine')))
    assert translation.settings['optim_wrapper']['constructor'] == 'Mine'
    assert left(translation) == ['optimizer.constructor']


def test_several_optimizers_need_somebody() -> None:
    translation = translate(dict(optimizer=dict(generator=SGD, critic=SGD)))
    assert serious(translation) == ['optimizer']


def test_an_unknown_optimizer_hook_is_serious() -> None:
    config = dict(type='MyOptimizerHook', grad_clip=CLIP, mine=1)
    translation = translate(dict(optimizer=SGD, optimizer_config=config))
    assert translation.settings['optim_wrapper']['clip_grad'] == CLIP
    assert serious(translation) == ['optimizer_config.type']
    assert 'mine' in str(translation.findings[0])


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        (
            dict(runner=EPOCHS),
            dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=12),
        ),
        (
            dict(runner=ITERS),
            dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=100),
        ),
        (
            dict(total_epochs=7),
            dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=7),
        ),
        (
            dict(total_iters=7),
            dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=7),
        ),
        (
            dict(runner=EPOCHS, total_epochs=12, workflow=[('train', 1)]),
            dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=12),
        ),
        (
            dict(runner=ITERS, evaluation=dict(interval=5, start=20)),
            dict(
                type='mmstable.SafeIterBasedTrainLoop',
                max_iters=100,
                val_interval=5,
                val_begin=20,
            ),
        ),
    ],
)
def test_the_loop(old: dict[str, Any], new: dict[str, Any]) -> None:
    translation = translate(old)
    assert translation.settings == dict(train_cfg=new)
    assert not left(translation)


def test_losses_on_validation_data_are_missed() -> None:
    flow = [('train', 2), ('val', 1)]
    assert left(translate(dict(workflow=flow))) == ['workflow']


def test_an_unknown_runner_is_serious() -> None:
    runner = dict(type='DynamicIterBasedRunner', max_iters=9, is_dynamic=1)
    translation = translate(dict(runner=runner))
    assert translation.settings['train_cfg']['max_iters'] == 9
    assert serious(translation) == ['runner.type', 'runner.is_dynamic']


def test_settings_of_old_models_move_into_them() -> None:
    rpn = dict(rpn=dict(assigner=dict(type='MaxIoUAssigner')))
    old = dict(model=dict(type='FasterRCNN'), train_cfg=rpn, total_epochs=1)
    new = translate(old).settings
    assert new['model'] == dict(type='FasterRCNN', train_cfg=rpn)
    assert new['train_cfg']['max_epochs'] == 1
    del old['model']
    assert left(translate(old)) == ['train_cfg']


@pytest.mark.parametrize(
    ('runner', 'lr_config', 'new'),
    [
        (
            EPOCHS,
            dict(policy='step', step=[8, 11]),
            dict(policy='step', step=[8, 11], by_epoch=True),
        ),
        (
            EPOCHS,
            dict(policy='STEP', step=8, warmup='linear', warmup_iters=5),
            dict(
                policy='step',
                step=8,
                by_epoch=True,
                convert_to_iter_based=True,
                warmup='linear',
                warmup_iters=5,
                warmup_ratio=0.1,
            ),
        ),
        (
            EPOCHS,
            dict(
                policy='exp',
                gamma=0.9,
                by_epoch=False,
                warmup='exp',
                warmup_iters=5,
                warmup_ratio=0.5,
                warmup_by_epoch=True,
            ),
            dict(
                policy='exp',
                gamma=0.9,
                by_epoch=True,
                convert_to_iter_based=True,
                update_by_epoch=False,
                warmup='exp',
                warmup_iters=5,
                warmup_ratio=0.5,
                warmup_by_epoch=True,
            ),
        ),
        (ITERS, dict(policy='poly'), dict(policy='poly', by_epoch=False)),
        (EPOCHS, dict(policy='cyclic'), dict(policy='cyclic', by_epoch=False)),
    ],
)
def test_the_schedule(
    runner: dict[str, Any], lr_config: dict[str, Any], new: dict[str, Any]
) -> None:
    translation = translate(dict(runner=runner, lr_config=lr_config))
    assert translation.settings['param_scheduler'] == [
        dict(type='mmstable.PolicyLR', **new)
    ]
    assert not left(translation)


def test_momentum_joins_the_schedule() -> None:
    translation = translate(
        dict(
            runner=EPOCHS,
            lr_config=dict(policy='cyclic'),
            momentum_config=dict(
                policy='cyclic', warmup='constant', warmup_iters=3
            ),
        )
    )
    kinds = [one['type'] for one in translation.settings['param_scheduler']]
    assert kinds == ['mmstable.PolicyLR', 'mmstable.PolicyMomentum']
    assert translation.settings['param_scheduler'][1]['warmup_ratio'] == 0.9


def test_a_schedule_that_mmcv_never_followed() -> None:
    old = dict(
        runner=ITERS, lr_config=dict(policy='step', step=3, by_epoch=True)
    )
    translation = translate(old)
    assert translation.settings['param_scheduler'] is None
    assert left(translation) == ['lr_config']


def test_checkpoints() -> None:
    translation = translate(
        dict(
            runner=ITERS,
            checkpoint_config=dict(
                interval=5, max_keep_ckpts=2, sync_buffer=True, meta=dict(a=1)
            ),
        )
    )
    new = translation.settings
    assert new['default_hooks'] == dict(
        checkpoint=dict(
            type='mmstable.SafeCheckpointHook',
            interval=5,
            max_keep_ckpts=2,
            by_epoch=False,
        )
    )
    assert new['custom_hooks'] == [dict(type='SyncBuffersHook')]
    assert left(translation) == ['checkpoint_config.meta']
    off = translate(dict(checkpoint_config=None)).settings
    assert off == dict(default_hooks=dict(checkpoint=None))


def test_logs_go_to_the_back_ends() -> None:
    translation = translate(
        dict(
            log_config=dict(
                interval=20,
                hooks=[
                    dict(type='TextLoggerHook', interval_exp_name=5),
                    dict(type='TensorboardLoggerHook', log_dir='here'),
                    dict(
                        type='WandbLoggerHook',
                        init_kwargs=dict(project='p'),
                        with_step=False,
                        interval=40,
                    ),
                    dict(type='MlflowLoggerHook', exp_name='e'),
                    dict(type='PaviLoggerHook'),
                ],
            )
        )
    )
    new = translation.settings
    assert new['default_hooks']['logger'] == dict(
        type='LoggerHook',
        interval=20,
        log_metric_by_epoch=True,
        interval_exp_name=5,
    )
    assert new['log_processor'] == dict(by_epoch=True, window_size=20)
    assert new['visualizer']['vis_backends'] == [
        dict(type='LocalVisBackend'),
        dict(type='TensorboardVisBackend'),
        dict(type='WandbVisBackend', init_kwargs=dict(project='p')),
        dict(type='MLflowVisBackend', exp_name='e'),
    ]
    assert left(translation) == [
        'log_config.hooks[1].log_dir',
        'log_config.hooks[2].with_step',
        'log_config.hooks[2].interval',
        'log_config.hooks[4]',
    ]


DATA = dict(
    samples_per_gpu=6,
    workers_per_gpu=4,
    persistent_workers=True,
    train=dict(type='Nuscenes', pipeline=[dict(type='Load')]),
    val=dict(type='Nuscenes'),
    val_dataloader=dict(samples_per_gpu=3, workers_per_gpu=0),
    test=[dict(type='A'), dict(type='B', test_mode=False)],
)


def test_data_become_loaders() -> None:
    evaluator = dict(type='Metric')
    translation = translate(
        dict(
            runner=ITERS,
            data=DATA,
            val_evaluator=evaluator,
            test_evaluator=evaluator,
            evaluation=dict(interval=2, save_best='mIoU', rule='greater'),
        )
    )
    new = translation.settings
    assert not left(translation)
    assert new['train_dataloader'] == dict(
        batch_size=6,
        num_workers=4,
        persistent_workers=True,
        sampler=dict(type='InfiniteSampler', shuffle=True),
        dataset=DATA['train'],
    )
    assert new['val_dataloader'] == dict(
        batch_size=3,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        dataset=dict(type='Nuscenes', test_mode=True),
    )
    assert new['test_dataloader']['dataset'] == dict(
        type='ConcatDataset',
        datasets=[
            dict(type='A', test_mode=True),
            dict(type='B', test_mode=False),
        ],
    )
    assert new['val_cfg'] == dict(type='mmstable.SafeValLoop')
    assert new['default_hooks']['checkpoint']['save_best'] == 'mIoU'
    by_epoch = translate(dict(runner=EPOCHS, data=DATA)).settings
    sampler = by_epoch['train_dataloader']['sampler']
    assert sampler == dict(type='DefaultSampler', shuffle=True)


def test_without_evaluator_nothing_is_validated_but_kept() -> None:
    translation = translate(
        dict(data=DATA, evaluation=dict(metric='mIoU', save_best='auto'))
    )
    new = translation.settings
    assert new['old_val_dataloader']['batch_size'] == 3
    assert not {'val_dataloader', 'val_cfg', 'test_dataloader'} & set(new)
    assert left(translation) == [
        'evaluation.save_best',
        'evaluation.metric',
        'data.val, data.test',
    ]


def test_old_pipelines_are_left_and_listed() -> None:
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='DefaultFormatBundle'),
        dict(type='Collect', keys=['img']),
    ]
    wrapped = dict(type='Repeat', dataset=dict(type='A', pipeline=pipeline))
    translation = translate(
        dict(model=dict(type='Net'), data=dict(train=wrapped, more=1))
    )
    new = translation.settings
    assert new['train_dataloader']['dataset'] == wrapped
    assert left(translation) == [
        'data.train.dataset.pipeline',
        'model',
        'data.more',
    ]
    told = str(translation.findings[0])
    assert 'DefaultFormatBundle [1] -> ' in told
    assert 'Collect [2] -> the Pack...Inputs of your project' in told


def test_hooks() -> None:
    translation = translate(
        dict(
            total_epochs=1,
            custom_hooks=[
                dict(type='EMAHook', momentum=0.1, interval=2, warm_up=10),
                dict(type='DistSamplerSeedHook'),
                dict(type='NumClassCheckHook', priority='LOW'),
                dict(type='EmptyCacheHook', after_iter=True),
            ],
            profiler_config=dict(activities=['cpu'], profile_iters=3),
        )
    )
    assert translation.settings['custom_hooks'] == [
        dict(type='EMAHook', momentum=0.1**2, interval=2),
        dict(type='NumClassCheckHook', priority='LOW'),
        dict(type='EmptyCacheHook', after_iter=True),
        dict(
            type='ProfilerHook',
            activity_with_cpu=True,
            activity_with_cuda=False,
            profile_times=3,
        ),
    ]
    assert left(translation) == ['custom_hooks[2]']


def test_environment() -> None:
    old = dict(
        seed=3,
        deterministic=True,
        cudnn_benchmark=True,
        dist_params=dict(backend='gloo'),
        opencv_num_threads=0,
        mp_start_method='spawn',
        gpu_ids=range(2),
        find_unused_parameters=True,
    )
    translation = translate(old)
    assert translation.settings == dict(
        randomness=dict(seed=3, deterministic=True),
        env_cfg=dict(
            cudnn_benchmark=True,
            mp_cfg=dict(opencv_num_threads=0, mp_start_method='spawn'),
            dist_cfg=dict(backend='gloo'),
        ),
        find_unused_parameters=True,
    )
    assert not left(translation)


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        (dict(resume_from=None), dict(resume=False)),
        (
            dict(resume_from='a.pth', load_from='b.pth'),
            dict(resume=True, load_from='a.pth'),
        ),
        (dict(auto_resume=True), dict(resume=True)),
        (
            dict(auto_resume=True, load_from='b.pth'),
            dict(resume=False, load_from='b.pth'),
        ),
    ],
)
def test_where_to_go_on_from(old: dict, new: dict) -> None:
    translation = translate(old)
    assert translation.settings == new
    assert bool(left(translation)) == (
        old.get('load_from') == 'b.pth' and 'auto_resume' in old
    )
