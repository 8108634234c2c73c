# A config to copy and edit: let `_base_` name your own config, and uncomment
# the settings that you want to change. `mmstable train` protects it as it is.
_base_ = [
    # An absolute path, so that a copy finds it from any folder.
    __import__('mmstable').config_path('quickstart/digit-scenes_fcn_fp16.py'),
]

# Mixed precision: bfloat16, or float16 with a loss scale
# (loss_scale=dict(init_scale=1024.0)); 'mmstable.SafeOptimWrapper' without
# dtype for float32. One optimizer step accumulates accumulative_counts
# batches. Gradients are clipped to a norm of max_norm.
# optim_wrapper = dict(
#     type='mmstable.SafeAmpOptimWrapper',
#     dtype='bfloat16',
#     accumulative_counts=2,
#     clip_grad=dict(_delete_=True, max_norm=35, norm_type=2),
# )

# Checkpoints: the number to keep (interval=... sets how often they are saved).
# The guard: the number of rollbacks, the factor on the learning rate after
# each, and the action for each kind of fault.
# default_hooks = dict(
#     checkpoint=dict(type='mmstable.SafeCheckpointHook', max_keep_ckpts=3),
#     guard=dict(
#         type='mmstable.DivergenceGuardHook',
#         max_rollbacks=3,
#         lr_factor=0.5,
#         actions=dict(spike='warn'),
#     ),
# )

# mmstable hooks with your own settings; `mmstable train` adds the others.
# custom_hooks = [
#     *(_base_.get('custom_hooks') or []),
#     dict(type='mmstable.HeadroomHook', interval=50),
# ]

# A fixed seed, for a reproducible run.
# randomness = dict(seed=0)

# Findings that `mmstable check` does not report.
# stability_checks = dict(ignore=['stock_ema'])
