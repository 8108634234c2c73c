"""Whether this torch can run a forward pass in float16 on a device."""

from __future__ import annotations

import warnings
from functools import cache

import torch

from mmstable.errors import ConfigError
from mmstable.messages import _


def require_autocast(device_type: str, dtype: torch.dtype) -> None:
    """Refuse what would fail in the first forward pass.

    Args:
        device_type (str): Where the model is.
        dtype (torch.dtype): What to autocast to.

    Raises:
        ConfigError: If the model is on a CPU, and this torch can autocast
            there to bfloat16 only.
    """
    if device_type != 'cpu' or dtype is not torch.float16:
        return
    if not _half_works_on_cpu():
        raise ConfigError(
            _(
                'SafeAmpOptimWrapper: torch {version} cannot autocast to '
                "float16 on a CPU: set `dtype='bfloat16'`, or install a "
                'newer torch.',
                version=torch.__version__,
            )
        )


@cache
def _half_works_on_cpu() -> bool:
    ones = torch.ones(1, 1)
    try:
        with warnings.catch_warnings():
            # An old torch warns that it switches autocast off.
            warnings.simplefilter('ignore')
            with torch.autocast('cpu', dtype=torch.float16):
                return torch.mm(ones, ones).dtype is torch.float16
    except RuntimeError:
        return False
