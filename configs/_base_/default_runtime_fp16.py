_base_ = './default_runtime.py'

# float16 has 10 bits of precision but its range ends at 65504 and its small
# gradients vanish: combine with a preset of loss_scale/.
amp_dtype = 'float16'
