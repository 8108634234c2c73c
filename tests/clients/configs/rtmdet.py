# RTMDet-tiny on eight pictures, one iteration: what does a start cost?
# No validation: that needs the nms of mmcv.ops.
_base_ = ['mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py']
norm = dict(type='BN')
model = dict(
    backbone=dict(init_cfg=None, norm_cfg=norm),
    neck=dict(norm_cfg=norm),
    bbox_head=dict(norm_cfg=norm, num_classes=1),
)
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        _delete_=True,
        type='CocoDataset',
        data_root='data/scenes/',
        ann_file='boxes.json',
        metainfo=dict(classes=('square',), palette=[(0, 0, 0)]),
        data_prefix=dict(img='images/'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackDetInputs'),
        ],
    ),
)
train_cfg = dict(
    _delete_=True,
    type='IterBasedTrainLoop',
    max_iters=1,
    val_interval=10,
)
param_scheduler = dict(
    _delete_=True,
    type='LinearLR',
    start_factor=0.1,
    by_epoch=False,
    begin=0,
    end=1000,
)
val_dataloader = None
val_cfg = None
val_evaluator = None
test_dataloader = None
test_cfg = None
test_evaluator = None
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=1), logger=dict(interval=1)
)
randomness = dict(seed=0)
