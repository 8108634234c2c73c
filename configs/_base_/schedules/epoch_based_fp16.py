_base_ = './optim_fp16.py'

# One epoch of warm-up, then a cosine down to a hundredth. Both change the
# rate every iteration. No `end`: mmengine takes max_epochs.
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.01,
        by_epoch=True,
        begin=1,
        convert_to_iter_based=True,
    ),
]

train_cfg = dict(type='mmstable.SafeEpochBasedTrainLoop', val_interval=1)
val_cfg = dict(type='mmstable.SafeValLoop')
test_cfg = dict(type='mmstable.SafeTestLoop')

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    # Waits for skipped steps, and still ends with the run.
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
    # Three, so that an older one is left if the newest is bad.
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=1, max_keep_ckpts=3
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    # Goes back when bad steps do not stay single; stability/ has presets.
    guard=dict(type='mmstable.DivergenceGuardHook'),
)

log_processor = dict(
    # As in iter_based_fp16.py: the last value of a scale, not its mean.
    custom_cfg=[
        dict(data_src='stable/loss_scale', method_name='max', window_size=1)
    ],
)
