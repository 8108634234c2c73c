"""About a run that diverges, and what is done about it."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # Why something is done.
    'guard.bad_steps': Message(
        en='{bad:.4g} of the last {seen} steps were bad, {consecutive} in a '
        'row',
        zh_cn='最近 {seen} 步中有 {bad:.4g} 个异常步，连续 {consecutive} 个',
    ),
    'guard.poisoned': Message(
        en='the state of the run is not finite: {names}',
        zh_cn='状态被污染，含 NaN 或 Inf：{names}',
    ),
    'guard.spike': Message(
        en='{subject} jumped to {value:.4g} from a level of {level:.4g}',
        zh_cn='{subject} 出现尖峰：从近期水平 {level:.4g} 突增到 {value:.4g}',
    ),
    'guard.spike_on_other_rank': Message(
        en='{subject} jumped on another rank',
        zh_cn='其他 rank 的 {subject} 出现尖峰',
    ),
    'guard.learned': Message(
        en='{subject}: {times} of {among} steps were about {value:.3g}, far '
        'above the level of {level:.3g}, and the run came back from each. '
        'They belong to the data and are no spikes from now on. Look at '
        'their batches if they should not be there',
        zh_cn='{subject}：{among} 步中有 {times} 步约为 {value:.3g}，远高于'
        '近期水平 {level:.3g}，且每次之后都恢复正常。这类步属于数据本身，今后'
        '不再视为尖峰。若这些 batch 不该出现，请检查数据',
    ),
    # What is done.
    'guard.incident': Message(
        en='Iter {iteration}: {fault}: {reason}',
        zh_cn='⚠️  Iter {iteration}: {fault}：{reason}',
    ),
    'guard.warn': Message(
        en='{incident}; reported only', zh_cn='{incident}；仅报告'
    ),
    'guard.skip': Message(
        en='{incident}, step skipped', zh_cn='{incident}，跳过此次更新'
    ),
    'guard.lower_lr': Message(
        en='{incident}; {rate}', zh_cn='{incident}；{rate}'
    ),
    'guard.rollback': Message(
        en='{incident}. Rolled back to the state of iteration {restored} '
        '({source}), resumed with the next batch; {rate}. Rollback {spent} of '
        '{most}',
        zh_cn='{incident}。已回滚到第 {restored} 次迭代的状态（{source}），'
        '数据不回退，从下一个 batch 继续；{rate}。第 {spent}/{most} 次回滚',
    ),
    'guard.full_rate': Message(
        en='learning rate as it was', zh_cn='学习率不变'
    ),
    'guard.rate': Message(
        en='learning rate x {factor:g}', zh_cn='学习率 x {factor:g}'
    ),
    'guard.recovering_rate': Message(
        en='learning rate x {factor:g}, back to 1 in {iterations} iterations',
        zh_cn='学习率 x {factor:g}，{iterations} 次迭代内恢复为 1',
    ),
    'guard.in_memory': Message(en='in memory', zh_cn='内存快照'),
    'guard.snapshots': Message(
        en='a snapshot every {interval} iterations; the two that are kept '
        'take {mebibytes:.3g} MiB of host memory',
        zh_cn='每 {interval} 次迭代做一次快照；保留的两份占用主机内存 '
        '{mebibytes:.3g} MiB',
    ),
    'guard.no_snapshots': Message(
        en='two snapshots would take {gibibytes:.1f} GiB of host memory, more '
        'than max_snapshot_memory={limit:g}: rollbacks use the newest good '
        'checkpoint instead',
        zh_cn='两份快照需要主机内存 {gibibytes:.1f} GiB，超过 '
        'max_snapshot_memory={limit:g}：回滚时改用最新的完好 checkpoint',
    ),
    # When nothing more can be done.
    'guard.stop': Message(
        en='training is stopped at iteration {iteration}, because of {fault} '
        'since iteration {since}: {reason}.{tried} Nothing was validated or '
        'saved after that. What to change: {advice:; }. {resume} (details: '
        '{file})',
        zh_cn='训练在第 {iteration} 次迭代停止：自第 {since} 次迭代起出现 '
        '{fault}：{reason}。{tried}此后未做验证，也未保存。建议修改：'
        '{advice:；}。{resume}（详见 {file}）',
    ),
    'guard.tried': Message(
        en=' {rollbacks:rollback|rollbacks} did not help.',
        zh_cn='已回滚 {rollbacks} 次，仍无效。',
    ),
    'guard.no_checkpoint': Message(
        en='There is no good checkpoint from before: start a new run.',
        zh_cn='此前没有完好的 checkpoint，请重新开始训练。',
    ),
    'guard.advice.lr': Message(
        en='lower the learning rate or lengthen the warm-up',
        zh_cn='降低学习率或延长 warmup',
    ),
    'guard.advice.lr_is': Message(
        en='lower the learning rate ({path} is {lr:g} in the config: try '
        '{half}) or lengthen the warm-up',
        zh_cn='降低学习率（配置中 {path} 为 {lr:g}，可试 {half}）或延长 '
        'warmup',
    ),
    'guard.resume_lower': Message(
        en='Resume with half the learning rate by: {command} . Leave out the '
        'options from --override-lr-schedule on to resume as it was.',
        zh_cn='以一半的学习率恢复训练：{command} 。去掉 '
        '--override-lr-schedule 及其后的选项则按原样恢复。',
    ),
    'guard.advice.clip': Message(
        en='clip harder (optim_wrapper.clip_grad.max_norm), or choose '
        'stability/safe.py',
        zh_cn='加强梯度裁剪 (optim_wrapper.clip_grad.max_norm)，或选用 '
        'stability/safe.py',
    ),
    'guard.cause.overflow': Message(
        en='train in bfloat16 (optim_wrapper.dtype="bfloat16"), or keep the '
        'named modules in float32 (optim_wrapper.fp32_modules)',
        zh_cn='改用 bfloat16 (optim_wrapper.dtype="bfloat16")，或让上述模块以 '
        'FP32 计算 (optim_wrapper.fp32_modules)',
    ),
    'guard.cause.nan_loss': Message(
        en='look at the data of these iterations: NaN or Inf in inputs or '
        'targets, empty targets, log(0), division by 0',
        zh_cn='检查这些迭代的数据：输入或标签含 NaN 或 Inf、空标签、log(0)、'
        '除以 0',
    ),
    'guard.cause.nan_grad': Message(
        en='look at the named modules for sqrt or norm at 0, division by 0, '
        'masked softmax; keep them in float32 (optim_wrapper.fp32_modules)',
        zh_cn='检查上述模块：sqrt/范数在 0 处求导、除以 0、带掩码的 softmax；'
        '让它们以 FP32 计算 (optim_wrapper.fp32_modules)',
    ),
    'guard.cause.poisoned': Message(
        en='find out what writes to the named entries outside the optimizer: '
        'a custom hook, a custom layer, faulty memory of the device',
        zh_cn='查明是什么在优化器之外改写了上述内容：自定义 hook、自定义层，或'
        '显存故障',
    ),
    'guard.cause.spike': Message(
        en='look at the data of these iterations: wrong labels, outliers, a '
        'mixture of data sets',
        zh_cn='检查这些迭代的数据：错误标签、离群样本、混合数据集',
    ),
}
