"""Versions that are known not to work together.

A row holds where all that it names is installed in such a version. Each has
the place where it can be looked up.
"""

from __future__ import annotations

from typing import NamedTuple

from mmstable.finding import Severity
from mmstable.messages import N_

_ERROR, _WARNING, _HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


class Row(NamedTuple):
    """A combination that is known to be bad.

    Args:
        versions (dict[str, str]): From names to ranges, as '>=2,<2.3'.
        severity (Severity): How bad it is.
        why (str): What goes wrong, in English.
        fix (str): What to install, in English.
        source (str): Where that is said.
    """

    versions: dict[str, str]
    severity: Severity
    why: str
    fix: str
    source: str


_DRIVER = N_(
    'The driver is older than this CUDA needs: torch does not find the GPUs, '
    'or fails at the first kernel.'
)
_UPDATE_DRIVER = N_('update the driver, or install a torch for an older CUDA')
_COMPATIBILITY = (
    'https://docs.nvidia.com/deploy/cuda-compatibility/'
    'minor-version-compatibility.html'
)
_OLDER_MMCV = N_('install mmcv 2.1.0')

KNOWN_BAD = [
    Row(
        {'torch': '<2.3', 'numpy': '>=2'},
        _ERROR,
        N_(
            'This torch was built for NumPy 1: `tensor.numpy()` raises '
            '"Numpy is not available", and data loading with it.'
        ),
        N_('install numpy<2, or torch 2.3 or newer'),
        'https://github.com/pytorch/pytorch/issues/107302',
    ),
    Row(
        {'mmengine': '>=0', 'mmcv': '<2'},
        _ERROR,
        N_('mmcv 1.x has a runner of its own and does not know mmengine.'),
        N_('install mmcv 2.x'),
        'https://github.com/open-mmlab/mmcv/issues/2502',
    ),
    Row(
        {'mmdet': '>=3.2,<=3.3', 'mmcv': '>=2.2'},
        _ERROR,
        N_('mmdet refuses to be imported with this mmcv.'),
        _OLDER_MMCV,
        'https://github.com/open-mmlab/mmdetection/issues/11763',
    ),
    Row(
        {'mmsegmentation': '<=1.2.2', 'mmcv': '>=2.2'},
        _ERROR,
        N_('mmseg refuses to be imported with this mmcv.'),
        _OLDER_MMCV,
        'https://github.com/open-mmlab/mmsegmentation/blob/v1.2.2/'
        'mmseg/__init__.py',
    ),
    Row(
        {'torch': '>=2.6', 'mmengine': '<=0.10.7'},
        _HINT,
        N_(
            '`torch.load` reads nothing but weights by default, and '
            "mmengine's own loading of its checkpoints fails. `mmstable "
            'train` reads them by itself.'
        ),
        N_('resume by `mmstable train --resume`'),
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
        N_(
            'The first drivers of the 525 series can lose the processor on '
            'the GPU (Xid 119): a training hangs.'
        ),
        N_('update the driver to 525.105.17 or newer'),
        'https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446',
    ),
    Row(
        {'torch': '<2.9', 'cudnn': '>=9.8,<9.13'},
        _WARNING,
        N_(
            '3-D convolutions in bfloat16 can give wrong results, without a '
            'word.'
        ),
        N_('install cuDNN 9.13 or newer if the model has such'),
        'https://github.com/pytorch/pytorch/issues/163539',
    ),
    Row(
        {'torch': '>=2.9,<2.10', 'cudnn': '<9.15'},
        _WARNING,
        N_('3-D convolutions in bfloat16 take several times the memory.'),
        N_('install cuDNN 9.15 or newer if the model has such'),
        'https://github.com/pytorch/pytorch/issues/166643',
    ),
    Row(
        {'nccl': '>=2.25,<2.26.2'},
        _WARNING,
        N_(
            'When a rank fails, the others can hang while they leave '
            '(`ncclCommAbort`).'
        ),
        N_('install NCCL 2.26.2 or newer'),
        'https://github.com/pytorch/pytorch/pull/149546',
    ),
    Row(
        {'nccl': '>=2.29.2,<2.29.3'},
        _WARNING,
        N_('This NCCL can hang, which older ones do not.'),
        N_('install NCCL 2.29.3 or newer'),
        'https://github.com/pytorch/pytorch/pull/174338',
    ),
]
