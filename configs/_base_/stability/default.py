# What the schedules have anyway, spelled out as a start for your own. A leaf
# chooses a preset in one line of its `_base_`, and wires it by these two:
#   optim_wrapper = _base_.stability.optim_wrapper
#   default_hooks = dict(guard=_base_.stability.guard)
# `_delete_` lets a dict replace None, or a number, of the config before it.
stability = dict(
    # Far above the norm of a healthy step: it cuts explosions only.
    optim_wrapper=dict(
        clip_grad=dict(_delete_=True, max_norm=35, norm_type=2)
    ),
    guard=dict(
        type='mmstable.DivergenceGuardHook',
        # Ten bad steps in a row, or 5 % of 200, are more than bad luck.
        max_consecutive_bad=10,
        max_bad_rate=0.05,
        window=200,
        # After a rollback: half the learning rate, for a while.
        lr_factor=0.5,
        lr_recovery=1000,
        max_rollbacks=3,
    ),
)
