"""Versions that are known not to work together.

A row holds where all that it names is installed in such a version. Each has
the place where it can be looked up.
"""

from __future__ import annotations

from typing import NamedTuple

from mmstable.finding import Severity
from mmstable.messages.message import Message

_ERROR, _WARNING, _HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


class Row(NamedTuple):
    """A combination that is known to be bad.

    Args:
        versions (dict[str, str]): From names to ranges, as '>=2,<2.3'.
        severity (Severity): How bad it is.
        why (Message): What goes wrong.
        fix (Message): What to install.
        source (str): Where that is said.
    """

    versions: dict[str, str]
    severity: Severity
    why: Message
    fix: Message
    source: str


_DRIVER = Message(
    en='The driver is older than this CUDA needs: torch does not find the '
    'GPUs, or fails at the first kernel.',
    zh_cn='驱动版本低于该 CUDA 的要求：torch 找不到 GPU，或在第一个 kernel '
    '处失败。',
)
_UPDATE_DRIVER = Message(
    en='update the driver, or install a torch for an older CUDA',
    zh_cn='升级驱动，或安装面向较旧 CUDA 的 torch',
)
_COMPATIBILITY = (
    'https://docs.nvidia.com/deploy/cuda-compatibility/'
    'minor-version-compatibility.html'
)
_OLDER_MMCV = Message(en='install mmcv 2.1.0', zh_cn='安装 mmcv 2.1.0')

KNOWN_BAD = [
    Row(
        {'torch': '<2.3', 'numpy': '>=2'},
        _ERROR,
        Message(
            en='This torch was built for NumPy 1: `tensor.numpy()` raises '
            '"Numpy is not available", and data loading with it.',
            zh_cn='该 torch 针对 NumPy 1 构建：`tensor.numpy()` 会报 “Numpy '
            'is not available”，数据加载随之失败。',
        ),
        Message(
            en='install numpy<2, or torch 2.3 or newer',
            zh_cn='安装 numpy<2，或 torch 2.3 及以上',
        ),
        'https://github.com/pytorch/pytorch/issues/107302',
    ),
    Row(
        {'mmengine': '>=0', 'mmcv': '<2'},
        _ERROR,
        Message(
            en='mmcv 1.x has a runner of its own and does not know mmengine.',
            zh_cn='mmcv 1.x 自带 runner，不支持 mmengine。',
        ),
        Message(en='install mmcv 2.x', zh_cn='安装 mmcv 2.x'),
        'https://github.com/open-mmlab/mmcv/issues/2502',
    ),
    Row(
        {'mmdet': '>=3.2,<=3.3', 'mmcv': '>=2.2'},
        _ERROR,
        Message(
            en='mmdet refuses to be imported with this mmcv.',
            zh_cn='mmdet 在该 mmcv 下拒绝导入。',
        ),
        _OLDER_MMCV,
        'https://github.com/open-mmlab/mmdetection/issues/11763',
    ),
    Row(
        {'mmsegmentation': '<=1.2.2', 'mmcv': '>=2.2'},
        _ERROR,
        Message(
            en='mmseg refuses to be imported with this mmcv.',
            zh_cn='mmseg 在该 mmcv 下拒绝导入。',
        ),
        _OLDER_MMCV,
        'https://github.com/open-mmlab/mmsegmentation/blob/v1.2.2/'
        'mmseg/__init__.py',
    ),
    Row(
        {'torch': '>=2.6', 'mmengine': '<=0.10.7'},
        _HINT,
        Message(
            en='`torch.load` reads nothing but weights by default, and '
            "mmengine's own loading of its checkpoints fails. "
            '`mmstable train` reads them by itself.',
            zh_cn='`torch.load` 默认只读取权重，mmengine 自身加载其 '
            'checkpoint 会失败。`mmstable train` 使用自己的读取器，不受影响。',
        ),
        Message(
            en='resume by `mmstable train --resume`',
            zh_cn='用 `mmstable train --resume` 恢复训练',
        ),
        'https://github.com/open-mmlab/mmengine/issues/1655',
    ),
    Row(
        {'cuda': '>=13,<14', 'driver': '<580'},
        _ERROR,
        _DRIVER,
        _UPDATE_DRIVER,
        _COMPATIBILITY,
    ),
    Row(
        {'cuda': '>=12,<13', 'driver': '<525'},
        _ERROR,
        _DRIVER,
        _UPDATE_DRIVER,
        _COMPATIBILITY,
    ),
    Row(
        {'cuda': '>=11,<12', 'driver': '<450'},
        _ERROR,
        _DRIVER,
        _UPDATE_DRIVER,
        _COMPATIBILITY,
    ),
    Row(
        {'driver': '>=525,<525.105'},
        _WARNING,
        Message(
            en='The first drivers of the 525 series can lose the processor '
            'on the GPU (Xid 119): a training hangs.',
            zh_cn='525 系列的早期驱动可能与 GPU 上的 GSP 失去联系（Xid 119），'
            '导致训练挂起。',
        ),
        Message(
            en='update the driver to 525.105.17 or newer',
            zh_cn='把驱动升级到 525.105.17 或更新版本',
        ),
        'https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446',
    ),
    Row(
        {'torch': '<2.9', 'cudnn': '>=9.8,<9.13'},
        _WARNING,
        Message(
            en='3-D convolutions in bfloat16 can give wrong results, without '
            'a word.',
            zh_cn='bfloat16 的三维卷积可能悄无声息地给出错误结果。',
        ),
        Message(
            en='install cuDNN 9.13 or newer if the model has such',
            zh_cn='若模型含有此类卷积，请安装 cuDNN 9.13 或更新版本',
        ),
        'https://github.com/pytorch/pytorch/issues/163539',
    ),
    Row(
        {'torch': '>=2.9,<2.10', 'cudnn': '<9.15'},
        _WARNING,
        Message(
            en='3-D convolutions in bfloat16 take several times the memory.',
            zh_cn='bfloat16 的三维卷积占用数倍显存。',
        ),
        Message(
            en='install cuDNN 9.15 or newer if the model has such',
            zh_cn='若模型含有此类卷积，请安装 cuDNN 9.15 或更新版本',
        ),
        'https://github.com/pytorch/pytorch/issues/166643',
    ),
    Row(
        {'nccl': '>=2.25,<2.26.2'},
        _WARNING,
        Message(
            en='When a rank fails, the others can hang while they leave '
            '(`ncclCommAbort`).',
            zh_cn='某个 rank 失败时，其他 rank 退出时可能挂起'
            '（`ncclCommAbort`）。',
        ),
        Message(
            en='install NCCL 2.26.2 or newer',
            zh_cn='安装 NCCL 2.26.2 或更新版本',
        ),
        'https://github.com/pytorch/pytorch/pull/149546',
    ),
    Row(
        {'nccl': '>=2.29.2,<2.29.3'},
        _WARNING,
        Message(
            en='This NCCL can hang, which older ones do not.',
            zh_cn='该版本的 NCCL 可能挂起，更早的版本没有此问题。',
        ),
        Message(
            en='install NCCL 2.29.3 or newer',
            zh_cn='安装 NCCL 2.29.3 或更新版本',
        ),
        'https://github.com/pytorch/pytorch/pull/174338',
    ),
]
