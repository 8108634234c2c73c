# An average of the weights, to validate and to deploy, that skipped steps do
# not touch. Lists replace each other, so the leaf adds it to its hooks:
# `custom_hooks = [*_base_.custom_hooks, _base_.ema_hook]`.
ema_hook = dict(
    type='mmstable.SafeEMAHook',
    # Looks back over about 1 / momentum = 5000 iterations.
    momentum=2e-4,
)
