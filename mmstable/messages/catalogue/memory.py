"""About memory that runs out, and what a config takes."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'memory.host': Message(
        en='Iter {iteration}: host RAM grows {growth} per 100 iterations, '
        '{time} to the limit of {limit} ({source}); {holders}. {advice}',
        zh_cn='Iter {iteration}: 主机内存每 100 次迭代增长 {growth}，约 '
        '{time} 后达到上限 {limit}（{source}）；{holders}。{advice}',
    ),
    'memory.share': Message(
        en='dataloader workers hold {share:.0%}; {loading}',
        zh_cn='dataloader worker 占 {share:.0%}；{loading}',
    ),
    'memory.loading': Message(
        en='{workers:worker|workers} x {prefetch} prefetch',
        zh_cn='{workers} 个 worker × 预取 {prefetch} 批',
    ),
    'memory.no_workers': Message(
        en='the training process holds all of it',
        zh_cn='全部由训练进程占用',
    ),
    'memory.descriptors': Message(
        en='Iter {iteration}: open files of {holder} grow by {growth} per 100 '
        'iterations, {time} to the limit of {limit} (ulimit -n). {advice}',
        zh_cn='Iter {iteration}: {holder}打开的文件数每 100 次迭代增加 '
        '{growth}，约 {time} 后达到上限 {limit}（ulimit -n）。{advice}',
    ),
    'memory.shared': Message(
        en='Iter {iteration}: shared memory (/dev/shm) grows {growth} per 100 '
        'iterations, {time} to the limit of {limit}; {loading}. {advice}',
        zh_cn='Iter {iteration}: 共享内存 (/dev/shm) 每 100 次迭代增长 '
        '{growth}，约 {time} 后达到上限 {limit}；{loading}。{advice}',
    ),
    'memory.critical': Message(
        en='Iter {iteration}: {resource} nearly used up: {left} of {limit} '
        'left. {action}',
        zh_cn='Iter {iteration}: {resource}即将耗尽：{limit} 中只剩 {left}。'
        '{action}',
    ),
    'memory_source.cgroup': Message(
        en='of the control group', zh_cn='cgroup 限制'
    ),
    'memory_source.machine': Message(en='of the machine', zh_cn='整机内存'),
    'memory_source.setting': Message(
        en='set by `host_limit`', zh_cn='由 `host_limit` 设置'
    ),
    'memory_holder.main_process': Message(
        en='the training process', zh_cn='训练进程'
    ),
    'memory_holder.workers': Message(
        en='a dataloader worker', zh_cn='某个 dataloader worker '
    ),
    'memory_resource.host': Message(en='host RAM is', zh_cn='主机内存'),
    'memory_resource.descriptors': Message(
        en='file descriptors are', zh_cn='文件描述符'
    ),
    'memory_resource.shared_memory': Message(
        en='shared memory is', zh_cn='共享内存'
    ),
    'memory_action.warn': Message(
        en='Nothing is done: `action` is warn.',
        zh_cn='不采取措施：`action` 为 warn。',
    ),
    'memory_action.save': Message(
        en='A checkpoint is saved after this step.',
        zh_cn='本步结束后保存 checkpoint。',
    ),
    'memory_action.restart': Message(
        en='After this step a checkpoint is saved and the run ends, to be '
        'started again (exit code 22).',
        zh_cn='本步结束后保存 checkpoint 并结束训练，等待重新启动'
        '（退出码 22）。',
    ),
    'memory.advice_workers': Message(
        en='Workers leak: look for lists, caches and open files that the '
        'dataset or a transform keeps; fewer num_workers, a lower '
        'prefetch_factor and persistent_workers=False put it off.',
        zh_cn='worker 进程泄漏：检查数据集或变换中不断增长的列表、缓存和未关'
        '闭的文件；减少 num_workers、降低 prefetch_factor、设置 '
        'persistent_workers=False 可以推迟耗尽。',
    ),
    'memory.advice_main': Message(
        en='The training process leaks: look for losses kept with their graph '
        '(use .item()), and for lists of a hook, metric or logger.',
        zh_cn='训练进程泄漏：检查连同计算图一起保留的 loss（应使用 .item()）'
        '，以及 hook、指标或日志中不断增长的列表。',
    ),
    'memory.advice_descriptors': Message(
        en='Files are opened and not closed, as HDF5, LMDB or zip handles: '
        'open them once in each worker, or with `with`.',
        zh_cn='文件打开后未关闭，例如 HDF5、LMDB 或 zip 句柄：每个 worker '
        '只打开一次，或使用 `with`。',
    ),
    'memory.advice_shared': Message(
        en='Batches on their way from workers are kept: lower num_workers x '
        'prefetch_factor, do not keep batches, or give a container more '
        '(--shm-size).',
        zh_cn='worker 送来的批次没有被释放：降低 num_workers × '
        'prefetch_factor，不要保留批次，或给容器更多共享内存 (--shm-size)。',
    ),
    'memory.lowered': Message(
        en='mmstable: from the next pass over the data on: {loading}.',
        zh_cn='mmstable: 从下一遍数据开始：{loading}。',
    ),
    'memory.lowered_now': Message(
        en='mmstable: the data is read by new workers from here on: '
        '{loading}. Their random augmentation differs from then on.',
        zh_cn='mmstable: 从这里起由新的 worker 读取数据：{loading}。此后随机'
        '增强会有所不同。',
    ),
    'memory.no_saver': Message(
        en='MemoryGuardHook: nothing is saved without '
        'EmergencyCheckpointHook.',
        zh_cn='MemoryGuardHook：没有 EmergencyCheckpointHook 就不会保存。',
    ),
    'memory.asker': Message(
        en='MemoryGuardHook', zh_cn='MemoryGuardHook 的请求'
    ),
    'memory.blind': Message(
        en='MemoryGuardHook: host memory cannot be watched: {reason}.',
        zh_cn='MemoryGuardHook：无法监视主机内存：{reason}。',
    ),
    'memory.retries': Message(
        en='Iter {iteration}: the device ran short of memory and everything '
        'cached was given back ({count:time|times}): {allocated} in tensors, '
        '{reserved} reserved. If these differ much, set '
        'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.',
        zh_cn='Iter {iteration}: 设备显存不足，缓存已全部释放后重试（{count} '
        '次）：张量占用 {allocated}，已保留 {reserved}。如果两者相差很大，请'
        '设置 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True。',
    ),
}
