"""About single steps, and too many bad ones."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # The line about a bad step, and its parts.
    'step.line': Message(
        en='{where}: {what}, {done}, {scale}{origin}',
        zh_cn='⚠️  {where}: {what}，{done}。{scale}{origin}',
    ),
    'step.loss': Message(
        en='loss is NaN or Inf{terms}{dropped}',
        zh_cn='检测到 loss 为 NaN 或 Inf{terms}{dropped}',
    ),
    'step.loss_terms': Message(en=' ({terms})', zh_cn='（{terms}）'),
    'step.dropped': Message(
        en=' in {count:micro-batch|micro-batches}',
        zh_cn='（{count} 个 micro-batch）',
    ),
    'step.memory': Message(
        en='the batch does not fit in memory',
        zh_cn='显存/内存不足，放不下这个 batch',
    ),
    'step.spike': Message(
        en='spike ({loss}gradient norm {norm:.4g})',
        zh_cn='检测到尖峰（{loss}梯度范数 {norm:.4g}）',
    ),
    'step.spike_loss': Message(
        en='loss {loss:.4g}, ', zh_cn='loss {loss:.4g}，'
    ),
    'step.gradient': Message(
        en='gradient of {names} is {kind} ({parameters:parameter|parameters} '
        'in {modules:module|modules}{note})',
        zh_cn='检测到参数 {names} 的梯度为 {kind}（{modules} 个模块中共 '
        '{parameters} 个参数{note}）',
    ),
    'step.gradients': Message(
        en='gradients of {names} are {kind} ({parameters:parameter|parameters}'
        ' in {modules:module|modules}{note})',
        zh_cn='检测到参数 {names} 等的梯度为 {kind}（{modules} 个模块中共 '
        '{parameters} 个参数{note}）',
    ),
    'step.no_nan': Message(en=', no NaN', zh_cn='，无 NaN'),
    'step.was_dropped': Message(
        en='dropped from the step', zh_cn='已从本次累积中剔除'
    ),
    'step.was_skipped': Message(en='step skipped', zh_cn='跳过此次更新'),
    'step.was_applied': Message(
        en='WEIGHTS UPDATED WITH IT', zh_cn='权重已被异常梯度更新'
    ),
    'step.unscaled': Message(
        en='no loss_scale in use', zh_cn='未使用 loss_scale'
    ),
    'step.same_scale': Message(
        en='loss_scale stays {scale}', zh_cn='当前loss_scale: {scale}（不变）'
    ),
    'step.new_scale': Message(
        en='loss_scale {before} -> {scale}',
        zh_cn='当前loss_scale: {scale}（此前 {before}）',
    ),
    'step.origin': Message(
        en='; began on rank {rank} ({node}, {device}{late}){more}{copied}',
        zh_cn='；源自 rank {rank}（{node}，{device}{late}）{more}{copied}',
    ),
    'step.after_all_reduce': Message(
        en=', after the all-reduce', zh_cn='，all-reduce 之后'
    ),
    'step.other_ranks': Message(
        en=' and {count:other rank|other ranks}',
        zh_cn='及另外 {count} 个 rank',
    ),
    'step.copied': Message(
        en='; it had missed the update before, and now has the state of rank '
        '{rank}',
        zh_cn='；它错过了上一次更新，现已换用 rank {rank} 的状态',
    ),
    # About several steps.
    'steps.unprinted': Message(
        en='{count:more bad step|more bad steps} (NaN or Inf) between Iter '
        '{first} and Iter {last} not printed{where}',
        zh_cn='Iter {first} 至 Iter {last} 之间另有 {count} 个异常步 '
        '(NaN 或 Inf) 未逐条打印{where}',
    ),
    'steps.in_event_file': Message(
        en='; loss_scale and culprits of each are in the event file',
        zh_cn='；每步的 loss_scale 和参数名见事件文件',
    ),
    'steps.too_many': Message(
        en='{where}: {bad:.4g} of the last {seen} steps were bad '
        '({percent:.1f} %), {consecutive} in a row; more than {max_percent:g} '
        '%, or {max_consecutive} in a row, are too many. {advice}',
        zh_cn='⚠️  {where}: 最近 {seen} 步中有 {bad:.4g} 个异常步 '
        '({percent:.1f} %)，连续 {consecutive} 个；超过 {max_percent:g} % 或'
        '连续 {max_consecutive} 个即为过多。{advice}',
    ),
    'steps.advice_spoiled': Message(
        en='The weights were updated with NaN or Inf in iteration '
        '{iteration}, so nothing after it is of use: stop, and resume from a '
        "checkpoint before it with type='mmstable.SafeOptimWrapper' "
        '(--resume --before-iter {iteration}).',
        zh_cn='权重已在第 {iteration} 次迭代被异常梯度更新，此后的训练都没有'
        "意义：请停止，改用 type='mmstable.SafeOptimWrapper'，并从此前的 "
        'checkpoint 恢复训练 (--resume --before-iter {iteration})。',
    ),
    'steps.advice.overflow': Message(
        en='Gradients overflow fp16 although the loss scale is backing off. '
        'Do NOT raise loss_scale: a larger one overflows sooner. Lower the '
        'learning rate or lengthen the warm-up, clip gradients '
        '(clip_grad=dict(max_norm=...)), or train in bfloat16, which has the '
        'range of float32.',
        zh_cn='loss_scale 已在回退，梯度仍超出 FP16 范围。不要增大 '
        'loss_scale：越大越容易溢出。请降低学习率或延长 warmup，启用梯度裁剪 '
        '(clip_grad=dict(max_norm=...))，或改用数值范围与 FP32 相同的 '
        'bfloat16。',
    ),
    'steps.advice.nan_loss': Message(
        en='The loss itself is NaN or Inf before it is scaled, so no '
        'loss_scale can help. Check the data of these iterations (NaN or Inf '
        'in inputs or targets, empty targets, log(0), division by 0); run '
        "the loss in float32 (fp32_modules=['...']); lower the learning rate "
        'or lengthen the warm-up.',
        zh_cn='loss 在缩放之前就已经是 NaN 或 Inf，调整 loss_scale 无济于事。'
        '请检查这些迭代的数据（输入或标签含 NaN 或 Inf、空标签、log(0)、除以 '
        "0）；让 loss 以 FP32 计算 (fp32_modules=['...'])；降低学习率或延长 "
        'warmup。',
    ),
    'steps.advice.nan_grad': Message(
        en='The loss is finite, but its gradient is not, and no loss_scale '
        'is to blame (it is off, or at its floor). Look at the named modules '
        'for sqrt or norm at 0, division by 0, masked softmax; run them in '
        "float32 (fp32_modules=['...']); lower the learning rate or lengthen "
        'the warm-up; with bfloat16, try float16 or float32.',
        zh_cn='loss 是有限值，但梯度不是，且与 loss_scale 无关（未启用或已降到'
        '下限）。请检查上述模块（sqrt/范数在 0 处求导、除以 0、带掩码的 '
        "softmax）；让它们以 FP32 计算 (fp32_modules=['...'])；降低学习率或"
        '延长 warmup；若使用 bfloat16，可改用 float16 或 FP32。',
    ),
    'steps.advice.spike': Message(
        en='Loss or gradient norm keep jumping far above their recent level. '
        'Look at the data of these iterations (wrong labels, outliers); clip '
        'gradients (clip_grad=dict(max_norm=...)); lower the learning rate '
        'or lengthen the warm-up.',
        zh_cn='loss 或梯度范数反复出现尖峰，远超近期水平。请检查这些迭代的数据'
        '（错误标签、离群样本）；启用梯度裁剪 '
        '(clip_grad=dict(max_norm=...))；降低学习率或延长 warmup。',
    ),
    'steps.advice.oom': Message(
        en='Batches do not fit in memory and are left out. Use a smaller '
        'batch_size with accumulative_counts, smaller crops, or '
        '--memory balanced; mmstable estimate CONFIG tells what fits.',
        zh_cn='batch 放不进显存，已被跳过。请减小 batch_size 并配合 '
        'accumulative_counts、减小裁剪尺寸，或使用 --memory balanced；'
        'mmstable estimate CONFIG 可估算能放下多少。',
    ),
    'steps.observed_only': Message(
        en='GradNanLoggerHook can only observe {wrapper}: a NaN is named, but '
        "not kept from the weights. Use type='mmstable.SafeOptimWrapper' or "
        "'mmstable.SafeAmpOptimWrapper' to be protected.",
        zh_cn='⚠️  GradNanLoggerHook 只能观察 {wrapper}：会指出 NaN 所在的'
        "参数，但无法阻止其写入权重。如需保护，请使用 type='mmstable."
        "SafeOptimWrapper' 或 'mmstable.SafeAmpOptimWrapper'。",
    ),
    # What skipped steps mean to others.
    'ema.every_iteration': Message(
        en='SafeEMAHook: the optimizer wrapper does not report skipped '
        'steps, so every iteration is averaged, as by EMAHook. Use '
        "type='mmstable.SafeOptimWrapper' or 'mmstable.SafeAmpOptimWrapper' "
        'to skip them.',
        zh_cn='SafeEMAHook：优化器封装不报告被跳过的步，因此与 EMAHook 一样，'
        '每次迭代都参与平均。如需跳过，请使用 '
        "type='mmstable.SafeOptimWrapper' 或 'mmstable.SafeAmpOptimWrapper'。",
    ),
    'schedule.every_iteration': Message(
        en='SafeParamSchedulerHook: the optimizer wrapper does not report '
        'skipped steps, so schedules move in every iteration, as by '
        'ParamSchedulerHook.',
        zh_cn='SafeParamSchedulerHook：优化器封装不报告被跳过的步，因此与 '
        'ParamSchedulerHook 一样，每次迭代都推进调度。',
    ),
    'schedule.waits': Message(
        en='Iter {iteration}: the step is skipped, so its schedule waits, '
        'now and after every skipped step. It catches up until iteration '
        '{last}, by extra steps now and then.',
        zh_cn='Iter {iteration}: 此步被跳过，其学习率调度等待一次；今后每次'
        '跳过都如此。调度会在第 {last} 次迭代之前通过额外的步补上。',
    ),
    'events.lost': Message(
        en='mmstable: EventLogHook: cannot write the event file in '
        "'{folder}': {error}. Training continues, and events are lost for as "
        'long as this lasts.',
        zh_cn="mmstable: EventLogHook：无法写入 '{folder}' 中的事件文件："
        '{error}。训练继续，在此期间的事件会丢失。',
    ),
}
