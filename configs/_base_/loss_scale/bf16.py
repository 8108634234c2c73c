# bfloat16 does not underflow where float32 does not: no scale, no cost.
loss_scale = None
