# For testing and debugging, and for the run that must not be lost: slower,
# and nothing out of the ordinary reaches the weights. Wired as default.py
# says.
stability = dict(
    optim_wrapper=dict(
        # Below the norm of most steps: the direction counts, not the length.
        clip_grad=dict(_delete_=True, max_norm=0.3, norm_type=2),
        loss_scale=dict(
            _delete_=True,
            init_scale=128.0,
            growth_interval=8000,
            max_scale=2048.0,
        ),
    ),
    guard=dict(
        type='mmstable.DivergenceGuardHook',
        # What is a spike to this one is none to the others, and is left out.
        actions=dict(spike='skip'),
        spike=dict(factor=5.0, warmup=25),
        max_consecutive_bad=3,
        window=50,
        lr_factor=0.1,
        lr_recovery=5000,
        warmup=dict(iters=3000, start_factor=0.01),
        # Little is lost by going back.
        snapshot_interval=25,
        max_rollbacks=5,
    ),
    # Read by `mmstable train --preset`: look more often.
    hooks=dict(
        HeadroomHook=dict(interval=50),
        ReplicaCheckHook=dict(interval=100),
    ),
)
