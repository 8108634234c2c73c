# The least memory on a GPU that knows bfloat16. A leaf takes it in one line
# of its `_base_`, and wires it by these:
#   optim_wrapper = _base_.memory.optim_wrapper
#   train_dataloader = _base_.memory.train_dataloader
#   val_dataloader = _base_.memory.val_dataloader
#   custom_hooks = [*_base_.get('custom_hooks', []), _base_.memory.hook]
_base_ = './loader.py'

memory = dict(
    # A step sees 8 x 2 = 16 samples of each rank. For another number, change
    # the two together, and the learning rate stays right.
    optim_wrapper=dict(
        type='mmstable.SafeAmpOptimWrapper',
        # Half the bytes of an activation, and no loss scale to care for.
        # Without bfloat16 say 'float16' and take a preset of loss_scale/.
        dtype='bfloat16',
        accumulative_counts=2,
    ),
    train_dataloader=dict(batch_size=8, **_base_.memory_loader),
    val_dataloader=dict(batch_size=8, **_base_.memory_loader),
    # The backbone computes its activations again in the backward pass. Other
    # modules are named: modules=['decode_head', r'neck\.blocks\.\d+'].
    hook=dict(type='mmstable.SafeActivationCheckpointHook'),
)
