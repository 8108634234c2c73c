custom_imports = dict(imports=['tests.device.project'])
default_scope = 'mmengine'
model = dict(
    type='SmallNet', data_preprocessor=dict(type='BaseDataPreprocessor')
)
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='Noise'),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='Noise', length=16),
)
val_evaluator = dict(type='CountSamples')
val_cfg = dict()
train_cfg = dict(type='IterBasedTrainLoop', max_iters=24, val_interval=10)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10)
]
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=10, by_epoch=False),
    logger=dict(type='LoggerHook', interval=10),
)
custom_hooks = [dict(type='DigestHook')]
randomness = dict(seed=0)
