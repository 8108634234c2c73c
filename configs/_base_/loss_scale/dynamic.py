# As torch's GradScaler: starts at 65536, so the first steps are skipped
# until the scale has come down to what the network bears.
loss_scale = 'dynamic'
