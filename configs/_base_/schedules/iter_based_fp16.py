_base_ = './optim_fp16.py'

param_scheduler = [
    # Adam's second moments are poor estimates at first: small steps until
    # they have settled.
    dict(
        type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=1500
    ),
    # No `end`: mmengine takes max_iters, so changing that is enough.
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=1500),
]

train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop')
val_cfg = dict(type='mmstable.SafeValLoop')
test_cfg = dict(type='mmstable.SafeTestLoop')

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    # Waits for skipped steps, and still ends with the run.
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook',
        by_epoch=False,
        # Three, so that an older one is left if the newest is bad.
        max_keep_ckpts=3,
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    # Goes back when bad steps do not stay single; stability/ has presets.
    guard=dict(type='mmstable.DivergenceGuardHook'),
)

log_processor = dict(
    by_epoch=False,
    # mmengine averages every key with 'loss' in it; of a scale, show the
    # last value.
    custom_cfg=[
        dict(data_src='stable/loss_scale', method_name='max', window_size=1)
    ],
)
