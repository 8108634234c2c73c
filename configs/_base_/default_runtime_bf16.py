_base_ = './default_runtime.py'

# bfloat16 has the range of float32 and needs no loss scale: combine with
# loss_scale/bf16.py.
amp_dtype = 'bfloat16'
