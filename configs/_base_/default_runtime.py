# What every run shares, whatever its precision and schedule. The hooks and
# the log format depend on iterations or epochs, so the schedules have them.

# Set this to 'mmseg', 'mmdet', ... to name classes of that package without
# a prefix. Names of mmstable have their prefix and work in every scope.
default_scope = 'mmengine'

env_cfg = dict(
    # Algorithm search pays off only when all inputs have the same size.
    cudnn_benchmark=False,
    # 'fork' starts workers fast; one OpenCV thread per worker keeps them
    # from fighting over the cores.
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # The backend follows the device: nccl on GPUs, gloo on CPUs. Say
    # dist_cfg=dict(backend='...') to choose another one.
    dist_cfg=dict(),
)

custom_hooks = [
    # Names the parameters of every bad step; lang='zh_cn' makes all lines
    # of the run Chinese.
    dict(type='mmstable.GradNanLoggerHook'),
    # Remembers what happened in <log dir>/stability/events.jsonl.
    dict(type='mmstable.EventLogHook'),
    # After a NaN, names the operation, line, module and samples it comes from.
    dict(type='mmstable.FaultForensicsHook'),
    # Warns before activations or gradients leave the range of fp16.
    dict(type='mmstable.HeadroomHook'),
    # Warns of leaks, and saves before the kernel ends the run for memory.
    dict(type='mmstable.MemoryGuardHook'),
    # Saves on Ctrl-C, SIGTERM, SIGHUP and exceptions before the run ends;
    # SIGUSR1 saves, and training continues.
    dict(type='mmstable.EmergencyCheckpointHook'),
    # With several ranks: when one fails, all end within seconds.
    dict(type='mmstable.RankFailureHook'),
    # Says where a run hangs: rank, phase, line, worker of the data loader.
    dict(type='mmstable.HangWatchdogHook'),
    # Says why training is slow, from a few iterations in 500.
    dict(type='mmstable.IterProfileHook'),
    # With several ranks: sees that all hold the same weights.
    dict(type='mmstable.ReplicaCheckHook'),
    # Sends a message when the run stops, fails, hangs or ends, to the
    # addresses of MMSTABLE_NOTIFY; without addresses it does nothing.
    dict(type='mmstable.NotifyHook'),
    # Writes metrics for Prometheus to the folder of MMSTABLE_METRICS;
    # without one it does nothing.
    dict(type='mmstable.MetricsHook'),
]

vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='Visualizer', vis_backends=vis_backends)

log_level = 'INFO'
load_from = None
resume = False
