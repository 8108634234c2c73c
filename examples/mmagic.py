# Protects mmagic::dcgan/dcgan_1xb128-300kiters_celeba-cropped-64.py with
# preset default. Written by `mmstable protect`; train it with any train
# script. Left alone, not mmengine's own classes: val_cfg (MultiValLoop),
# test_cfg (MultiTestLoop).
_base_ = ['mmagic::dcgan/dcgan_1xb128-300kiters_celeba-cropped-64.py']

# Checkpoints and schedules that bad steps do not spoil; the guard acts when
# bad steps do not stay single.
default_hooks = dict(
    checkpoint=dict(type='mmstable.SafeCheckpointHook'),
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
    guard=dict(type='mmstable.DivergenceGuardHook'),
)

# A dashboard or a disk that blocks cannot stop the run.
visualizer = dict(
    vis_backends=[
        dict(
            type='mmstable.QueuedVisBackend',
            name='VisBackend',
            backend=dict(type='VisBackend'),
        ),
    ],
)

# Resumes where a checkpoint was saved, and survives a batch that does not fit
# in memory.
train_cfg = dict(
    _delete_=True,
    val_begin=1,
    val_interval=10000,
    max_iters=300002,
    type='mmstable.SafeIterBasedTrainLoop',
)

# Steps with a NaN or Inf are skipped, and named.
optim_wrapper = dict(
    generator=dict(type='mmstable.SafeOptimWrapper'),
    discriminator=dict(type='mmstable.SafeOptimWrapper'),
)

# What tells, explains and saves.
custom_hooks = [
    *_base_.custom_hooks,
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
