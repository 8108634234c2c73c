# A small ResNet on eight pictures, as a user of mmpretrain would write it.
_base_ = ['mmpretrain::_base_/default_runtime.py']
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='ResNet_CIFAR', depth=18, base_channels=8, stem_channels=8
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=2,
        in_channels=64,
        loss=dict(type='CrossEntropyLoss'),
    ),
)
data_preprocessor = dict(
    num_classes=2, mean=[128.0] * 3, std=[64.0] * 3, to_rgb=True
)
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset', data_root='data/classes', pipeline=pipeline
    ),
)
val_dataloader = dict(
    train_dataloader, sampler=dict(type='DefaultSampler', shuffle=False)
)
val_evaluator = dict(type='Accuracy', topk=(1,))
train_cfg = dict(by_epoch=True, max_epochs=2, val_interval=1)
val_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
custom_hooks = [
    dict(
        type='mmstable.FaultInjectorHook',
        enabled=True,
        faults=[dict(kind='nan_grad', param='head.fc.weight', at=3)],
    ),
]
