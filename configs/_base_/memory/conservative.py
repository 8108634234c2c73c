# For devices without bfloat16, and models that bear no half precision: the
# precision stays that of the config. Wired as max_saving.py says.
_base_ = './loader.py'

memory = dict(
    # A step sees 4 x 4 = 16 samples of each rank. BatchNorm sees 4 of them.
    optim_wrapper=dict(accumulative_counts=4),
    train_dataloader=dict(batch_size=4, **_base_.memory_loader),
    val_dataloader=dict(batch_size=4, **_base_.memory_loader),
    hook=dict(type='mmstable.SafeActivationCheckpointHook'),
)
