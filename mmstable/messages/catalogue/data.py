"""About batches, and the position in the data."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'data.composition': Message(
        en='{setting}: 1 step = {counts} iterations (accumulative_counts) x '
        '{ranks:rank|ranks} x batch_size {batch_size} = {samples} samples; '
        '{iterations} iterations = {steps:step|steps}{rest}.',
        zh_cn='{setting}：1 步 = {counts} 次迭代 (accumulative_counts) x '
        '{ranks} 个 rank x batch_size {batch_size} = {samples} 个样本；'
        '{iterations} 次迭代 = {steps} 步{rest}。',
    ),
    'data.short_step': Message(
        en=', and a last one of {iterations:iteration|iterations}',
        zh_cn='，另有最后一步只含 {iterations} 次迭代',
    ),
    'data.one_short_step': Message(
        en='{setting}.accumulative_counts={counts}: a step takes {counts} '
        'iterations, but the whole run has {iterations}, so that it makes one '
        'step, at its end. If that is not what you want: accumulative_counts '
        '<= {iterations}, or a longer run (train_cfg)',
        zh_cn='{setting}.accumulative_counts={counts}：一步需要 {counts} 次'
        '迭代，而整个训练只有 {iterations} 次，因此只在结束时更新一步。如非本'
        '意，请设 accumulative_counts <= {iterations}，或延长训练 (train_cfg)',
    ),
    'data.no_short_step': Message(
        en=', none of the last {iterations:iteration|iterations}',
        zh_cn='，最后 {iterations} 次迭代不构成一步',
    ),
    'data.starts_again': Message(
        en='The data was used once and starts again, and so on. With '
        'InfiniteSampler workers would not have to restart.',
        zh_cn='数据已用完一遍，从头开始，以后也是如此。使用 InfiniteSampler '
        '时 worker 无需重新启动。',
    ),
    'data.rereading': Message(
        en='Read {done} of {count} past batches, {seconds:.0f} s left.',
        zh_cn='已重读 {done}/{count} 个过去的 batch，剩余 {seconds:.0f} 秒。',
    ),
    'data.reread': Message(
        en='Read {count} past batches again in {seconds:.1f} s.',
        zh_cn='用 {seconds:.1f} 秒重读了 {count} 个过去的 batch。',
    ),
    'data.seed': Message(
        en='The seed of the sampler is {seed} again, not {configured}.',
        zh_cn='sampler 的种子恢复为 {seed}，而不是 {configured}。',
    ),
    'data.changed': Message(
        en='The data is not as it was when the checkpoint was saved: '
        '{changes}. Training resumes after the same number of samples, at '
        'batch {batch} of epoch {epoch} of the data.',
        zh_cn='数据与保存 checkpoint 时不同：{changes}。训练从相同的样本数之后'
        '恢复，即数据的第 {epoch} 个 epoch 的第 {batch} 个 batch。',
    ),
    'data.skipping': Message(
        en='Resuming at batch {batch} of the data, without reading those '
        'before it.',
        zh_cn='从数据的第 {batch} 个 batch 恢复，不读取之前的 batch。',
    ),
    'data.epoch_length': Message(
        en='An epoch has {length} iterations now: training continues after '
        'iteration {iteration}, and ends with iteration {last}.',
        zh_cn='现在一个 epoch 有 {length} 次迭代：训练从第 {iteration} 次迭代'
        '之后继续，到第 {last} 次迭代结束。',
    ),
    # About the error that ends a run.
    'failure.memory': Message(
        en='mmstable: out of memory in training. Lower '
        'train_dataloader.batch_size, and raise '
        'optim_wrapper.accumulative_counts by as much to keep the effective '
        'batch; train in mixed precision (--amp); or use smaller inputs.',
        zh_cn='mmstable: 训练时内存不足。请减小 train_dataloader.batch_size，'
        '并相应增大 optim_wrapper.accumulative_counts 以保持有效 batch 大小；'
        '使用混合精度训练 (--amp)；或使用更小的输入。',
    ),
    'failure.val_memory': Message(
        en='mmstable: out of memory in validation, not in training. Lower '
        'val_dataloader.batch_size, or validate on smaller inputs; '
        '--no-validate trains without.',
        zh_cn='mmstable: 内存不足发生在验证时，而不是训练时。请减小 '
        'val_dataloader.batch_size，或用更小的输入验证；--no-validate 则只'
        '训练不验证。',
    ),
    'failure.validation': Message(
        en='mmstable: this happened in validation, not in training.',
        zh_cn='mmstable: 错误发生在验证时，而不是训练时。',
    ),
    'failure.no_grad': Message(
        en='mmstable: the loss depends on no parameter that can be trained. '
        'Is every parameter frozen (requires_grad=False), or is the loss '
        'detached or computed under torch.no_grad()?',
        zh_cn='mmstable: loss 不依赖任何可训练的参数。是否冻结了所有参数'
        '（requires_grad=False），或者 loss 被 detach、在 torch.no_grad() 下'
        '计算？',
    ),
    'loop.hook_failed': Message(
        en='{hook}.on_exception failed; the error that it was called for '
        'follows.',
        zh_cn='{hook}.on_exception 失败；引发它的错误如下。',
    ),
}
