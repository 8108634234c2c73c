# Nothing is done but telling: to see what a policy would react to before it
# is trusted. Bad steps are still skipped by the optimizer wrapper. Wired as
# default.py says.
stability = dict(
    optim_wrapper=dict(),
    guard=dict(
        type='mmstable.DivergenceGuardHook',
        actions=dict(
            overflow='warn',
            nan_loss='warn',
            nan_grad='warn',
            poisoned='warn',
            spike='warn',
        ),
    ),
)
