# For a run that diverged before: harder clipping, a lower start of the loss
# scale, and a guard that acts earlier. Wired as default.py says.
stability = dict(
    optim_wrapper=dict(
        # Near the norm of a healthy step: no single batch can throw it.
        clip_grad=dict(_delete_=True, max_norm=1.0, norm_type=2),
        loss_scale=dict(
            _delete_=True,
            init_scale=256.0,
            growth_interval=4000,
            max_scale=8192.0,
        ),
    ),
    guard=dict(
        type='mmstable.DivergenceGuardHook',
        max_consecutive_bad=5,
        window=100,
        lr_factor=0.3,
        lr_recovery=2000,
        # On top of the warm-up that the schedule has.
        warmup=dict(iters=1000, start_factor=0.1),
        # A step far above all before is left out, whatever it comes from.
        actions=dict(spike='skip'),
        max_rollbacks=3,
    ),
)
