"""Can it compute in float16 and bfloat16?"""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.doctor.devices import devices
from mmstable.doctor.items import Item, Plan, fact, found
from mmstable.finding import Severity
from mmstable.messages import _

# Sums of so many ones are exact in bfloat16, which has 8 bits.
_LENGTH = 256


def precision(plan: Plan) -> Iterator[Item]:
    """Try both on every device."""
    for device in devices():
        for name in ('float16', 'bfloat16'):
            problem = try_precision(device, name)
            works = not problem
            answer = _('yes') if works else problem
            if works and name == 'bfloat16' and _is_emulated(device):
                answer = _('emulated')
                yield found('bf16_emulated', Severity.WARNING, device)
            yield fact(name, answer, device)
            if problem and device != 'cpu':
                yield found(
                    'half_precision',
                    Severity.ERROR,
                    device,
                    name=name,
                    error=problem,
                )


def try_precision(device: str, name: str) -> str:
    """What is wrong with a product in that precision; '' if nothing.

    Args:
        device (str): Where.
        name (str): 'float16' or 'bfloat16'.
    """
    import torch

    dtype = getattr(torch, name)
    try:
        ones = torch.ones(_LENGTH, _LENGTH, dtype=dtype, device=device)
        product = ones @ ones
        is_right = bool((product == _LENGTH).all())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return '' if is_right else _('the product is wrong')


def _is_emulated(device: str) -> bool:
    """Whether an NVIDIA GPU is too old for it; torch does it slowly then."""
    import torch

    if device == 'cpu' or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) < (8, 0)
