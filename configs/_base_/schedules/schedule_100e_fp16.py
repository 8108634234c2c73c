_base_ = './epoch_based_fp16.py'

# Training from scratch: five epochs of warm-up instead of one.
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.01,
        by_epoch=True,
        begin=5,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=100, val_interval=5)
