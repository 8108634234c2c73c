"""What the rules of ``mmstable check`` say about machines and models."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'check.keeps_one_checkpoint': Message(
        en="`max_keep_ckpts=1` with mmengine's CheckpointHook.",
        zh_cn='mmengine 的 CheckpointHook 设置了 `max_keep_ckpts=1`。',
    ),
    'check_why.keeps_one_checkpoint': Message(
        en='It deletes the only checkpoint before it writes the next: a '
        'crash in between leaves none.',
        zh_cn='它先删除唯一的 checkpoint 再写新的：其间崩溃则一个不剩。',
    ),
    'check.checkpoints_by_epoch': Message(
        en='checkpoints by epoch in a run by iterations.',
        zh_cn='训练按迭代计，checkpoint 却按 epoch 保存。',
    ),
    'check_why.checkpoints_by_epoch': Message(
        en='A run by iterations is a single epoch to mmengine: nothing is '
        'saved before its end.',
        zh_cn='对 mmengine 来说，按迭代的训练只有一个 epoch：结束之前什么都不'
        '保存。',
    ),
    'check.validation_before_save': Message(
        en='validation every {between}, a checkpoint every {interval}.',
        zh_cn='每 {between} 验证一次，每 {interval} 保存一次 checkpoint。',
    ),
    'check_why.validation_before_save': Message(
        en='Validation is where memory runs out and metrics raise; '
        'without a checkpoint right before it, that loses more than '
        'the validation.',
        zh_cn='显存耗尽和指标异常常发生在验证时；若之前没有保存 checkpoint，'
        '损失的就不止是验证。',
    ),
    'check.disk_space': Message(
        en='{count} checkpoints of {size:.2f} GB, but {free:.2f} GB are free.',
        zh_cn='{count} 个 checkpoint 各 {size:.2f} GB，而剩余空间为 '
        '{free:.2f} GB。',
    ),
    'check_why.disk_space': Message(
        en='A full disk ends the run, or leaves half a checkpoint.',
        zh_cn='磁盘写满会终止训练，或留下不完整的 checkpoint。',
    ),
    'check_fix.disk_space': Message(
        en='keep fewer, save less often, or make room',
        zh_cn='减少保留数量，降低保存频率，或腾出空间',
    ),
    'check.workers_without_number': Message(
        en='`{path}` needs `num_workers` above 0.',
        zh_cn='`{path}` 要求 `num_workers` 大于 0。',
    ),
    'check_why.workers_without_number': Message(
        en='torch refuses settings of workers if there are no workers.',
        zh_cn='没有 worker 时，torch 会拒绝 worker 的设置。',
    ),
    'check.too_many_workers': Message(
        en='{workers:worker|workers} x {ranks:rank|ranks} = {all} '
        'processes on {cores:core|cores}.',
        zh_cn='{workers} 个 worker x {ranks} 个 rank = {all} 个进程，而只有 '
        '{cores} 个核。',
    ),
    'check_why.too_many_workers': Message(
        en='More busy processes than cores wait for each other, take '
        'memory, and slow down training itself.',
        zh_cn='忙碌的进程多于核数时会互相等待，占用内存，并拖慢训练本身。',
    ),
    'check_fix.too_many_workers': Message(
        en='use fewer workers',
        zh_cn='减少 worker',
    ),
    'check.shared_memory': Message(
        en='{workers:worker|workers} x prefetch {prefetch} x '
        '{ranks:rank|ranks} x {size:.2f} GB a batch = {need:.2f} GB, '
        '/dev/shm has {limit:.2f} GB.',
        zh_cn='{workers} 个 worker x prefetch {prefetch} x {ranks} 个 rank x '
        '每 batch {size:.2f} GB = {need:.2f} GB，/dev/shm 有 '
        '{limit:.2f} GB。',
    ),
    'check_why.shared_memory': Message(
        en='Workers hand batches over in /dev/shm; when it is full they '
        'die with a bus error.',
        zh_cn='worker 通过 /dev/shm 传递 batch；写满时会因 bus error 退出。',
    ),
    'check_fix.shared_memory': Message(
        en='use fewer workers, a smaller `prefetch_factor` or a smaller batch',
        zh_cn='减少 worker，减小 `prefetch_factor` 或 batch',
    ),
    'check.worker_memory': Message(
        en='{workers:worker|workers} x prefetch {prefetch} x '
        '{ranks:rank|ranks} x {size:.2f} GB a batch = {need:.2f} GB, '
        'half of the free memory is {limit:.2f} GB.',
        zh_cn='{workers} 个 worker x prefetch {prefetch} x {ranks} 个 rank x '
        '每 batch {size:.2f} GB = {need:.2f} GB，可用内存的一半为 '
        '{limit:.2f} GB。',
    ),
    'check_why.worker_memory': Message(
        en='Batches that wait take memory until the system kills a process.',
        zh_cn='等待中的 batch 占用内存，直到系统杀死某个进程。',
    ),
    'check_fix.worker_memory': Message(
        en='use fewer workers, a smaller `prefetch_factor` or a smaller batch',
        zh_cn='减少 worker，减小 `prefetch_factor` 或 batch',
    ),
    'check.sampler_repeats_data': Message(
        en='{kind} with {ranks:rank|ranks}.',
        zh_cn='{kind} 用于 {ranks} 个 rank。',
    ),
    'check_why.sampler_repeats_data': Message(
        en="torch's own samplers know nothing of ranks: all of them train "
        'on the same samples.',
        zh_cn='torch 自带的 sampler 不知道 rank：所有 rank 会用同样的样本训练'
        '。',
    ),
    'check.endless_epoch': Message(
        en='InfiniteSampler in a run by epochs.',
        zh_cn='按 epoch 的训练使用了 InfiniteSampler。',
    ),
    'check_why.endless_epoch': Message(
        en='The first epoch never ends: no validation, no checkpoint, no '
        'schedule.',
        zh_cn='第一个 epoch 永远不结束：没有验证，没有 checkpoint，调度也不动'
        '。',
    ),
    'check.activation_checkpointing': Message(
        en='`activation_checkpointing={names!r}`.',
        zh_cn='设置了 `activation_checkpointing={names!r}`。',
    ),
    'check_why.activation_checkpointing': Message(
        en='mmengine wraps modules by reentrant checkpointing: on inputs '
        'without gradients, as images, they get none and are not trained. '
        'SafeActivationCheckpointHook does it right.',
        zh_cn='mmengine 使用可重入的 checkpoint：输入没有梯度（例如图像）'
        '时，这些模块得不到梯度，不会被训练。'
        'SafeActivationCheckpointHook 没有这个问题。',
    ),
    'check.unused_with_checkpointing': Message(
        en='`find_unused_parameters=True` with `{path}=True`.',
        zh_cn='`find_unused_parameters=True` 且 `{path}=True`。',
    ),
    'check_why.unused_with_checkpointing': Message(
        en='With checkpointed activations DDP marks parameters ready '
        'twice, and raises.',
        zh_cn='使用激活 checkpoint 时，DDP 会将参数两次标记为就绪并抛出异常。',
    ),
    'check_fix.unused_with_checkpointing': Message(
        en='`find_unused_parameters = False`, or `model_wrapper_cfg = '
        "dict(type='MMDistributedDataParallel', static_graph=True)`",
        zh_cn='改为 `find_unused_parameters = False`，或 `model_wrapper_cfg '
        "= dict(type='MMDistributedDataParallel', static_graph=True)`",
    ),
    'check.train_step_without_context': Message(
        en='{name} never enters `optim_wrapper.optim_context`.',
        zh_cn='{name} 从不进入 `optim_wrapper.optim_context`。',
    ),
    'check_why.train_step_without_context': Message(
        en='Without it there is no autocast, no accumulation and no '
        'protection of buffers: a run in fp16 trains in fp32.',
        zh_cn='不进入它就没有 autocast、梯度累积和 buffer 保护：fp16 的训练实'
        '际以 fp32 进行。',
    ),
    'check_fix.train_step_without_context': Message(
        en='`with optim_wrapper.optim_context(self):` around the forward pass',
        zh_cn='用 `with optim_wrapper.optim_context(self):` 包住前向',
    ),
    'check.unseen_parameters': Message(
        en='the optimizer has none of {names} ({count} of {total} '
        'parameters).',
        zh_cn='优化器中没有 {names}（共 {count} 个，全部参数 {total} 个）。',
    ),
    'check_why.unseen_parameters': Message(
        en='They are never trained, although they may get gradients.',
        zh_cn='它们即使有梯度也从不训练。',
    ),
    'check_fix.unseen_parameters': Message(
        en='see `optim_wrapper.paramwise_cfg` and `constructor`, or set '
        '`requires_grad=False` if that is meant',
        zh_cn='检查 `optim_wrapper.paramwise_cfg` 和 `constructor`；如果是有'
        '意的，请设置 `requires_grad=False`',
    ),
    'check.no_gradient': Message(
        en='no gradient for {names} ({count} of {total} parameters).',
        zh_cn='{names} 没有梯度（共 {count} 个，全部参数 {total} 个）。',
    ),
    'check_why.no_gradient': Message(
        en='Parameters without gradients are not trained, and make DDP '
        'wait or raise.',
        zh_cn='没有梯度的参数不会被训练，还会使 DDP 等待或抛出异常。',
    ),
    'check_fix.no_gradient': Message(
        en='use them in the loss, set `requires_grad=False`, or '
        '`find_unused_parameters = True` for DDP',
        zh_cn='让它们参与 loss，设置 `requires_grad=False`，或为 DDP 设置 '
        '`find_unused_parameters = True`',
    ),
    'check.deep_failed': Message(
        en='{what} failed: {error}',
        zh_cn='{what} 失败：{error}',
    ),
    'check_why.deep_failed': Message(
        en='`--deep` builds the model and its optimizer, and does one '
        'forward and backward pass on the CPU.',
        zh_cn='`--deep` 构建模型和优化器，并在 CPU 上做一次前向和反向。',
    ),
    'check_fix.deep_failed': Message(
        en='see whether training fails with the same',
        zh_cn='看看训练是否因同样的原因失败',
    ),
}
