"""How busy is the GPU of this process?"""

from __future__ import annotations

import os
from typing import Any

import torch

from mmstable.doctor.gpu_library import NoGpuLibrary, gpu_library


def gpu_busy(device: torch.device, module: Any = None) -> int | None:
    """Percent of the last moments in which a GPU computed.

    Args:
        device (torch.device): The device of the model.
        module (Any, optional): In place of ``pynvml``. Defaults to None.

    Returns:
        int or None: None if it is no NVIDIA GPU, or nobody knows.
    """
    if device.type != 'cuda':
        return None
    index = _number_in_machine(device.index or 0)
    try:
        with gpu_library(module) as library:
            states = library.states()
    except NoGpuLibrary:
        return None
    return states[index].busy if index < len(states) else None


def _number_in_machine(index: int) -> int:
    """NVIDIA's library counts GPUs that this process must not see, too."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')
    numbers = [int(one) for one in visible if one.strip().isdigit()]
    if index < len(numbers) == len(visible):
        return numbers[index]
    return index
