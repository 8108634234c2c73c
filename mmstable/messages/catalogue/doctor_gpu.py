"""What ``mmstable doctor`` finds on GPUs, and what Xids mean."""

from __future__ import annotations

from mmstable.messages.message import Message

MESSAGES = {
    'doctor.driver_mismatch': Message(
        en='the driver and its library are of different versions: {error}.',
        zh_cn='驱动与其库的版本不一致：{error}。',
    ),
    'doctor_why.driver_mismatch': Message(
        en='It was updated while loaded. Programs that start now do not '
        'find the GPUs.',
        zh_cn='驱动在加载状态下被升级，新启动的程序找不到 GPU。',
    ),
    'doctor_fix.driver_mismatch': Message(
        en='reboot, or unload and load the kernel module',
        zh_cn='重启机器，或重新加载内核模块',
    ),
    'doctor.nvml_failed': Message(
        en='there is a driver, but its library does not answer: {error}.',
        zh_cn='驱动存在，但其库没有响应：{error}。',
    ),
    'doctor_why.nvml_failed': Message(
        en='The state of the GPUs cannot be seen.',
        zh_cn='无法查看 GPU 的状态。',
    ),
    'doctor_fix.nvml_failed': Message(
        en='`pip install nvidia-ml-py`, or look at what `nvidia-smi` says',
        zh_cn='`pip install nvidia-ml-py`，或查看 `nvidia-smi` 的输出',
    ),
    'doctor.gpu_lost': Message(
        en='it does not answer: {error}.',
        zh_cn='没有响应：{error}。',
    ),
    'doctor_why.gpu_lost': Message(
        en='It has crashed or fallen off the bus.',
        zh_cn='GPU 已崩溃或掉线。',
    ),
    'doctor_fix.gpu_lost': Message(
        en='reboot; if it happens again, look at power, heat and the '
        'slot, and have it replaced',
        zh_cn='重启；若再次发生，检查供电、散热和插槽，并更换 GPU',
    ),
    'doctor.ecc': Message(
        en='{count:uncorrected ECC error|uncorrected ECC errors} since '
        'the driver was loaded.',
        zh_cn='自驱动加载以来有 {count} 个不可纠正的 ECC 错误。',
    ),
    'doctor_why.ecc': Message(
        en='Memory of the GPU is defective. Results since then cannot be '
        'trusted.',
        zh_cn='显存有缺陷，此后的结果不可信。',
    ),
    'doctor_fix.ecc': Message(
        en='reset the GPU (`nvidia-smi -r`); have it replaced if they '
        'come again',
        zh_cn='重置 GPU（`nvidia-smi -r`）；若再次出现则更换',
    ),
    'doctor.ecc_ever': Message(
        en='{count:uncorrected ECC error|uncorrected ECC errors} in its '
        'life, none since the driver was loaded.',
        zh_cn='历史上有 {count} 个不可纠正的 ECC 错误，驱动加载以来没有。',
    ),
    'doctor_why.ecc_ever': Message(
        en='They may come again.',
        zh_cn='可能再次出现。',
    ),
    'doctor_fix.ecc_ever': Message(
        en='watch it (`mmstable doctor --watch`)',
        zh_cn='持续观察（`mmstable doctor --watch`）',
    ),
    'doctor.ecc_corrected': Message(
        en='{count:corrected ECC error|corrected ECC errors} since the '
        'driver was loaded.',
        zh_cn='自驱动加载以来有 {count} 个已纠正的 ECC 错误。',
    ),
    'doctor_why.ecc_corrected': Message(
        en='They do no harm, but so many announce worse.',
        zh_cn='它们本身无害，但数量之多预示着更严重的故障。',
    ),
    'doctor_fix.ecc_corrected': Message(
        en='watch it, and look at heat',
        zh_cn='持续观察，并检查散热',
    ),
    'doctor.remap_failed': Message(
        en='a row of its memory could not be remapped.',
        zh_cn='有一行显存重映射失败。',
    ),
    'doctor_why.remap_failed': Message(
        en='It has no spare rows left.',
        zh_cn='备用行已用尽。',
    ),
    'doctor_fix.remap_failed': Message(
        en='have it replaced',
        zh_cn='更换 GPU',
    ),
    'doctor.remap_pending': Message(
        en='a defective part of its memory is to be replaced by a spare one.',
        zh_cn='显存中有缺陷的部分等待被备用部分替换。',
    ),
    'doctor_why.remap_pending': Message(
        en='Until the next reset the defective one is in use.',
        zh_cn='在下次重置之前，仍在使用有缺陷的部分。',
    ),
    'doctor_fix.remap_pending': Message(
        en='reset the GPU (`nvidia-smi -r`), or reboot',
        zh_cn='重置 GPU（`nvidia-smi -r`），或重启',
    ),
    'doctor.throttled': Message(
        en='its clock is held down: {names}.',
        zh_cn='频率被降低：{names}。',
    ),
    'doctor_why.throttled': Message(
        en='It is slow, and with it all ranks; power that breaks down '
        'makes GPUs fail.',
        zh_cn='它变慢会拖慢所有 rank；供电不足会导致 GPU 故障。',
    ),
    'doctor_fix.throttled': Message(
        en='look at fans, air and the power supply',
        zh_cn='检查风扇、通风和电源',
    ),
    'doctor.hot': Message(
        en='{degrees} degrees Celsius, it slows down at {limit}.',
        zh_cn='{degrees} 摄氏度，达到 {limit} 度时降频。',
    ),
    'doctor_why.hot': Message(
        en='Hot GPUs are slow, and compute wrong sooner.',
        zh_cn='过热的 GPU 变慢，也更容易算错。',
    ),
    'doctor_fix.hot': Message(
        en='look at fans and air, or lower the power limit (`nvidia-smi -pl`)',
        zh_cn='检查风扇和通风，或降低功率上限（`nvidia-smi -pl`）',
    ),
    'doctor.narrow_link': Message(
        en='{width} of {most} PCI Express lanes are in use.',
        zh_cn='PCI Express 使用了 {width} 条通道，共 {most} 条。',
    ),
    'doctor_why.narrow_link': Message(
        en='Batches and gradients travel slower. The slot may have no '
        'more, or the card is not seated well.',
        zh_cn='batch 和梯度传输变慢。可能插槽本身如此，或显卡没有插好。',
    ),
    'doctor_fix.narrow_link': Message(
        en='look at the manual of the board; seat the card again',
        zh_cn='查看主板手册；重新插好显卡',
    ),
    'doctor.slow_link': Message(
        en='PCI Express of generation {speed} while busy, it can do {most}.',
        zh_cn='忙碌时 PCI Express 为第 {speed} 代，可达第 {most} 代。',
    ),
    'doctor_why.slow_link': Message(
        en='Batches and gradients travel slower.',
        zh_cn='batch 和梯度传输变慢。',
    ),
    'doctor_fix.slow_link': Message(
        en='look at the BIOS, at riser cables, and seat the card again',
        zh_cn='检查 BIOS 和延长线，重新插好显卡',
    ),
    'doctor.replays': Message(
        en='{count} packets had to be sent again over PCI Express.',
        zh_cn='PCI Express 重传了 {count} 个数据包。',
    ),
    'doctor_why.replays': Message(
        en='The link is bad; GPUs with such links fall off the bus.',
        zh_cn='链路质量差；这样的 GPU 容易掉线。',
    ),
    'doctor_fix.replays': Message(
        en='seat the card again, look at riser cables and power',
        zh_cn='重新插好显卡，检查延长线和供电',
    ),
    # Why a clock is low.
    'throttle.power_cap': Message(
        en='power limit',
        zh_cn='功率上限',
    ),
    'throttle.hardware': Message(
        en='hardware slowdown',
        zh_cn='硬件降频',
    ),
    'throttle.software_thermal': Message(
        en='temperature (driver)',
        zh_cn='温度（驱动降频）',
    ),
    'throttle.thermal': Message(
        en='temperature (hardware)',
        zh_cn='温度（硬件降频）',
    ),
    'throttle.power_brake': Message(
        en='power brake of the server',
        zh_cn='服务器的功率刹车',
    ),
    # Xids, after the catalogue of NVIDIA.
    'xid.13': Message(
        en='exception of the graphics engine',
        zh_cn='图形引擎异常',
    ),
    'xid.31': Message(
        en='memory page fault (MMU), an address that is not mapped',
        zh_cn='显存缺页（MMU fault），访问了未映射的地址',
    ),
    'xid.43': Message(
        en='the GPU stopped processing, a channel was reset after a fault '
        'of a program; the GPU itself is healthy',
        zh_cn='GPU 停止处理：程序出错后通道被重置，GPU 本身正常',
    ),
    'xid.45': Message(
        en='channels were cleaned up after an earlier error, or because a '
        'program was killed',
        zh_cn='先前的错误或程序被杀死后清理通道',
    ),
    'xid.48': Message(
        en='double-bit ECC error, an uncorrectable one',
        zh_cn='双比特 ECC 错误，不可纠正',
    ),
    'xid.61': Message(
        en='breakpoint or warning of the internal microcontroller',
        zh_cn='内部微控制器断点或警告',
    ),
    'xid.62': Message(
        en='the internal microcontroller halted',
        zh_cn='内部微控制器停止',
    ),
    'xid.63': Message(
        en='a page was retired or a row remapped after ECC errors',
        zh_cn='ECC 错误后的页退役或行重映射',
    ),
    'xid.64': Message(
        en='a page could not be retired, or a row not remapped',
        zh_cn='页退役或行重映射失败',
    ),
    'xid.68': Message(
        en='exception of the video decoder (NVDEC)',
        zh_cn='视频解码器（NVDEC）异常',
    ),
    'xid.69': Message(
        en='class error of the graphics engine',
        zh_cn='图形引擎类错误',
    ),
    'xid.74': Message(
        en='NVLink error',
        zh_cn='NVLink 错误',
    ),
    'xid.79': Message(
        en='the GPU has fallen off the bus',
        zh_cn='GPU 从总线掉线',
    ),
    'xid.92': Message(
        en='many single-bit ECC errors',
        zh_cn='单比特 ECC 错误率过高',
    ),
    'xid.94': Message(
        en='contained ECC error: uncorrectable, only the program that met '
        'it was ended',
        zh_cn='被隔离的 ECC 错误：不可纠正，只有遇到它的程序被终止',
    ),
    'xid.95': Message(
        en='uncontained ECC error: uncorrectable, every program on the '
        'GPU may be hit',
        zh_cn='未被隔离的 ECC 错误：不可纠正，GPU 上所有程序都可能受影响',
    ),
    'xid.109': Message(
        en='timeout of a context switch',
        zh_cn='上下文切换超时',
    ),
    'xid.119': Message(
        en='the processor on the GPU (GSP) did not answer in time',
        zh_cn='GPU 上的 GSP 处理器未按时响应',
    ),
    'xid.120': Message(
        en='error of the processor on the GPU (GSP)',
        zh_cn='GPU 上的 GSP 处理器出错',
    ),
    'xid.off_bus': Message(
        en='the GPU has fallen off the bus',
        zh_cn='GPU 从总线掉线',
    ),
    'xid.unknown': Message(
        en='not in the table of mmstable',
        zh_cn='不在 mmstable 的表中',
    ),
    'xid_kind.hardware': Message(
        en='Most likely hardware.',
        zh_cn='很可能是硬件问题。',
    ),
    'xid_kind.driver': Message(
        en='Most likely the driver or the firmware, sometimes hardware.',
        zh_cn='很可能是驱动或固件问题，有时是硬件问题。',
    ),
    'xid_kind.application': Message(
        en='Most likely a program, seldom driver or hardware.',
        zh_cn='很可能是程序问题，少数情况是驱动或硬件问题。',
    ),
    'xid_kind.unknown': Message(
        en='NVIDIA has a meaning for it.',
        zh_cn='NVIDIA 的文档中有其含义。',
    ),
    'xid_advice.program': Message(
        en='run the program with CUDA_LAUNCH_BLOCKING=1, or by '
        'compute-sanitizer; if different programs meet it on the same '
        'GPU only, test that with `dcgmi diag -r 3`',
        zh_cn='用 CUDA_LAUNCH_BLOCKING=1 或 compute-sanitizer 运行程序；若不'
        '同程序只在同一块 GPU 上出现，用 `dcgmi diag -r 3` 测试该 GPU',
    ),
    'xid_advice.before': Message(
        en='look at the Xid before it; none is needed if the program was '
        'stopped on purpose',
        zh_cn='查看它之前的 Xid；若是主动停止程序则无需处理',
    ),
    'xid_advice.memory': Message(
        en='stop what runs there and reset the GPU, or reboot; have it '
        'replaced if it comes again. Results of that time cannot be '
        'trusted',
        zh_cn='停止其上的程序并重置 GPU，或重启；再次出现则更换。当时的结果不'
        '可信',
    ),
    'xid_advice.contained': Message(
        en='reset the GPU at the next occasion (see Xid 63 and 64); have '
        'it replaced if it comes again',
        zh_cn='尽快重置 GPU（参见 Xid 63 和 64）；再次出现则更换',
    ),
    'xid_advice.controller': Message(
        en='reset the GPU or reboot, and update driver and firmware; have '
        'it replaced if it comes again',
        zh_cn='重置 GPU 或重启，并更新驱动和固件；再次出现则更换',
    ),
    'xid_advice.remapped': Message(
        en='reset the GPU at the next occasion, so that the spare memory '
        'is used',
        zh_cn='尽快重置 GPU，使备用显存生效',
    ),
    'xid_advice.replace': Message(
        en='have it replaced, after one reset that does not help',
        zh_cn='重置一次仍无效则更换',
    ),
    'xid_advice.engine': Message(
        en='restart the program; if it comes again, update the driver, '
        'then test with `dcgmi diag -r 3`',
        zh_cn='重新启动程序；再次出现则更新驱动，然后用 `dcgmi diag -r 3` 测'
        '试',
    ),
    'xid_advice.nvlink': Message(
        en='reset the GPUs on both ends; if it comes again, look at the '
        'bridge or the NVSwitch (`nvidia-smi nvlink -e`)',
        zh_cn='重置链路两端的 GPU；再次出现则检查桥接器或 NVSwitch（'
        '`nvidia-smi nvlink -e`）',
    ),
    'xid_advice.bus': Message(
        en='reboot; look at power supply and cables, heat, riser and '
        'slot; have it replaced if it comes again',
        zh_cn='重启；检查电源和线缆、散热、延长线和插槽；再次出现则更换',
    ),
    'xid_advice.single_bit': Message(
        en='watch the ECC counts, and look at heat',
        zh_cn='观察 ECC 计数，并检查散热',
    ),
    'xid_advice.gsp': Message(
        en='reboot and update the driver; if it comes again, switch the '
        'GSP off (NVreg_EnableGpuFirmware=0) where the driver allows it',
        zh_cn='重启并更新驱动；再次出现时，若驱动允许，可关闭 GSP（'
        'NVreg_EnableGpuFirmware=0）',
    ),
    'xid_advice.look_up': Message(
        en='look the number up in the catalogue of NVIDIA',
        zh_cn='在 NVIDIA 的 Xid 目录中查找该编号',
    ),
}
