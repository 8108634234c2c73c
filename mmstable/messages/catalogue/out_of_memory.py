"""About batches that do not fit in memory."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'oom.happened': Message(
        en='Iter {iteration}: out of memory in the {phase} ({shapes}): '
        '{error}',
        zh_cn='Iter {iteration}: {phase}时显存/内存不足（{shapes}）：{error}',
    ),
    'oom_phase.forward': Message(en='forward pass', zh_cn='前向传播'),
    'oom_phase.backward': Message(en='backward pass', zh_cn='反向传播'),
    'oom_phase.optimizer': Message(en='optimizer step', zh_cn='优化器更新'),
    'oom_phase.validation': Message(en='validation', zh_cn='验证'),
    'oom_phase.test': Message(en='test', zh_cn='测试'),
    'oom.trying': Message(
        en='Iter {iteration}: trying {remedy}.',
        zh_cn='Iter {iteration}: 尝试：{remedy}。',
    ),
    'oom_remedy.retry': Message(
        en='the batch once more with an empty cache: same gradients',
        zh_cn='清空缓存后重试同一 batch：梯度不变',
    ),
    'oom_remedy.offload': Message(
        en='activations in the memory of the host: slower, same gradients',
        zh_cn='把激活值保存到主机内存：较慢，梯度不变',
    ),
    'oom_remedy.recompute': Message(
        en='activations of {modules} computed again in the backward pass: '
        'slower, same gradients',
        zh_cn='反向传播时重新计算 {modules} 的激活值：较慢，梯度不变',
    ),
    'oom_remedy.chunk': Message(
        en='{modules} in {parts} parts of the batch, with one loss over the '
        'whole batch: slower, gradients differ by rounding{note}',
        zh_cn='{modules} 分 {parts} 部分计算，loss 仍在整个 batch 上计算：'
        '较慢，梯度仅有舍入误差{note}',
    ),
    'oom.batch_norm': Message(
        en='; but {count:layer normalises|layers normalise} by the '
        'statistics of each part ({name}), which makes them approximate',
        zh_cn='；但有 {count} 个层按每一部分的统计量归一化（{name}），因此'
        '梯度只是近似的',
    ),
    'oom_remedy.split': Message(
        en='{parts} parts of the batch, each with a loss of its own: '
        'approximate, because losses that are averaged over valid pixels or '
        'positives, and BatchNorm, depend on the whole batch',
        zh_cn='把 batch 分成 {parts} 部分，各自计算 loss：梯度是近似的，因为'
        '按有效像素或正样本平均的 loss 以及 BatchNorm 取决于整个 batch',
    ),
    'oom_remedy.skip': Message(
        en='leaving the batch out', zh_cn='跳过该 batch'
    ),
    'oom.survived': Message(
        en='Iter {iteration}: the batch fits now ({rung}).{next}{report}',
        zh_cn='Iter {iteration}: 该 batch 已能放下（{rung}）。{next}{report}',
    ),
    'oom.starts_there': Message(
        en=' Batches of these shapes start there from now on; after {calm} '
        'of them something milder is tried.',
        zh_cn=' 之后相同形状的 batch 直接从这里开始；经过 {calm} 个之后再尝试'
        '更轻的措施。',
    ),
    'oom.report_file': Message(
        en=' What to change: {path}', zh_cn=' 如何调整见：{path}'
    ),
    'oom.eased': Message(
        en='Iter {iteration}: batches of these shapes have come through with '
        '{rung} for {calm} iterations; trying {milder} from now on.',
        zh_cn='Iter {iteration}: 这种形状的 batch 已用 {rung} 顺利训练 {calm} '
        '次迭代；之后改为尝试 {milder}。',
    ),
    'oom.whole_batch': Message(en='the whole batch', zh_cn='整个 batch'),
    'oom.cannot': Message(
        en='Iter {iteration}: {rung} is not possible: {reason}',
        zh_cn='Iter {iteration}: 无法使用 {rung}：{reason}',
    ),
    'oom.skipped': Message(
        en='Iter {iteration}: the batch does not fit in memory and is left '
        'out ({count} of at most {most}){reason}. Samples: {samples}. Shapes: '
        '{shapes}.{report}',
        zh_cn='Iter {iteration}: 该 batch 放不下，已跳过（第 {count} 个，最多 '
        '{most} 个）{reason}。样本：{samples}。形状：{shapes}。{report}',
    ),
    'oom.because': Message(en=': {reason}', zh_cn='：{reason}'),
    'oom.no_names': Message(en='unnamed', zh_cn='没有名称'),
    'oom.too_many': Message(
        en='{count:batch has|batches have} not fit in memory, which is more '
        'than max_skipped={most}. The last one: {samples} ({shapes}). '
        'What to change, the mildest first: {advice}{report}',
        zh_cn='已有 {count} 个 batch 放不下，超过 max_skipped={most}。最后'
        '一个：{samples}（{shapes}）。修改办法，从影响最小的开始：'
        '{advice}{report}',
    ),
    'oom.not_again': Message(
        en='mmstable cannot do this step again: {reason}',
        zh_cn='mmstable 无法重做这一步：{reason}',
    ),
    'oom_reason.optimizer': Message(
        en='memory ran out while the optimizer worked, and the weights may be '
        'half updated.',
        zh_cn='内存是在优化器更新时耗尽的，权重可能只更新了一半。',
    ),
    'oom_reason.updated': Message(
        en='an earlier update of the same train_step is made already; the '
        'rest of it is left out',
        zh_cn='同一 train_step 中较早的更新已经完成；跳过其余部分',
    ),
    'oom_reason.collective': Message(
        en='other ranks wait for this one in the middle of the model '
        '({name}), where one rank alone cannot begin again.',
        zh_cn='其他 rank 正在模型中间等待本 rank（{name}），单个 rank 无法'
        '单独重来。',
    ),
    'oom_reason.wrapper': Message(
        en='the optimizer wrapper ({name}) cannot leave out a step together '
        'with the other ranks; those of mmstable can.',
        zh_cn='优化器封装（{name}）无法与其他 rank 一起跳过这一步；mmstable '
        '的可以。',
    ),
    'oom_reason.unused': Message(
        en='find_unused_parameters=True, and nobody knows what the others '
        'still wait for.',
        zh_cn='使用了 find_unused_parameters=True，无法知道其他 rank 还在等待'
        '什么。',
    ),
    'oom.no_module': Message(
        en="the model has no module called 'backbone'. Name those that "
        "compute each sample by itself: train_cfg.oom=dict(chunk=['...'])",
        zh_cn="模型没有名为 'backbone' 的模块。请指出逐样本计算的模块："
        "train_cfg.oom=dict(chunk=['...'])",
    ),
    'oom.compiled': Message(en='the model is compiled', zh_cn='模型已编译'),
    'oom.one_sample': Message(
        en='the batch has one sample, or its size cannot be told',
        zh_cn='batch 只有一个样本，或无法确定其大小',
    ),
    'oom.many_wrappers': Message(
        en='a train_step with several optimizer wrappers',
        zh_cn='train_step 使用了多个优化器封装',
    ),
    'oom.uneven_inputs': Message(
        en='the tensors that the module gets have different lengths ({sizes})',
        zh_cn='该模块的输入张量长度不一（{sizes}）',
    ),
    'oom.no_tensors': Message(
        en='the module gets no tensors', zh_cn='该模块的输入没有张量'
    ),
    'oom.unlike_outputs': Message(
        en='the outputs of the module for parts of a batch do not fit '
        'together',
        zh_cn='该模块对 batch 各部分的输出无法拼接',
    ),
    'oom.not_by_sample': Message(
        en='an output of the module has not one entry for each sample (shape '
        '{shape})',
        zh_cn='该模块的某个输出不是每个样本一项（形状 {shape}）',
    ),
    'checkpointing.on': Message(
        en='SafeActivationCheckpointHook: activations of {modules} are '
        'computed again in the backward pass, in {count:block|blocks}: less '
        'memory, same gradients.',
        zh_cn='SafeActivationCheckpointHook：{modules} 的激活值在反向传播时'
        '重新计算，共 {count} 块：占用更少，梯度不变。',
    ),
    'checkpointing.compiled': Message(
        en='SafeActivationCheckpointHook: the model is compiled, which '
        'decides itself what to keep; it is left alone.',
        zh_cn='SafeActivationCheckpointHook：模型已编译，由编译器自行决定保留'
        '哪些激活值，因此不作改动。',
    ),
    # About validation and test.
    'oom.evaluated': Message(
        en='out of memory in {phase}, batch {batch} ({shapes}): it was run in '
        '{parts:part|parts}, with the same outputs.{lost} To avoid that: '
        '{loader}.batch_size={size}.',
        zh_cn='{phase}时显存/内存不足，batch {batch}（{shapes}）：分 {parts} '
        '部分运行，输出不变。{lost}可设置 {loader}.batch_size={size} 以避免。',
    ),
    'oom.lost': Message(
        en=' {count:sample does|samples do} not fit even alone, and '
        'are left out: {samples}.',
        zh_cn='有 {count} 个样本单独也放不下，已跳过：{samples}。',
    ),
    'oom.missing': Message(
        en='these metrics are without {count:sample|samples} of {size} that '
        'did not fit in memory.',
        zh_cn='以上指标缺少 {size} 个样本中的 {count} 个（内存放不下）。',
    ),
    # The file.
    'oom_report.title': Message(
        en='Iteration {iteration}: out of memory in the {phase}',
        zh_cn='第 {iteration} 次迭代：{phase}时显存/内存不足',
    ),
    'oom_report.rung': Message(
        en='What was done: {rung}', zh_cn='处理方式：{rung}'
    ),
    'oom_report.batch': Message(en='Batch: {shapes}', zh_cn='Batch：{shapes}'),
    'oom_report.samples': Message(
        en='Samples: {samples}', zh_cn='样本：{samples}'
    ),
    'oom_fact.requested': Message(
        en='Asked for: {size}', zh_cn='申请：{size}'
    ),
    'oom_fact.allocated': Message(
        en='Tensors on the device then: {size}',
        zh_cn='当时设备上的张量：{size}',
    ),
    'oom_fact.reserved': Message(
        en='Held by the allocator then: {size}',
        zh_cn='当时分配器占用：{size}',
    ),
    'oom_fact.peak': Message(
        en='Most tensors until then: {size}', zh_cn='此前张量峰值：{size}'
    ),
    'oom_report.phase_peak': Message(
        en='Peak in the {phase}, as the batch came through: {size}',
        zh_cn='该 batch 通过时{phase}的峰值：{size}',
    ),
    'oom_report.fragmented': Message(
        en='Much of what the allocator holds is in pieces that nobody uses '
        '(fragmentation): set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:'
        'True before the run.',
        zh_cn='分配器占用的内存中有很大部分是无人使用的碎片：请在训练前设置 '
        'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True。',
    ),
    'oom_report.snapshot': Message(
        en='What the allocator holds, for https://pytorch.org/memory_viz: '
        '{path}',
        zh_cn='分配器快照（可用 https://pytorch.org/memory_viz 查看）：{path}',
    ),
    'oom_report.largest': Message(
        en='Largest outputs of modules in this batch:',
        zh_cn='该 batch 中输出最大的模块：',
    ),
    'oom_report.advice': Message(
        en='What needs less memory, in the config:',
        zh_cn='在配置中可减少内存的改动：',
    ),
}
