# For a run whose first steps overflow at 1024: bears gradients up to 128.
loss_scale = dict(init_scale=512.0)
