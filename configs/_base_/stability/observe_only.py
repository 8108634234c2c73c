# Nothing is done but telling: to see what a policy would react to before it
# is trusted. A safe optimizer wrapper still skips bad steps. Wired as
# default.py says; the last two are read by `mmstable train --preset`.
stability = dict(
    optim_wrapper=dict(),
    guard=dict(
        type='mmstable.DivergenceGuardHook',
        actions=dict(
            overflow='warn',
            nan_loss='warn',
            nan_grad='warn',
            poisoned='warn',
            diverged='warn',
            spike='warn',
        ),
    ),
    # Wrappers, loops and hooks of mmengine stay what they are.
    safe_classes=False,
    # Of the hooks of the runtime those that tell; None leaves one out.
    hooks=dict(
        MemoryGuardHook=dict(action='warn'),
        HangWatchdogHook=dict(action='wait'),
        ReplicaCheckHook=dict(action='warn'),
        EmergencyCheckpointHook=None,
        RankFailureHook=None,
    ),
)
