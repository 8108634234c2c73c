"""What the rules of ``mmstable check`` say about steps and schedules."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'check.int_scale': Message(
        en='`loss_scale={scale}` is an int.',
        zh_cn='`loss_scale={scale}` 是 int。',
    ),
    'check_why.int_scale': Message(
        en="mmengine's AmpOptimWrapper takes only a float, a dict or "
        "'dynamic', and raises a TypeError for an int.",
        zh_cn="mmengine 的 AmpOptimWrapper 只接受 float、dict 或 'dynamic'，"
        '遇到 int 会抛出 TypeError。',
    ),
    'check.frozen_scale': Message(
        en='the loss scale {scale} never moves.',
        zh_cn='loss scale {scale} 永远不变。',
    ),
    'check_why.frozen_scale': Message(
        en='A fixed loss scale does not back off after an overflow: the '
        'same steps are skipped again and again, in silence.',
        zh_cn='固定的 loss scale 溢出后不会回退：同样的步骤会被一再跳过，而且'
        '没有任何提示。',
    ),
    'check.high_scale': Message(
        en='the loss scale starts at {scale:g} with a loss weight of '
        '{weight:g}.',
        zh_cn='loss scale 从 {scale:g} 开始，而 loss 权重为 {weight:g}。',
    ),
    'check_why.high_scale': Message(
        en='fp16 ends at 65504: a loss of 1, or its gradient, overflows '
        'in the first steps.',
        zh_cn='fp16 的上限是 65504：loss 为 1 时，它或其梯度在最初几步就会溢'
        '出。',
    ),
    'check.bf16_unsupported': Message(
        en='bfloat16 on a GPU that does not support it.',
        zh_cn='GPU 不支持 bfloat16。',
    ),
    'check_why.bf16_unsupported': Message(
        en='GPUs before Ampere emulate bfloat16 or refuse it: training is '
        'slow, or fails.',
        zh_cn='Ampere 之前的 GPU 只能模拟 bfloat16 或直接拒绝：训练很慢，或失'
        '败。',
    ),
    'check.fp16_without_clipping': Message(
        en='{kinds} in fp16 without `clip_grad`.',
        zh_cn='{kinds} 以 fp16 训练，但没有 `clip_grad`。',
    ),
    'check_why.fp16_without_clipping': Message(
        en='Gradients of transformers have rare peaks; in fp16 one of '
        'them can end a run.',
        zh_cn='transformer 的梯度偶有尖峰；在 fp16 下，一次就可能毁掉训练。',
    ),
    'check.error_if_nonfinite': Message(
        en='clipping raises at the first overflow.',
        zh_cn='梯度裁剪会在第一次溢出时抛出异常。',
    ),
    'check_why.error_if_nonfinite': Message(
        en='With AMP an overflow is normal and costs one step; '
        '`error_if_nonfinite=True` ends the run instead.',
        zh_cn='使用 AMP 时溢出很正常，只损失一步；`error_if_nonfinite=True` '
        '则会终止训练。',
    ),
    'check.clipped_twice': Message(
        en='both GradClipHook and `{path}` clip.',
        zh_cn='GradClipHook 和 `{path}` 同时裁剪。',
    ),
    'check_why.clipped_twice': Message(
        en='GradClipHook takes over the clipping, and refuses to start '
        'beside `clip_grad`.',
        zh_cn='GradClipHook 接管裁剪，与 `clip_grad` 并存时会拒绝启动。',
    ),
    'check.bad_batch_size': Message(
        en='{error}',
        zh_cn='{error}',
    ),
    'check_why.bad_batch_size': Message(
        en='No batch has such a size. A division of whole numbers gives 0 '
        'if the second is larger.',
        zh_cn='没有这样大小的 batch。整数相除时，若除数更大，结果为 0。',
    ),
    'check_fix.bad_batch_size': Message(
        en='set `batch_size` to an int of at least 1',
        zh_cn='将 `batch_size` 设为不小于 1 的 int',
    ),
    'check.accumulation_too_long': Message(
        en='{error}',
        zh_cn='{error}',
    ),
    'check_why.accumulation_too_long': Message(
        en='The optimizer would never make a step: of several, none makes a '
        'shorter one at the end.',
        zh_cn='该优化器一步也不会更新：多个优化器时，结束前不足的部分不构成'
        '一步。',
    ),
    'check_fix.accumulation_too_long': Message(
        en='lower `accumulative_counts`, or train longer',
        zh_cn='减小 `accumulative_counts`，或训练更久',
    ),
    'check.accumulation_of_one_step': Message(
        en='a step takes {counts} iterations, but the whole run has {length}.',
        zh_cn='一步需要 {counts} 次迭代，而整个训练只有 {length} 次。',
    ),
    'check_why.accumulation_of_one_step': Message(
        en='The optimizer makes a single step, at the end of the run.',
        zh_cn='优化器只在训练结束时更新一步。',
    ),
    'check_fix.accumulation_of_one_step': Message(
        en='lower `accumulative_counts`, or train longer',
        zh_cn='减小 `accumulative_counts`，或训练更久',
    ),
    'check.accumulation_not_counted': Message(
        en='{length} iterations are {steps:step|steps} with '
        '`accumulative_counts={counts}`; the first schedule ends after '
        '{first} iterations, or {first_steps:step|steps}.',
        zh_cn='`accumulative_counts={counts}` 时，{length} 次迭代只有 '
        '{steps} 步；第一个调度在 {first} 次迭代（{first_steps} 步）后'
        '结束。',
    ),
    'check_why.accumulation_not_counted': Message(
        en='`max_iters`, schedules and warm-up count iterations, not '
        'steps: accumulation makes them shorter.',
        zh_cn='`max_iters`、调度和 warmup 数的是迭代而不是步骤：梯度累积会使'
        '它们变短。',
    ),
    'check_fix.accumulation_not_counted': Message(
        en='multiply `max_iters`, intervals and schedules by '
        '`accumulative_counts`, if they were meant as steps',
        zh_cn='如果它们指的是步骤，请将 `max_iters`、各间隔和调度乘以 '
        '`accumulative_counts`',
    ),
    'check.large_val_batch': Message(
        en='`{path}` is {size}, training has {train}.',
        zh_cn='`{path}` 为 {size}，而训练为 {train}。',
    ),
    'check_why.large_val_batch': Message(
        en='A validation or sampling batch of four times the training '
        'batch or more can run out of memory, hours after the start.',
        zh_cn='验证或采样的 batch 达到训练的四倍以上，可能在开始数小时后才耗'
        '尽显存。',
    ),
    'check.batchnorm_of_one': Message(
        en='{kind} with one sample at a time.',
        zh_cn='{kind} 每次只有一个样本。',
    ),
    'check_why.batchnorm_of_one': Message(
        en='Statistics of a single sample are noise, and fail where a '
        'layer sees one value; accumulation does not help.',
        zh_cn='单个样本的统计量只是噪声，若某层只有一个值还会出错；梯度累积无'
        '济于事。',
    ),
    'check_fix.batchnorm_of_one': Message(
        en='use a larger batch, SyncBN over several ranks, or GroupNorm '
        "(`norm_cfg=dict(type='GN', num_groups=32)`)",
        zh_cn='增大 batch，在多个 rank 上使用 SyncBN，或使用 GroupNorm（'
        "`norm_cfg=dict(type='GN', num_groups=32)`）",
    ),
    'check.lr_for_other_batch': Message(
        en='the learning rate is for {base} samples a step, but a step '
        'has {actual} ({ranks:rank|ranks} x batch_size {size} x '
        'accumulation {counts}): {factor:g} of it.',
        zh_cn='学习率对应每步 {base} 个样本，而实际每步 {actual} 个（{ranks} '
        '个 rank x batch_size {size} x 累积 {counts}），为其 '
        '{factor:g} 倍。',
    ),
    'check_why.lr_for_other_batch': Message(
        en='A learning rate for another batch size diverges if it is too '
        'high, and learns slowly if it is too low.',
        zh_cn='为另一种 batch size 设定的学习率：过高会发散，过低则学得很慢。',
    ),
    'check_fix.lr_for_other_batch': Message(
        en='multiply `optim_wrapper.optimizer.lr` by that factor; '
        '`mmstable check --ranks N` checks for another number of ranks',
        zh_cn='将 `optim_wrapper.optimizer.lr` 乘以该倍数；`mmstable check '
        '--ranks N` 可按其他 rank 数检查',
    ),
    'check.auto_scale_without_accumulation': Message(
        en='`auto_scale_lr` does not know of `accumulative_counts={counts}`.',
        zh_cn='`auto_scale_lr` 不考虑 `accumulative_counts={counts}`。',
    ),
    'check_why.auto_scale_without_accumulation': Message(
        en='mmengine scales the learning rate by ranks and batch size '
        'only: with accumulation it stays too low.',
        zh_cn='mmengine 只按 rank 数和 batch size 缩放学习率：使用梯度累积时'
        '会偏低。',
    ),
    'check_fix.auto_scale_without_accumulation': Message(
        en='divide `auto_scale_lr.base_batch_size` by '
        '`accumulative_counts`, and ignore this rule then',
        zh_cn='将 `auto_scale_lr.base_batch_size` 除以 '
        '`accumulative_counts`，然后忽略本规则',
    ),
    'check.no_warmup': Message(
        en='{kinds} without warm-up.',
        zh_cn='{kinds} 没有 warmup。',
    ),
    'check_why.no_warmup': Message(
        en="Adam's moments are poor estimates at first; transformers may "
        'diverge in the first steps at the full rate.',
        zh_cn='Adam 的动量起初估计不准；transformer 以全学习率起步时可能在最'
        '初几步发散。',
    ),
    'check_fix.no_warmup': Message(
        en='put a LinearLR in front of the schedule',
        zh_cn='在调度之前加一个 LinearLR',
    ),
    'check.schedule_by_epoch': Message(
        en='{kind} counts epochs, the run counts iterations.',
        zh_cn='{kind} 按 epoch 计，而训练按迭代计。',
    ),
    'check_why.schedule_by_epoch': Message(
        en='A run by iterations is a single epoch to mmengine: the '
        'schedule never moves. `by_epoch` is True unless it is written.',
        zh_cn='对 mmengine 来说，按迭代的训练只有一个 epoch：调度永远不动。不'
        '写 `by_epoch` 时它为 True。',
    ),
    'check.schedule_ends_early': Message(
        en='{kind} ends at {end}, the run at {length}.',
        zh_cn='{kind} 在 {end} 结束，而训练在 {length} 结束。',
    ),
    'check_why.schedule_ends_early': Message(
        en='After its end the learning rate stays where it is, often near '
        '0; a cosine with a shorter `T_max` rises again.',
        zh_cn='调度结束后学习率不再变化，往往接近 0；`T_max` 偏短的余弦调度还'
        '会重新上升。',
    ),
    'check_fix.schedule_ends_early': Message(
        en='let the schedule end with the run',
        zh_cn='让调度与训练同时结束',
    ),
    'check.schedule_ends_late': Message(
        en='{kind} ends at {end}, the run at {length}.',
        zh_cn='{kind} 在 {end} 结束，而训练在 {length} 结束。',
    ),
    'check_why.schedule_ends_late': Message(
        en='The run is over before the learning rate has come down.',
        zh_cn='学习率还没降下来，训练就结束了。',
    ),
    'check_fix.schedule_ends_late': Message(
        en='let the schedule end with the run',
        zh_cn='让调度与训练同时结束',
    ),
}
