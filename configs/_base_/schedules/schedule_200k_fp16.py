_base_ = './iter_based_fp16.py'

train_cfg = dict(max_iters=200000, val_interval=20000)
default_hooks = dict(checkpoint=dict(interval=20000))
