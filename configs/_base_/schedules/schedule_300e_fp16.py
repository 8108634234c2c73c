_base_ = './schedule_100e_fp16.py'

train_cfg = dict(max_epochs=300, val_interval=10)
