"""Start a distributed run on a machine without accelerators."""

from __future__ import annotations

import torch
from mmengine.config import Config
from mmengine.device import get_device


def prepare_cpu_ranks(cfg: Config) -> None:
    """Do for the CPU what mmengine does for accelerators only.

    mmengine asks CUDA for a device while it joins the ranks, and wraps the
    model for one; both fail without any. Ranks that have been joined, and a
    model wrapper that has been configured, it takes as they are.

    Args:
        cfg (Config): The config to change.
    """
    if cfg.launcher != 'pytorch' or get_device() != 'cpu':
        return
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
    if cfg.get('model_wrapper_cfg') is None:
        cfg.model_wrapper_cfg = dict(
            type='MMDistributedDataParallel',
            # Given, because mmengine fills in the local rank otherwise.
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
