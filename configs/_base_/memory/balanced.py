# Much less memory, and the batch as it is. Wired as max_saving.py says.
_base_ = './loader.py'

memory = dict(
    # A step sees 16 x 1 = 16 samples of each rank, in one pass.
    optim_wrapper=dict(
        type='mmstable.SafeAmpOptimWrapper',
        dtype='bfloat16',
        accumulative_counts=1,
    ),
    train_dataloader=dict(batch_size=16, **_base_.memory_loader),
    val_dataloader=dict(batch_size=16, **_base_.memory_loader),
    hook=dict(type='mmstable.SafeActivationCheckpointHook'),
)
