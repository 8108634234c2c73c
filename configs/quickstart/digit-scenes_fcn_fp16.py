# `make train`: under three minutes on two idle CPU cores, in real fp16.
_base_ = [
    '../_base_/default_runtime_fp16.py',
    '../_base_/schedules/schedule_20k_fp16.py',
    '../_base_/loss_scale/fp16_1024.py',
]

optim_wrapper = dict(
    dtype=_base_.amp_dtype,
    loss_scale=_base_.loss_scale,
    # A small network bears, and in so short a run needs, large steps.
    optimizer=dict(lr=2e-2),
)
stability_checks = dict(ignore=['high_adam_lr'])
max_iters = 1000
warmup_iters = 100
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-2,
        by_epoch=False,
        begin=0,
        end=warmup_iters,
    ),
    dict(type='PolyLR', power=0.9, by_epoch=False, begin=warmup_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=250)
default_hooks = dict(checkpoint=dict(interval=250))
randomness = dict(seed=0)

batch_size = 8

model = dict(
    type='mmstable.TinyFCN',
    num_classes=11,
    # Nine pixels in ten are background: with all weights alike, which digit
    # it is hardly counts in the loss.
    class_weight=[0.3] + [1.0] * 10,
    data_preprocessor=dict(
        type='ImgDataPreprocessor', mean=[55.0] * 3, std=[50.0] * 3
    ),
)

train_pipeline = [
    # No flips, a mirrored digit is not a digit; no resizing, which moves the
    # edges of thin strokes away from those of their mask.
    dict(type='RandomGrayscale', prob=0.5, keep_channels=True),
    dict(type='mmstable.PackScene'),
]
train_dataloader = dict(
    batch_size=batch_size,
    # A scene takes a millisecond: worker processes would cost more.
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='mmstable.DigitScenes',
        split='train',
        # Every scene of the run is a new one.
        num_scenes=max_iters * batch_size,
        pipeline=train_pipeline,
    ),
)

val_dataloader = dict(
    batch_size=25,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='mmstable.DigitScenes',
        split='val',
        num_scenes=500,
        pipeline=[dict(type='mmstable.PackScene')],
    ),
)
val_evaluator = dict(type='mmstable.MeanIoU')

test_dataloader = val_dataloader
test_evaluator = val_evaluator
