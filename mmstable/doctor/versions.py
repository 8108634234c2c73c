"""Which versions are here, and do they get along?"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mmstable.doctor.items import Fact, Item, Plan, found
from mmstable.doctor.known_bad import KNOWN_BAD
from mmstable.finding import Finding, Severity
from mmstable.messages import _

_PACKAGES = (
    'torch',
    'torchvision',
    'numpy',
    'mmengine',
    'mmcv',
    'mmcv-lite',
    'mmdet',
    'mmsegmentation',
    'mmpretrain',
    'nvidia-ml-py',
)
_DRIVER = Path('/proc/driver/nvidia/version')
_BOUND = re.compile(r'(>=|<=|<|>|==)(\d+(?:\.\d+)*)')


def versions(plan: Plan) -> Iterator[Item]:
    """Tell the versions, and what is known of them."""
    here = installed()
    try:
        here.update(_of_torch())
    except Exception as error:
        why = f'{type(error).__name__}: {error}'
        yield found('torch_import', Severity.ERROR, 'torch', error=why)
    for name, one in here.items():
        yield Fact(name, one, name)
    yield from known_bad(here)


def installed() -> dict[str, str]:
    """Versions that are known without importing anything."""
    here = {
        'python': platform.python_version(),
        'system': f'{platform.system()} {platform.release()}',
    }
    for name in _PACKAGES:
        try:
            here[name] = version(name)
        except PackageNotFoundError:
            continue
    driver = driver_version()
    return here if driver is None else {**here, 'driver': driver}


def driver_version(path: Path = _DRIVER) -> str | None:
    """The NVIDIA driver of the kernel, which works without its library.

    Args:
        path (Path): Where it says so. Defaults to /proc/driver/nvidia/version.
    """
    try:
        text = path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None
    line = re.search(r'Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s', text)
    return None if line is None else line[1]


def _of_torch() -> dict[str, str]:
    import torch

    here = {}
    if torch.version.cuda is not None:
        here['cuda'] = torch.version.cuda
    if torch.version.hip is not None:
        here['hip'] = torch.version.hip
    cudnn = torch.backends.cudnn.version()
    if cudnn is not None and torch.version.hip is None:
        here['cudnn'] = cudnn_text(cudnn)
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        here['nccl'] = '.'.join(map(str, torch.cuda.nccl.version()))
    return here


def cudnn_text(number: int) -> str:
    """The version of cuDNN, from a number as 8907 or 91002."""
    major = 1000 if number < 10000 else 10000
    rest = number % major
    return f'{number // major}.{rest // 100}.{rest % 100}'


def known_bad(here: Mapping[str, str]) -> Iterator[Finding]:
    """The rows of the table that hold.

    Args:
        here (Mapping[str, str]): Versions by name.
    """
    # Both are imported as mmcv.
    lite = {'mmcv': here['mmcv-lite']} if 'mmcv-lite' in here else {}
    every = {**lite, **here}
    for row in KNOWN_BAD:
        if all(
            name in every and in_range(every[name], bounds)
            for name, bounds in row.versions.items()
        ):
            names = [f'{name} {every[name]}' for name in row.versions]
            yield Finding(
                id='known_bad',
                severity=row.severity,
                path=' + '.join(row.versions),
                what=_('{names} do not get along.', names=names),
                why=_(row.why),
                fix=_(row.fix),
                source=row.source,
            )


def in_range(text: str, bounds: str) -> bool:
    """Whether a version is in a range.

    Args:
        text (str): As '2.1.0+cu118'.
        bounds (str): As '>=2,<2.3'.
    """
    mine = _numbers(text)
    for sign, number in _BOUND.findall(bounds):
        other = _numbers(number)
        length = max(len(mine), len(other))
        a = mine + (0,) * (length - len(mine))
        b = other + (0,) * (length - len(other))
        holds = {
            '>=': a >= b,
            '<=': a <= b,
            '<': a < b,
            '>': a > b,
            '==': a == b,
        }
        if not holds[sign]:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r'\d+(?:\.\d+)*', text)
    return tuple(int(n) for n in found[0].split('.')) if found else (0,)
