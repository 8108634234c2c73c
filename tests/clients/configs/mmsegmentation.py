# A thin U-Net on eight pictures, as a user of mmsegmentation would write it.
_base_ = [
    'mmseg::_base_/models/fcn_unet_s5-d16.py',
    'mmseg::_base_/default_runtime.py',
]
data_preprocessor = dict(size=(64, 64))
model = dict(
    data_preprocessor=data_preprocessor,
    backbone=dict(base_channels=8, norm_cfg=dict(type='BN')),
    decode_head=dict(
        in_channels=8, channels=8, num_classes=2, norm_cfg=dict(type='BN')
    ),
    auxiliary_head=dict(
        in_channels=16, channels=8, num_classes=2, norm_cfg=dict(type='BN')
    ),
    test_cfg=dict(_delete_=True, mode='whole'),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
dataset = dict(
    type='BaseSegDataset',
    data_root='data/scenes',
    metainfo=dict(classes=('ground', 'square')),
    data_prefix=dict(img_path='images', seg_map_path='masks'),
    img_suffix='.png',
    seg_map_suffix='.png',
)
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(dataset, pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(dataset, pipeline=test_pipeline),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
train_cfg = dict(type='IterBasedTrainLoop', max_iters=8, val_interval=8)
val_cfg = dict(type='ValLoop')
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9)
)
param_scheduler = [dict(type='PolyLR', power=0.9, by_epoch=False)]
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=4),
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
randomness = dict(seed=0)
custom_hooks = [
    dict(
        type='mmstable.FaultInjectorHook',
        enabled=True,
        faults=[
            dict(kind='nan_grad', param='decode_head.conv_seg.weight', at=3)
        ],
    ),
]
