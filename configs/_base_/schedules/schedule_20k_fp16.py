_base_ = './iter_based_fp16.py'

train_cfg = dict(max_iters=20000, val_interval=2000)
default_hooks = dict(checkpoint=dict(interval=2000))
