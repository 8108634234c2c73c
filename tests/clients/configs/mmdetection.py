# RetinaNet on eight pictures, as a user of mmdetection would write it.
# No validation: that needs the nms of mmcv.ops.
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    'mmdet::_base_/default_runtime.py',
]
model = dict(
    backbone=dict(depth=18, init_cfg=None, norm_eval=False),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=16),
    bbox_head=dict(num_classes=1, in_channels=16, feat_channels=16),
)
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root='data/scenes/',
        ann_file='boxes.json',
        metainfo=dict(classes=('square',), palette=[(0, 0, 0)]),
        data_prefix=dict(img='images/'),
        pipeline=pipeline,
    ),
)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=2)
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.001, momentum=0.9)
)
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
custom_hooks = [
    dict(
        type='mmstable.FaultInjectorHook',
        enabled=True,
        faults=[
            dict(kind='nan_grad', param='bbox_head.retina_cls.weight', at=3)
        ],
    ),
]
