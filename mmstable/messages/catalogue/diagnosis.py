"""What the report says is wrong with a run."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'diagnosis.skip_rate': Message(
        en='{skipped} of {steps} steps were skipped ({rate:.1%}).',
        zh_cn='{steps} 步中跳过了 {skipped} 步（{rate:.1%}）。',
    ),
    'diagnosis.skip_kinds': Message(
        en='By fault: {kinds}. ',
        zh_cn='按故障分类：{kinds}。',
    ),
    'diagnosis.trend.grows': Message(
        en='It gets worse: {early} bad steps in the first half, '
        '{late} in the second.',
        zh_cn='情况在恶化：前半段异常 {early} 步，后半段 {late} 步。',
    ),
    'diagnosis.trend.falls': Message(
        en='It gets better: {early} bad steps in the first half, '
        '{late} in the second.',
        zh_cn='情况在好转：前半段异常 {early} 步，后半段 {late} 步。',
    ),
    'diagnosis.trend.same': Message(
        en='Spread evenly: {early} bad steps in the first half, '
        '{late} in the second.',
        zh_cn='分布均匀：前半段异常 {early} 步，后半段 {late} 步。',
    ),
    'diagnosis.skip_fix.overflow': Message(
        en='Single overflows are how a dynamic loss scale finds its '
        'level. If they keep coming, start lower, or train in bf16.',
        zh_cn='偶尔溢出是动态 loss scale 寻找合适值的正常过程。'
        '若持续出现，请降低初始 loss scale，或改用'
        ' bf16。',
    ),
    'diagnosis.skip_fix.nan_loss': Message(
        en='The loss itself is NaN or Inf: look at the samples and '
        'the line that are named here. A lower loss scale does not help.',
        zh_cn='loss 本身就是 NaN 或 Inf：请查看此处列出的样本和代'
        '码行，降低 loss scale 没有用。',
    ),
    'diagnosis.skip_fix.nan_grad': Message(
        en='Gradients are NaN although the scale cannot fall: look at '
        'the module and the line that are named here.',
        zh_cn='loss scale 已无法再降，梯度仍为 NaN：请查看此'
        '处列出的模块和代码行。',
    ),
    'diagnosis.skip_fix.spike': Message(
        en='Loss or norm far above its level: clip gradients, '
        'lengthen the warm-up, or lower the learning rate.',
        zh_cn='loss 或梯度范数远高于正常水平：请裁剪梯度、延长'
        ' warmup 或降低学习率。',
    ),
    'diagnosis.skip_fix.oom': Message(
        en='Batches did not fit in memory: use a smaller batch, '
        'smaller crops, or a memory preset.',
        zh_cn='batch 放不进显存：请减小 batch 或裁剪尺寸，或使用显存预设。',
    ),
    'diagnosis.wasted': Message(
        en='{wasted:iteration|iterations} ({share:.1%}, about {time}) came '
        'to nothing.',
        zh_cn='{wasted} 次迭代（{share:.1%}，约 {time}）的计算被浪费。',
    ),
    'diagnosis.wasted_why': Message(
        en='{skipped} skipped, {undone} undone by rollbacks, {again} done '
        'again after restarts; {pause} between the starts.',
        zh_cn='跳过 {skipped} 次迭代，回退撤销 {undone} 次，重启后重做'
        ' {again} 次；各次启动之间相隔 {pause}。',
    ),
    'diagnosis.wasted_fix': Message(
        en='Save checkpoints more often, so that a restart loses less.',
        zh_cn='更频繁地保存检查点，重启时损失更少。',
    ),
    'diagnosis.sawtooth': Message(
        en='The loss scale grew {count:time|times} and fell back at '
        'once: {level:g} is what holds.',
        zh_cn='loss scale 有 {count} 次刚增大就回落：{level:g} 才是稳定值。',
    ),
    'diagnosis.sawtooth_why': Message(
        en='Each of the {count} attempts cost a step, one after every '
        '{interval} clean steps.',
        zh_cn='这 {count} 次尝试各损失一步，每'
        ' {interval} 个正常步后发生一次。',
    ),
    'diagnosis.sawtooth_fix': Message(
        en='Start at the scale that holds, and try a higher one less often.',
        zh_cn='以稳定值作为初始 loss scale，并减少尝试增大的频率。',
    ),
    'diagnosis.high_start': Message(
        en='The loss scale starts at {first:g}, and training begins '
        'at {level:g}.',
        zh_cn='loss scale 从 {first:g} 开始，降到 {level:g} 才真正开始训练。',
    ),
    'diagnosis.high_start_why': Message(
        en='The first {count} falls each cost a step.',
        zh_cn='最初 {count} 次下降各损失一步。',
    ),
    'diagnosis.high_start_fix': Message(
        en='Start where it ended up.',
        zh_cn='直接以最终的值作为初始值。',
    ),
    'diagnosis.model': Message(
        en='the model itself',
        zh_cn='模型本身',
    ),
    'diagnosis.injected': Message(
        en='{count:fault was|faults were} injected on purpose.',
        zh_cn='有 {count} 个故障是故意注入的。',
    ),
    'diagnosis.injected_why': Message(
        en='By FaultInjectorHook: {kinds}.',
        zh_cn='由 FaultInjectorHook 注入：{kinds}。',
    ),
    'diagnosis.injected_fix': Message(
        en='This was a drill. Remove the hook before you train for real.',
        zh_cn='这是一次演练。正式训练前请移除该钩子。',
    ),
    'diagnosis.place.fp16_overflow': Message(
        en='Values leave the range of fp16 in {module} ({count:time|times}).',
        zh_cn='{module} 中的数值超出 fp16 范围（{count} 次）。',
    ),
    'diagnosis.place.bad_input': Message(
        en='The input was bad before {module} saw it ({count:time|times}).',
        zh_cn='输入在进入 {module} 之前就已异常（{count} 次）。',
    ),
    'diagnosis.place.bad_weights': Message(
        en='{module} held NaN or Inf ({count:time|times}).',
        zh_cn='{module} 中存在 NaN 或 Inf（{count} 次）。',
    ),
    'diagnosis.place.singular_point': Message(
        en='An operation in {module} is not defined for what it gets '
        '({count:time|times}).',
        zh_cn='{module} 中的运算对其输入没有定义（{count} 次）。',
    ),
    'diagnosis.place.exploding': Message(
        en='Values explode in {module} ({count:time|times}).',
        zh_cn='{module} 中的数值爆炸（{count} 次）。',
    ),
    'diagnosis.place_why': Message(
        en='{text}',
        zh_cn='{text}',
    ),
    'diagnosis.place_fix.fp16_overflow': Message(
        en='Run this module in float32.',
        zh_cn='让该模块以 float32 运行。',
    ),
    'diagnosis.place_fix.bad_input': Message(
        en='Find and mend the samples: mmstable check-data CONFIG.',
        zh_cn='找出并修正这些样本：mmstable check-data CONFIG。',
    ),
    'diagnosis.place_fix.bad_weights': Message(
        en='Go back to a checkpoint from before; with '
        'mmstable.DivergenceGuardHook a run does so by itself.',
        zh_cn='退回到之前的检查点；使用'
        ' mmstable.DivergenceGuardHook '
        '时会自动回退。',
    ),
    'diagnosis.place_fix.singular_point': Message(
        en='Guard the operand in that line: clamp it, add an epsilon, '
        'or leave out empty targets.',
        zh_cn='在该行保护操作数：使用 clamp、加 epsilon，或排除空目标。',
    ),
    'diagnosis.place_fix.exploding': Message(
        en='Lower the learning rate, lengthen the warm-up, or clip gradients.',
        zh_cn='降低学习率、延长 warmup 或裁剪梯度。',
    ),
    'diagnosis.culprit': Message(
        en='Most bad gradients begin in {module}: {count} of kind {fault}.',
        zh_cn='异常梯度大多始于 {module}：{count} 次 {fault}。',
    ),
    'diagnosis.culprit_why': Message(
        en='It is the first culprit of these steps; nobody has replayed them.',
        zh_cn='它是这些步中第一个异常参数；尚未有人回放。',
    ),
    'diagnosis.culprit_fix': Message(
        en='Add mmstable.NanForensicsHook: it names the operation, '
        'the line and the sample.',
        zh_cn='添加 mmstable.NanForensicsHook：它会指出算子、代码行和样本。',
    ),
    'diagnosis.samples': Message(
        en='{count:sample is|samples are} under suspicion.',
        zh_cn='有 {count} 个可疑样本。',
    ),
    'diagnosis.samples_why': Message(
        en='Found where faults began: {names}.',
        zh_cn='在故障起点处发现：{names}。',
    ),
    'diagnosis.samples_fix': Message(
        en='Look at them, or leave them out: mmstable check-data CONFIG.',
        zh_cn='检查或排除它们：mmstable check-data CONFIG。',
    ),
    'diagnosis.headroom.overflow': Message(
        en='{module} uses {share:.0%} of the range of fp16 (iteration '
        '{iteration}).',
        zh_cn='{module} 已使用 fp16 范围的'
        ' {share:.0%}（第 {iteration} 次迭代'
        '）。',
    ),
    'diagnosis.headroom.underflow': Message(
        en='{share:.0%} of the fp16 gradients became zero, most in '
        '{module} (iteration {iteration}).',
        zh_cn='{share:.0%} 的 fp16 梯度变为零，以'
        ' {module} 最多（第 {iteration} 次迭代'
        '）。',
    ),
    'diagnosis.headroom_why': Message(
        en='HeadroomHook has warned {count:time|times}.',
        zh_cn='HeadroomHook 已警告 {count} 次。',
    ),
    'diagnosis.headroom_fix.overflow': Message(
        en='Run it in float32 (fp32_modules), or train in bf16.',
        zh_cn='让它以 float32 运行（fp32_modules），或改用 bf16。',
    ),
    'diagnosis.headroom_fix.underflow': Message(
        en='Raise the loss scale, or let it move.',
        zh_cn='增大 loss scale，或使用动态 loss scale。',
    ),
    'diagnosis.replicas': Message(
        en='Ranks {ranks} did not hold the same state as the others '
        '({count:time|times}).',
        zh_cn='rank {ranks} 的状态与其他 rank 不一致（{count} 次）。',
    ),
    'diagnosis.replicas_why': Message(
        en='First seen in {name}.',
        zh_cn='首先出现在 {name}。',
    ),
    'diagnosis.replicas_fix': Message(
        en='Test that machine: mmstable doctor. ReplicaCheckHook can '
        'repair such ranks.',
        zh_cn='检查该机器：mmstable doctor。'
        'ReplicaCheckHook 可以修复这些 rank。',
    ),
    'diagnosis.memory': Message(
        en='Host memory went from {first:.0f} to {last:.0f} MiB.',
        zh_cn='主机内存从 {first:.0f} MiB 变为 {last:.0f} MiB。',
    ),
    'diagnosis.memory_why': Message(
        en='About {rate:.0f} MiB in 1000 iterations; MemoryGuardHook '
        'gave {alarms:alarm|alarms}.',
        zh_cn='每 1000 次迭代约增加 {rate:.0f} MiB；'
        'MemoryGuardHook 发出 {alarms} 次警'
        '报。',
    ),
    'diagnosis.memory_fix': Message(
        en='Something keeps references: losses with their graph, '
        'lists in a data set, workers with copies of them.',
        zh_cn='有对象一直被引用：带计算图的 loss、数据集中的列表，或工'
        '作进程中的副本。',
    ),
    'diagnosis.oom': Message(
        en='{count:batch|batches} did not fit in memory.',
        zh_cn='{count} 个 batch 放不进显存。',
    ),
    'diagnosis.oom_why': Message(
        en='Where: {phases}. What was done: {rungs}.',
        zh_cn='发生位置：{phases}。处理方式：{rungs}。',
    ),
    'diagnosis.oom_fix': Message(
        en='See {file}, or ask before training: mmstable estimate CONFIG.',
        zh_cn='查看 {file}，或在训练前估算：mmstable estimate CONFIG。',
    ),
    'diagnosis.oom_fix_before': Message(
        en='Ask what fits before training: mmstable estimate CONFIG.',
        zh_cn='请在训练前估算：mmstable estimate CONFIG。',
    ),
    'diagnosis.slow_data': Message(
        en='{share:.0%} of the time is waiting for data.',
        zh_cn='{share:.0%} 的时间在等待数据。',
    ),
    'diagnosis.slow_data_why': Message(
        en='Of {whole:.3f} s for an iteration, {data:.3f} s are spent '
        'loading data.',
        zh_cn='每次迭代 {whole:.3f} 秒，其中 {data:.3f} 秒用于加载数据。',
    ),
    'diagnosis.slow_data_fix': Message(
        en='Use more workers (train_dataloader.num_workers), as far as '
        'there are cores, and keep them (persistent_workers=True).',
        zh_cn='在 CPU 核数允许的范围内增加工作进程'
        '（train_dataloader.num_workers），并保留它们'
        '（persistent_workers=True）。',
    ),
    'diagnosis.slow_phase': Message(
        en='{share:.0%} of the time of an iteration goes to: {phase}.',
        zh_cn='{phase} 占迭代时间的 {share:.0%}。',
    ),
    'diagnosis.slow.straggler': Message(
        en='The ranks wait for the slowest of them.',
        zh_cn='各 rank 都在等待最慢的一个。',
    ),
    'diagnosis.slow.validation': Message(
        en='Much of the time goes to validation.',
        zh_cn='大量时间花在验证上。',
    ),
    'diagnosis.slow.rare': Message(
        en='Much of the time goes by between the iterations that were '
        'measured.',
        zh_cn='大量时间花在被测量的迭代之外。',
    ),
    'diagnosis.slow_phase_fix': Message(
        en='What takes how long: mmstable profile CONFIG.',
        zh_cn='查看各部分耗时：mmstable profile CONFIG。',
    ),
    'diagnosis.unsaved': Message(
        en='{count:checkpoint was|checkpoints were} not saved, at last {name} '
        'at iteration {iteration}.',
        zh_cn='有 {count} 个 checkpoint 未能保存，最后一个是迭代 {iteration} '
        '的 {name}。',
    ),
    'diagnosis.unsaved_fix': Message(
        en='Make room on the disk of the work directory, or keep fewer '
        'checkpoints (max_keep_ckpts).',
        zh_cn='清理工作目录所在磁盘，或减少保留的 checkpoint 数量'
        '（max_keep_ckpts）。',
    ),
    'diagnosis.hang': Message(
        en='The run hung {count:time|times}, at last in the phase '
        '{phase!r} for {seconds:.0f} s.',
        zh_cn='训练卡住 {count} 次，最近一次停在阶段 {phase!r}，'
        '{seconds:.0f} 秒。',
    ),
    'diagnosis.hang_fix': Message(
        en='The stacks are in the folder of the run; mmstable doctor '
        'tests the machine.',
        zh_cn='调用栈保存在运行目录中；可用 mmstable doctor 检查机器。',
    ),
    'diagnosis.rising': Message(
        en='The loss rises: {last:.4g} now, {best:.4g} at its best.',
        zh_cn='loss 在上升：当前 {last:.4g}，最好时 {best:.4g}。',
    ),
    'diagnosis.rising_why': Message(
        en='The best was in part {part} of 8, and the last two parts '
        'are above it by half.',
        zh_cn='最好的一段是 8 段中的第 {part} 段，最后两段都比它高一半以上。',
    ),
    'diagnosis.rising_fix': Message(
        en='Lower the learning rate, or add '
        'mmstable.DivergenceGuardHook, which goes back in time.',
        zh_cn='降低学习率，或添加'
        ' mmstable.DivergenceGuardHook，'
        '它会及时回退。',
    ),
    'diagnosis.silent': Message(
        en='The run fell silent at iteration {iteration}.',
        zh_cn='运行在第 {iteration} 次迭代后没有任何记录。',
    ),
    'diagnosis.silent_why': Message(
        en='There is no last record: it was killed, or the machine went down.',
        zh_cn='没有结束记录：进程被杀死，或机器宕机。',
    ),
    'diagnosis.killed': Message(
        en='The run was killed after iteration {iteration}.',
        zh_cn='运行在第 {iteration} 次迭代后被杀死。',
    ),
    'diagnosis.killed_why': Message(
        en='Process {pid} on {host} is gone, and has left no last record: it '
        'was killed (out of memory? see `dmesg`), it crashed, or the machine '
        'was started again.',
        zh_cn='{host} 上的进程 {pid} 已不存在，且没有结束记录：它被杀死'
        '（内存不足？请查看 `dmesg`）、崩溃，或机器重启过。',
    ),
    'diagnosis.failed': Message(
        en='The run ended with an error at iteration {iteration}.',
        zh_cn='运行在第 {iteration} 次迭代时出错结束。',
    ),
    'diagnosis.guard_stop': Message(
        en='The guard has stopped the run at iteration {iteration}: '
        '{fault} since iteration {since}, and {rollbacks:rollback|rollbacks}'
        ' did not help.',
        zh_cn='第 {iteration} 次迭代时守护机制终止了训练：自第 {since} '
        '次迭代起出现 {fault}，{rollbacks} 次回退均未解决。',
    ),
    'diagnosis.guard_stop_fix': Message(
        en='Mend what is named here first, then resume from before it: '
        'mmstable train CONFIG --resume --before-iter {since}.',
        zh_cn='请先解决此处指出的问题，再从此前的检查点继续：'
        'mmstable train CONFIG --resume --before-iter {since}。',
    ),
    'diagnosis.failed_fix': Message(
        en='Mend what it says, then resume: mmstable train CONFIG --resume '
        'auto. What does not happen again is survived by --max-restarts.',
        zh_cn='按错误信息修正后继续训练：mmstable train CONFIG --resume auto。'
        '偶发的错误可用 --max-restarts 自动重启。',
    ),
    'diagnosis.end_fix': Message(
        en='With --max-restarts a run starts again by itself. Resume this '
        'one: {command}',
        zh_cn='使用 --max-restarts 可自动重启。继续这次训练：{command}',
    ),
    'diagnosis.end_fix_again': Message(
        en='It was started again before, and ended again: find out why, then '
        'resume it: {command}',
        zh_cn='它已被重启过，又再次终止：请先查明原因，再继续训练：{command}',
    ),
}
