# For a loss that is small by nature, e.g. a mean over many pixels: keeps
# gradients of 3e-11, bears them up to 32.
loss_scale = dict(init_scale=2048.0)
