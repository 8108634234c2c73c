_base_ = './epoch_based_fp16.py'

train_cfg = dict(max_epochs=24)
