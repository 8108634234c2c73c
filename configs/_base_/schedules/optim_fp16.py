# The optimizer of every schedule here. A leaf changes one value in one line,
# e.g. `optim_wrapper = dict(clip_grad=dict(max_norm=1.0))`.
optim_wrapper = dict(
    type='mmstable.SafeAmpOptimWrapper',
    dtype='float16',
    loss_scale=dict(init_scale=1024.0),
    # Fused where torch has it: one kernel for all parameters.
    optimizer=dict(
        type='mmstable.FusedAdamW',
        # A usual start for AdamW; larger batches bear more.
        lr=1e-4,
        betas=(0.9, 0.999),
        weight_decay=0.01,
    ),
    # Far above the norm of a healthy step: it cuts explosions only.
    clip_grad=dict(max_norm=35, norm_type=2),
)
