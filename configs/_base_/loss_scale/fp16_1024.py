# The default. float16 ends at 6e-8 below and 65504 above: at 1024, gradients
# of 6e-11 still count and those above 64 overflow. It is a start value: it
# backs off on an overflow and grows while all is well.
loss_scale = dict(init_scale=1024.0)
