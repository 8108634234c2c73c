"""What ``mmstable doctor`` finds on the host and by computing."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'doctor.torch_import': Message(
        en='torch cannot be imported: {error}.',
        zh_cn='无法导入 torch：{error}。',
    ),
    'doctor_why.torch_import': Message(
        en='Nothing can be trained without it.',
        zh_cn='没有它就无法训练。',
    ),
    'doctor_fix.torch_import': Message(
        en='install it again, see pytorch.org',
        zh_cn='重新安装，参见 pytorch.org',
    ),
    'doctor.little_ram': Message(
        en='{left} of {limit} RAM are left.',
        zh_cn='内存剩余 {left}，共 {limit}。',
    ),
    'doctor_why.little_ram': Message(
        en='Data loading and checkpoints take RAM; without it the kernel '
        'kills the training.',
        zh_cn='数据加载和 checkpoint 需要内存；内存不足时内核会杀死训练进程。',
    ),
    'doctor_fix.little_ram': Message(
        en='end what else is running, lower `num_workers`, or raise the '
        'limit of the container',
        zh_cn='结束其他程序、减少 `num_workers`，或提高容器的内存上限',
    ),
    'doctor.small_shm': Message(
        en='{free} of {total} shared memory are free.',
        zh_cn='共享内存剩余 {free}，共 {total}。',
    ),
    'doctor_why.small_shm': Message(
        en='Workers hand their batches over in it; without room they die '
        'of a bus error.',
        zh_cn='worker 通过它传递 batch；空间不足时会因 bus error 而崩溃。',
    ),
    'doctor_fix.small_shm': Message(
        en='start the container with `--shm-size=16g` or `--ipc=host`',
        zh_cn='启动容器时加上 `--shm-size=16g` 或 `--ipc=host`',
    ),
    'doctor.swapping': Message(
        en='{used} of {total} swap are used.',
        zh_cn='交换空间已用 {used}，共 {total}。',
    ),
    'doctor_why.swapping': Message(
        en='A machine that swaps is slow, and steps of a training wait '
        'for it.',
        zh_cn='使用交换空间的机器很慢，训练步会等待它。',
    ),
    'doctor_fix.swapping': Message(
        en='end what else is running',
        zh_cn='结束其他程序',
    ),
    'doctor.low_limit': Message(
        en='the limit is {soft}, at least {least} is advisable ({hard} is '
        'allowed).',
        zh_cn='上限为 {soft}，建议至少 {least}（允许提高到 {hard}）。',
    ),
    'doctor_why.low_limit': Message(
        en='Many workers, long runs or large checkpoints reach it, and fail.',
        zh_cn='worker 较多、训练较长或 checkpoint 较大时会达到上限而失败。',
    ),
    'doctor_fix.low_limit': Message(
        en='raise it by `ulimit` before the training starts, or in '
        '/etc/security/limits.conf',
        zh_cn='在训练开始前用 `ulimit` 提高，或修改 /etc/security/limits.conf',
    ),
    'doctor.disk_write': Message(
        en='no file can be written: {error}.',
        zh_cn='无法写入文件：{error}。',
    ),
    'doctor_why.disk_write': Message(
        en='No checkpoint can be saved there.',
        zh_cn='无法在此保存 checkpoint。',
    ),
    'doctor_fix.disk_write': Message(
        en='name another folder by `--work-dir`, or get the permission',
        zh_cn='用 `--work-dir` 指定其他目录，或获取写权限',
    ),
    'doctor.no_space': Message(
        en='{free} of {total} are free.',
        zh_cn='磁盘剩余 {free}，共 {total}。',
    ),
    'doctor_why.no_space': Message(
        en='The next checkpoint does not fit.',
        zh_cn='下一个 checkpoint 放不下。',
    ),
    'doctor_fix.no_space': Message(
        en='delete what is not needed, or train elsewhere',
        zh_cn='删除不需要的文件，或换一个位置训练',
    ),
    'doctor.little_space': Message(
        en='{free} of {total} are free.',
        zh_cn='磁盘剩余 {free}，共 {total}。',
    ),
    'doctor_why.little_space': Message(
        en='Checkpoints of a long run may not fit.',
        zh_cn='长时间训练的 checkpoint 可能放不下。',
    ),
    'doctor_fix.little_space': Message(
        en='delete what is not needed, or set `max_keep_ckpts`',
        zh_cn='删除不需要的文件，或设置 `max_keep_ckpts`',
    ),
    'doctor.no_inodes': Message(
        en='only {left} more files can be created.',
        zh_cn='只能再创建 {left} 个文件。',
    ),
    'doctor_why.no_inodes': Message(
        en='The file system is out of inodes, although it has space.',
        zh_cn='文件系统还有空间，但 inode 已耗尽。',
    ),
    'doctor_fix.no_inodes': Message(
        en='delete small files',
        zh_cn='删除小文件',
    ),
    'doctor.disk_corrupt': Message(
        en='a file reads different from what was written.',
        zh_cn='读出的文件与写入的内容不同。',
    ),
    'doctor_why.disk_corrupt': Message(
        en='Checkpoints and data cannot be trusted.',
        zh_cn='checkpoint 和数据都不可信。',
    ),
    'doctor_fix.disk_corrupt': Message(
        en='look at the disk (`smartctl -a`), its cable, and the RAM',
        zh_cn='检查磁盘（`smartctl -a`）、线缆和内存',
    ),
    'doctor.slow_disk': Message(
        en='written at {speed}.',
        zh_cn='写入速度为 {speed}。',
    ),
    'doctor_why.slow_disk': Message(
        en='All ranks wait while a checkpoint is saved.',
        zh_cn='保存 checkpoint 时所有 rank 都要等待。',
    ),
    'doctor_fix.slow_disk': Message(
        en='write checkpoints to a local disk, or less often',
        zh_cn='把 checkpoint 写到本地磁盘，或降低保存频率',
    ),
    'doctor.wrong_clock': Message(
        en='the clock says {time}.',
        zh_cn='时钟显示 {time}。',
    ),
    'doctor_why.wrong_clock': Message(
        en='Certificates are refused, and logs cannot be compared.',
        zh_cn='证书会被拒绝，日志也无法对照。',
    ),
    'doctor_fix.wrong_clock': Message(
        en='set the clock, or switch NTP on',
        zh_cn='校准时钟，或启用 NTP',
    ),
    'doctor.disk_clock': Message(
        en='files get a time that is {seconds:+.0f} s off.',
        zh_cn='文件时间与本机相差 {seconds:+.0f} 秒。',
    ),
    'doctor_why.disk_clock': Message(
        en='The file server has another clock. Tools that go by file '
        'times are misled.',
        zh_cn='文件服务器的时钟不同，依据文件时间的工具会被误导。',
    ),
    'doctor_fix.disk_clock': Message(
        en='switch NTP on, here and there',
        zh_cn='在两边启用 NTP',
    ),
    'doctor.clock_jumps': Message(
        en='the clock has jumped by {seconds:+.1f} s while it was looked at.',
        zh_cn='观察期间时钟跳变 {seconds:+.1f} 秒。',
    ),
    'doctor_why.clock_jumps': Message(
        en='Timeouts and measured speeds are wrong.',
        zh_cn='超时和测得的速度都会出错。',
    ),
    'doctor_fix.clock_jumps': Message(
        en='look at NTP, or at the host of this virtual machine',
        zh_cn='检查 NTP，或该虚拟机的宿主机',
    ),
    'doctor.clock_sync': Message(
        en='the clock is not set over the network.',
        zh_cn='时钟没有通过网络同步。',
    ),
    'doctor_why.clock_sync': Message(
        en='The logs of several machines cannot be compared.',
        zh_cn='多台机器的日志无法对照。',
    ),
    'doctor_fix.clock_sync': Message(
        en='switch NTP on (`timedatectl set-ntp true`)',
        zh_cn='启用 NTP（`timedatectl set-ntp true`）',
    ),
    # Computing.
    'doctor.half_precision': Message(
        en='a product in {name} fails: {error}.',
        zh_cn='{name} 矩阵乘法失败：{error}。',
    ),
    'doctor_why.half_precision': Message(
        en='Mixed precision cannot be trained with here.',
        zh_cn='无法在此使用混合精度训练。',
    ),
    'doctor_fix.half_precision': Message(
        en='train in float32, or look at driver and torch',
        zh_cn='使用 float32 训练，或检查驱动和 torch',
    ),
    'doctor.bf16_emulated': Message(
        en='bfloat16 is emulated.',
        zh_cn='bfloat16 由软件模拟。',
    ),
    'doctor_why.bf16_emulated': Message(
        en='GPUs before compute capability 8.0 have no units for it: it '
        'is slow.',
        zh_cn='计算能力低于 8.0 的 GPU 没有相应的计算单元，速度很慢。',
    ),
    'doctor_fix.bf16_emulated': Message(
        en='train in fp16 (`--amp fp16`)',
        zh_cn='使用 fp16 训练（`--amp fp16`）',
    ),
    'doctor.wrong_products': Message(
        en='{wrong} of {products} products of the same matrices are wrong.',
        zh_cn='同样的矩阵相乘 {products} 次，其中 {wrong} 次结果错误。',
    ),
    'doctor_why.wrong_products': Message(
        en='The device computes wrong without an error: losses become NaN '
        'for no reason, and weights cannot be trusted.',
        zh_cn='设备静默地算错：损失会无缘无故变成 NaN，权重也不可信。',
    ),
    'doctor_fix.wrong_products': Message(
        en='do not train here. Undo overclocking, look at heat and power, '
        'test with `dcgmi diag -r 3` (GPU) or memtest86+ (CPU), and '
        'have it replaced',
        zh_cn='不要在此训练。取消超频，检查散热和供电，用 `dcgmi diag -r 3`（'
        'GPU）或 memtest86+（CPU）测试，并更换硬件',
    ),
    'doctor.bad_memory': Message(
        en='{blocks:block|blocks} of memory did not hold what was written.',
        zh_cn='有 {blocks} 块内存未能保持写入的内容。',
    ),
    'doctor_why.bad_memory': Message(
        en='Weights and data change by themselves.',
        zh_cn='权重和数据会自行改变。',
    ),
    'doctor_fix.bad_memory': Message(
        en='do not train here. Test with `dcgmi diag -r 3` (GPU) or '
        'memtest86+ (RAM), and have it replaced',
        zh_cn='不要在此训练。用 `dcgmi diag -r 3`（GPU）或 memtest86+（内存）'
        '测试，并更换硬件',
    ),
    'doctor.allocation': Message(
        en='{held} of {free} could be had.',
        zh_cn='只能申请到 {held}，期望 {free}。',
    ),
    'doctor_why.allocation': Message(
        en='Memory that is called free is not: a training runs out of it '
        'early.',
        zh_cn='显示为空闲的内存并不可用：训练会过早耗尽。',
    ),
    'doctor_fix.allocation': Message(
        en='look for other programs on the device, and for limits',
        zh_cn='检查设备上的其他程序和各种限制',
    ),
    'doctor.ddp_start': Message(
        en='training with {ranks:process|processes} does not start: {error}.',
        zh_cn='{ranks} 个进程的训练无法启动：{error}。',
    ),
    'doctor_why.ddp_start': Message(
        en='Neither will `mmstable dist-train`, or torchrun.',
        zh_cn='`mmstable dist-train` 和 torchrun 同样无法启动。',
    ),
    'doctor_fix.ddp_start': Message(
        en='look at firewall, host name (`ping $(hostname)`), '
        'GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO '
        'says more',
        zh_cn='检查防火墙、主机名（`ping $(hostname)`）、GLOO_SOCKET_IFNAME '
        '和 NCCL_SOCKET_IFNAME；NCCL_DEBUG=INFO 会给出更多信息',
    ),
}
