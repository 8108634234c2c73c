"""About ranks that fail, or differ."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'dist.failed': Message(
        en='error: rank {rank} was the first to fail, with exit code {code}; '
        'the reason is above',
        zh_cn='错误：rank {rank} 最先失败，退出码 {code}；原因见上',
    ),
    'dist.crashed': Message(
        en='it crashed ({signal}): a bug in native code, or a sick machine; '
        '`mmstable doctor` tests this one',
        zh_cn='进程崩溃（{signal}）：本地代码的缺陷，或机器故障；可用 '
        '`mmstable doctor` 检查本机',
    ),
    'dist.port_taken': Message(
        en='port {port} is taken, perhaps by another training on this '
        'machine: choose another one by --port.',
        zh_cn='端口 {port} 已被占用，可能是本机的另一个训练：请用 --port '
        '换一个端口。',
    ),
    'dist.stopped': Message(
        en='stopped by {signal}', zh_cn='因 {signal} 停止'
    ),
    'rank.failed': Message(
        en='rank {rank}{node} failed{when}: {error}',
        zh_cn='rank {rank}{node} {when}失败：{error}',
    ),
    'rank.node': Message(en=' ({node})', zh_cn='（{node}）'),
    'rank.after_iteration': Message(
        en=' after iteration {iteration}', zh_cn='在第 {iteration} 次迭代之后'
    ),
    'rank.silent': Message(
        en='no sign of life for {seconds:.0f} s. It was killed (out of '
        'memory? see `dmesg`), its machine is gone, or it hangs (test that '
        'machine with `mmstable doctor`)',
        zh_cn='{seconds:.0f} 秒没有任何响应。它被杀死（内存不足？请查看 '
        '`dmesg`），或其机器已失联，或已挂起（请在该机器上运行 '
        '`mmstable doctor`）',
    ),
    'rank.store_gone': Message(
        en='the store of this run is gone with it ({error})',
        zh_cn='本次训练的 store 也随之丢失（{error}）',
    ),
    'rank.this_stops': Message(
        en='{failure}. This rank stops.', zh_cn='{failure}。本 rank 停止。'
    ),
    'rank.all_stop': Message(
        en='mmstable: {failure}. All ranks stop. {resume}',
        zh_cn='mmstable: {failure}。所有 rank 停止。{resume}',
    ),
    'rank.left': Message(
        en='mmstable: {error} {resume} Its stack is in {folder}.',
        zh_cn='mmstable: {error}{resume} 其调用栈见 {folder}。',
    ),
    'rank.saved': Message(
        en='Saved {path}. {resume}', zh_cn='已保存 {path}。{resume}'
    ),
    'rank.not_saved': Message(
        en='mmstable: no emergency checkpoint, because {reason}.',
        zh_cn='mmstable: 不保存紧急 checkpoint，因为{reason}。',
    ),
    'rank.inexact': Message(
        en='mmstable: what is saved is not exactly the state before: '
        '{reason}.',
        zh_cn='mmstable: 保存的状态与此前的状态并不完全一致：{reason}。',
    ),
    'rank.own_buffers': Message(
        en='buffers, as the statistics of BatchNorm, are those of rank '
        '{rank}, not of rank 0',
        zh_cn='缓冲区（如 BatchNorm 的统计量）来自 rank {rank}，而不是 rank 0',
    ),
    'rank.has_no_whole_state': Message(
        en='no rank has the whole state of this run',
        zh_cn='没有任何 rank 持有完整的训练状态',
    ),
    'rank.was_updating': Message(
        en='the weights were being updated', zh_cn='权重正在更新'
    ),
    'rank.is_behind': Message(
        en='this rank has missed the newest update',
        zh_cn='本 rank 错过了最新的更新',
    ),
    'rank.was_accumulating': Message(
        en='gradients were being accumulated', zh_cn='梯度正在累积'
    ),
    'rank.never_caught_up': Message(
        en='this rank has missed an update, and the others do not come to '
        'give it what it missed.',
        zh_cn='本 rank 错过了一次更新，而其他 rank 没有来补给它。',
    ),
    'rank.foreign_word': Message(
        en="mmstable: what the store holds under '{key}' was not written by a "
        'rank of this run, and is ignored: {error}. Who can reach the '
        "store's port? See docs/en/distributed.md.",
        zh_cn="mmstable: store 中 '{key}' 的内容不是由本次训练的 rank 写入的，"
        '已忽略：{error}。谁能访问 store 的端口？见 '
        'docs/zh_cn/distributed.md。',
    ),
    # How they are started.
    'launcher.variables': Message(
        en='--launcher {launcher}: {missing} is not set; start this by '
        '{starter}.',
        zh_cn='--launcher {launcher}：没有设置 {missing}；请用 {starter} 启动'
        '。',
    ),
    'launcher.mpi_address': Message(
        en='--launcher mpi: set MASTER_ADDR to the machine of rank 0, as in '
        '`mpirun -x MASTER_ADDR=node1 ...`: Open MPI does not tell it.',
        zh_cn='--launcher mpi：请把 MASTER_ADDR 设为 rank 0 所在的机器，例如 '
        '`mpirun -x MASTER_ADDR=node1 ...`：Open MPI 不提供它。',
    ),
    'launcher.slurm_address': Message(
        en='--launcher slurm: `scontrol show hostnames` does not tell the '
        "first of '{nodes}' ({error}); set MASTER_ADDR to it.",
        zh_cn='--launcher slurm：`scontrol show hostnames` 没有给出 '
        "'{nodes}' 中的第一个（{error}）；请把 MASTER_ADDR 设为它。",
    ),
    'launcher.gloo': Message(
        en='no GPU here: backend gloo instead of nccl',
        zh_cn='没有 GPU：使用 gloo 后端代替 nccl',
    ),
    'replicas.sharded': Message(
        en='ReplicaCheckHook: the model is sharded, so there are no replicas '
        'to compare.',
        zh_cn='ReplicaCheckHook：模型是分片的，没有可比较的副本。',
    ),
    'replicas.differ': Message(
        en="Iter {iteration}: replica mismatch: '{name}'{more} on rank "
        '{ranks} is not what the other ranks hold.{repaired}',
        zh_cn="Iter {iteration}: 副本不一致：rank {ranks} 上的 '{name}'{more} "
        '与其他 rank 不同。{repaired}',
    ),
    'replicas.more': Message(
        en=' and {count} more', zh_cn=' 等，另有 {count} 项，'
    ),
    'replicas.repaired': Message(
        en=' It has been copied from rank {rank}.',
        zh_cn='已从 rank {rank} 复制。',
    ),
}
