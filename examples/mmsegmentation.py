# Protects mmseg::unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64.py with preset
# default. Written by `mmstable protect`; train it with any train script.
_base_ = ['mmseg::unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64.py']

# A dashboard or a disk that blocks cannot stop the run.
visualizer = dict(
    vis_backends=[
        dict(
            type='mmstable.QueuedVisBackend',
            name='LocalVisBackend',
            backend=dict(type='LocalVisBackend'),
        ),
    ],
)

# Steps with a NaN or Inf are skipped, and named.
optim_wrapper = dict(type='mmstable.SafeOptimWrapper')

# Resumes where a checkpoint was saved, and survives a batch that does not fit
# in memory.
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop')

# Batches that do not fit in memory are cut.
val_cfg = dict(type='mmstable.SafeValLoop')

# As for validation.
test_cfg = dict(type='mmstable.SafeTestLoop')

# Checkpoints and schedules that bad steps do not spoil; the guard acts when
# bad steps do not stay single.
default_hooks = dict(
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
    checkpoint=dict(type='mmstable.SafeCheckpointHook'),
    guard=dict(type='mmstable.DivergenceGuardHook'),
)

# What tells, explains and saves.
custom_hooks = [
    dict(type='mmstable.GradNanLoggerHook'),
    dict(type='mmstable.EventLogHook'),
    dict(type='mmstable.FaultForensicsHook'),
    dict(type='mmstable.HeadroomHook'),
    dict(type='mmstable.MemoryGuardHook'),
    dict(type='mmstable.EmergencyCheckpointHook'),
    dict(type='mmstable.RankFailureHook'),
    dict(type='mmstable.HangWatchdogHook'),
    dict(type='mmstable.IterProfileHook'),
    dict(type='mmstable.ReplicaCheckHook'),
]
