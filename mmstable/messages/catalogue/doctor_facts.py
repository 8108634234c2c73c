"""Names of the tests of ``mmstable doctor``, and of the facts it shows."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    # Names of tests, and of what could not be looked at.
    'doctor_part.versions': Message(
        en='versions',
        zh_cn='版本',
    ),
    'doctor_part.host': Message(
        en='host',
        zh_cn='主机',
    ),
    'doctor_part.disk': Message(
        en='disk',
        zh_cn='磁盘',
    ),
    'doctor_part.clock': Message(
        en='clock',
        zh_cn='时钟',
    ),
    'doctor_part.precision': Message(
        en='half precision',
        zh_cn='半精度',
    ),
    'doctor_part.allocation': Message(
        en='memory',
        zh_cn='内存与显存',
    ),
    'doctor_part.arithmetic': Message(
        en='matrix products',
        zh_cn='矩阵乘法',
    ),
    'doctor_part.gpus': Message(
        en='state of the GPUs',
        zh_cn='GPU 状态',
    ),
    'doctor_part.xid': Message(
        en='kernel log',
        zh_cn='内核日志',
    ),
    'doctor_part.processes': Message(
        en='start of DDP',
        zh_cn='DDP 启动',
    ),
    'doctor_part.shm': Message(
        en='shared memory',
        zh_cn='共享内存',
    ),
    'doctor_part.limits': Message(
        en='limits of the process',
        zh_cn='进程限制',
    ),
    'doctor_part.disk_clock': Message(
        en='clock of the file system',
        zh_cn='文件系统时钟',
    ),
    'doctor_part.clock_sync': Message(
        en='synchronization of the clock',
        zh_cn='时钟同步',
    ),
    'doctor_part.gpu_facts': Message(
        en='what a GPU does not tell',
        zh_cn='GPU 未提供的信息',
    ),
    # Facts.
    'doctor_fact.cores': Message(
        en='cores',
        zh_cn='CPU 核数',
    ),
    'doctor_fact.ram': Message(
        en='RAM',
        zh_cn='内存',
    ),
    'doctor_fact.shm': Message(
        en='shared memory',
        zh_cn='共享内存',
    ),
    'doctor_fact.swap': Message(
        en='swap',
        zh_cn='交换空间',
    ),
    'doctor_fact.disk': Message(
        en='space',
        zh_cn='空间',
    ),
    'doctor_fact.disk_speed': Message(
        en='written at',
        zh_cn='写入速度',
    ),
    'doctor_fact.time': Message(
        en='time',
        zh_cn='时间',
    ),
    'doctor_fact.clock_sync': Message(
        en='set over the network',
        zh_cn='网络同步',
    ),
    'doctor_fact.float16': Message(
        en='computes in float16',
        zh_cn='支持 float16',
    ),
    'doctor_fact.bfloat16': Message(
        en='computes in bfloat16',
        zh_cn='支持 bfloat16',
    ),
    'doctor_fact.products': Message(
        en='products',
        zh_cn='乘法次数',
    ),
    'doctor_fact.speed': Message(
        en='speed',
        zh_cn='速度',
    ),
    'doctor_fact.checksum': Message(
        en='checksums',
        zh_cn='校验和',
    ),
    'doctor_fact.tested_memory': Message(
        en='memory tested',
        zh_cn='已测试',
    ),
    'doctor_fact.ddp': Message(
        en='DDP and all-reduce',
        zh_cn='DDP 与 all-reduce',
    ),
    'doctor_fact.kernel_log': Message(
        en='read from',
        zh_cn='读取自',
    ),
    'doctor_fact.xid_lines': Message(
        en='Xid lines',
        zh_cn='Xid 行数',
    ),
    'doctor_fact.gpu_name': Message(
        en='name',
        zh_cn='名称',
    ),
    'doctor_fact.gpu_memory': Message(
        en='memory used',
        zh_cn='已用显存',
    ),
    'doctor_fact.gpu_temperature': Message(
        en='temperature (°C)',
        zh_cn='温度（°C）',
    ),
    'doctor_fact.gpu_busy': Message(
        en='utilisation (%)',
        zh_cn='利用率（%）',
    ),
    'doctor_fact.gpu_power': Message(
        en='power and its limit (W)',
        zh_cn='功率与上限（W）',
    ),
    'doctor_fact.ecc_corrected': Message(
        en='ECC errors, corrected',
        zh_cn='已纠正的 ECC 错误',
    ),
    'doctor_fact.ecc_uncorrected': Message(
        en='ECC errors, uncorrected',
        zh_cn='不可纠正的 ECC 错误',
    ),
    'doctor_fact.ecc_uncorrected_ever': Message(
        en='ECC errors, uncorrected, of its life',
        zh_cn='历史不可纠正的 ECC 错误',
    ),
    'doctor_fact.retired_pages': Message(
        en='retired pages',
        zh_cn='退役页',
    ),
    'doctor_fact.remapped_rows': Message(
        en='remapped rows',
        zh_cn='重映射行',
    ),
    'doctor_fact.replays': Message(
        en='PCI Express packets sent again',
        zh_cn='PCI Express 重传包数',
    ),
    'doctor_fact.link_width': Message(
        en='PCI Express lanes',
        zh_cn='PCI Express 通道数',
    ),
    'doctor_fact.link_speed': Message(
        en='PCI Express generation',
        zh_cn='PCI Express 代数',
    ),
    'doctor_fact.throttles': Message(
        en='clock held down by',
        zh_cn='降频原因',
    ),
}
