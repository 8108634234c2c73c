"""About optimizers and their wrappers."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'wrapper.fp32': Message(
        en='mmstable: fp32 training protected{details}',
        zh_cn='✅ FP32训练保护已启用{details}',
    ),
    'wrapper.amp': Message(
        en='mmstable: {dtype} mixed precision enabled{details}',
        zh_cn='✅ {dtype}混合精度训练已启用{details}',
    ),
    'wrapper.no_half_on_cpu': Message(
        en='SafeAmpOptimWrapper: torch {version} cannot autocast to float16 '
        "on a CPU: set `dtype='bfloat16'`, or install a newer torch.",
        zh_cn='SafeAmpOptimWrapper: torch {version} 在 CPU 上不支持 float16 '
        "autocast：请设置 `dtype='bfloat16'`，或安装更新的 torch。",
    ),
    'wrapper.details': Message(en=' ({details})', zh_cn='（{details}）'),
    'wrapper.scale': Message(
        en='loss_scale={scale}, floor {floor}',
        zh_cn='loss_scale={scale}、下限 {floor}',
    ),
    'wrapper.frozen_scale': Message(
        en='loss_scale={scale}, frozen', zh_cn='loss_scale={scale}、固定'
    ),
    'wrapper.clip': Message(en='clip {clip}', zh_cn='裁剪 {clip}'),
    'wrapper.no_gradient': Message(
        en='mmstable: Iter {iteration}: no parameter has a gradient, so there '
        'is nothing to update. Is every parameter frozen, or is the loss '
        'detached?',
        zh_cn='mmstable: Iter {iteration}: 没有任何参数有梯度，无可更新。是否'
        '冻结了所有参数，或 loss 被 detach？',
    ),
    'wrapper.shared_buffers': Message(
        en='mmstable: forward passes of another step have written to the '
        'same running statistics as those of a skipped step, so some of '
        'these keep its traces. Values that are not finite are restored.',
        zh_cn='mmstable: 另一步的前向计算也更新了被跳过的步所更新的统计量，'
        '因此其中一部分仍带有该步的影响；非有限值会恢复。',
    ),
    'wrapper.no_context': Message(
        en='mmstable: running statistics (BatchNorm) are not restored after '
        'skipped steps, because `train_step` of this model does not run its '
        'forward pass inside `optim_wrapper.optim_context(model)`.',
        zh_cn='mmstable: 跳过异常步后不会恢复统计量（BatchNorm），'
        '因为该模型的 `train_step` 没有在 '
        '`optim_wrapper.optim_context(model)` 中做前向计算。',
    ),
    'wrapper.closure_clip': Message(
        en='mmstable: `clip_grad` has no effect on steps with a `closure`: '
        'the optimizer computes its gradients in the closure. Clip there.',
        zh_cn='mmstable: 带 `closure` 的步不受 `clip_grad` 影响：优化器在 '
        'closure 中计算梯度。请在 closure 中裁剪。',
    ),
    'wrapper.scale_note': Message(
        en='mmstable: loss scale: {note}. The config wins.',
        zh_cn='mmstable: loss scale：{note}。以配置为准。',
    ),
    'scale.differs': Message(
        en='{name} {saved} in the checkpoint, {configured} configured',
        zh_cn='checkpoint 中 {name} 为 {saved}，配置为 {configured}',
    ),
    'scale.outside': Message(
        en='scale {saved} in the checkpoint, but it must be in [{least}, '
        '{most}]: {scale} is used',
        zh_cn='checkpoint 中 scale 为 {saved}，但应在 [{least}, {most}] 之内：'
        '使用 {scale}',
    ),
    'optimizer.not_fused': Message(
        en='{name} is not fused: {reason}.',
        zh_cn='{name} 未使用 fused 实现：{reason}。',
    ),
    'optimizer.no_fused_version': Message(
        en='torch {version} has no fused version of it',
        zh_cn='torch {version} 没有它的 fused 版本',
    ),
    'optimizer.not_floating': Message(
        en='it has a parameter of {dtype}', zh_cn='有参数的类型为 {dtype}'
    ),
    'optimizer.no_fused_device': Message(
        en="torch {version} cannot fuse on device '{device}'",
        zh_cn="torch {version} 在设备 '{device}' 上不支持 fused",
    ),
}
