"""About saving, and what is saved before a run ends."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'checkpoint.saving': Message(
        en='Saving checkpoint at {iteration} iterations',
        zh_cn='在第 {iteration} 次迭代保存 checkpoint',
    ),
    'checkpoint.not_local': Message(
        en='SafeCheckpointHook: {folder} is not on a local disk. Checkpoints '
        'are audited, but written as mmengine does: one that is cut off has '
        'the name of a complete one.',
        zh_cn='SafeCheckpointHook：{folder} 不在本地磁盘上。checkpoint 会被'
        '检查，但按 mmengine 的方式写入：写到一半的文件与完整的文件同名。',
    ),
    'checkpoint.poisoned': Message(
        en='mmstable: poisoned: {name} is not saved, because the state of the '
        'run is {reason}.{last_good}',
        zh_cn='mmstable: 状态被污染：{name} 未保存，训练状态{reason}。'
        '{last_good}',
    ),
    'checkpoint.not_finite': Message(
        en='not finite: {names}', zh_cn='含 NaN 或 Inf：{names}'
    ),
    'audit.placeholders': Message(
        en='mmstable: not finite before training began: {names}. That is no '
        'fault as long as it does not spread; what was NaN and becomes '
        'finite has to stay finite.',
        zh_cn='mmstable: 训练开始前就含 NaN 或 Inf：{names}。只要不增多，就不'
        '算故障；原为 NaN 的值一旦变为有限值，就必须保持有限。',
    ),
    'checkpoint.culprits': Message(
        en='{names} and {more} more', zh_cn='{names} 等，另有 {more} 处'
    ),
    'checkpoint.not_saved': Message(
        en='mmstable: {name} is not saved: {reason}. Training continues.'
        '{last_good}',
        zh_cn='mmstable: {name} 未保存：{reason}。训练继续。{last_good}',
    ),
    'checkpoint.no_result': Message(
        en='training came to its end, but its last checkpoint could not be '
        'saved: {reason}. Make room, and resume',
        zh_cn='训练已到终点，但最后的 checkpoint 未能保存：{reason}。'
        '请腾出空间，然后恢复训练',
    ),
    'checkpoint.no_metric': Message(
        en='mmstable: `save_best` names {name}, which validation does not '
        'give; it gives {known}.{hint} Training continues without it.',
        zh_cn='mmstable: `save_best` 中的 {name} 不在验证结果中，验证结果有'
        ' {known}。{hint}训练继续，但不保存该项的最佳 checkpoint。',
    ),
    'checkpoint.last_good': Message(
        en=' The last good checkpoint is {path}.',
        zh_cn='最近的完好 checkpoint 是 {path}。',
    ),
    'checkpoint.pointer': Message(
        en='mmstable: last_checkpoint does not name {path}: {error}. Nothing '
        'is removed.',
        zh_cn='mmstable: last_checkpoint 未能指向 {path}：{error}。不删除任何'
        '文件。',
    ),
    'checkpoint.no_manifest': Message(
        en='mmstable: {name} is saved, but not its manifest: {error}.',
        zh_cn='mmstable: {name} 已保存，但其清单文件未能写入：{error}。',
    ),
    'checkpoint.needs_trust': Message(
        en='mmstable: resuming will need --trust-checkpoint: {error}.',
        zh_cn='mmstable: 恢复时将需要 --trust-checkpoint：{error}。',
    ),
    'checkpoint.no_space': Message(
        en='no space: {needed} MiB needed, {free} MiB free',
        zh_cn='空间不足：需要 {needed} MiB，剩余 {free} MiB',
    ),
    # Before a run ends ahead of time.
    'emergency.no_signals': Message(
        en='EmergencyCheckpointHook: training runs outside the main thread, '
        'and only that one receives signals.',
        zh_cn='EmergencyCheckpointHook：训练不在主线程中运行，而只有主线程能收到'
        '信号。',
    ),
    'emergency.needs_rank_failure_hook': Message(
        en='{error} on this rank: no emergency checkpoint without '
        'RankFailureHook, because the other ranks may be waiting.',
        zh_cn='本 rank 出现 {error}：没有 RankFailureHook 就不保存紧急 '
        'checkpoint，因为其他 rank 可能在等待。',
    ),
    'emergency.needs_checkpoint_hook': Message(
        en='EmergencyCheckpointHook: nothing is saved without '
        'SafeCheckpointHook (default_hooks.checkpoint).',
        zh_cn='EmergencyCheckpointHook：没有 SafeCheckpointHook '
        '(default_hooks.checkpoint) 就不会保存任何内容。',
    ),
    'emergency.failed': Message(
        en='mmstable: training failed with {error}. The state before it is '
        'saved in {path}. {resume}',
        zh_cn='mmstable: 训练因 {error} 失败。此前的状态已保存到 {path}。'
        '{resume}',
    ),
    'emergency.failed_inexact': Message(
        en='mmstable: training failed with {error}. The state is saved in '
        '{path}, but it is not exactly the one before: {reason}. {resume}',
        zh_cn='mmstable: 训练因 {error} 失败。状态已保存到 {path}，但与此前的'
        '状态并不完全一致：{reason}。{resume}',
    ),
    'emergency.half_updated': Message(
        en='mmstable: training failed with {error} while the weights were '
        'being updated, so no emergency checkpoint is saved. {resume}',
        zh_cn='mmstable: 训练因 {error} 失败，当时权重正在更新，因此不保存'
        '紧急 checkpoint。{resume}',
    ),
    'emergency.stopped': Message(
        en='mmstable: stopped by {signal}: saved {path}. {resume}',
        zh_cn='mmstable: 因 {signal} 停止：已保存 {path}。{resume}',
    ),
    'emergency.stopped_unsaved': Message(
        en='mmstable: stopped by {signal}: no state that could be saved.',
        zh_cn='mmstable: 因 {signal} 停止：没有可保存的状态。',
    ),
    'emergency.saved': Message(
        en='mmstable: {signal}: saved {path}. Training continues.',
        zh_cn='mmstable: 收到 {signal}：已保存 {path}。训练继续。',
    ),
    'emergency.saved_nothing': Message(
        en='mmstable: {signal}: nothing could be saved. Training continues.',
        zh_cn='mmstable: 收到 {signal}：未能保存。训练继续。',
    ),
    # Why a saved state is not that between two iterations.
    'failure.accumulating': Message(
        en='gradients were being accumulated, and are lost',
        zh_cn='梯度正在累积，已累积的部分丢失',
    ),
    'failure.hooks': Message(
        en='not all hooks of the iteration have run',
        zh_cn='该次迭代的 hook 没有全部运行',
    ),
    'failure.buffers': Message(
        en='buffers, as the statistics of BatchNorm, may hold a part of the '
        'failed iteration',
        zh_cn='缓冲区（如 BatchNorm 的统计量）可能包含失败迭代的一部分',
    ),
    'emergency.not_saved': Message(
        en='mmstable: {name} is not saved: {reason}.{last_good}',
        zh_cn='mmstable: {name} 未保存：{reason}。{last_good}',
    ),
}
