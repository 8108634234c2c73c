"""One of the processes that ``mmstable doctor`` starts.

It is run by its path, and imports nothing but torch: importing mmstable takes
seconds. Prints the sum that all ranks have agreed on.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LENGTH = 1 << 16


def main(backend: str, seconds: float) -> None:
    """Join the other ranks, add up numbers, and run one DDP step."""
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    device = 'cpu'
    if backend == 'nccl':
        device = f'cuda:{int(os.environ["RANK"])}'
        torch.cuda.set_device(device)
    numbers = torch.arange(LENGTH, dtype=torch.int64, device=device)
    numbers += dist.get_rank()
    dist.all_reduce(numbers)
    print(int(numbers.sum()), gradient(device), flush=True)
    dist.destroy_process_group()


def gradient(device: str) -> float:
    """The gradient that DDP averages: (1 + ... + ranks) / ranks."""
    model = torch.nn.Linear(1, 1, bias=False).to(device)
    ids = None if device == 'cpu' else [device]
    wrapped = DistributedDataParallel(model, device_ids=ids)
    own = torch.full((1, 1), float(dist.get_rank() + 1), device=device)
    wrapped(own).sum().backward()
    summed = model.weight.grad
    return float('nan') if summed is None else float(summed.item())


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
    # The threads of a backend may still be ending, and a normal exit of the
    # interpreter aborts the process then now and then.
    os._exit(0)
