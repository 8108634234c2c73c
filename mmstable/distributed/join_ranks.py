"""Join the ranks of a distributed run, on whatever devices there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast_object_list, get_rank, init_dist

from mmstable.distributed.launchers import set_rank_variables
from mmstable.errors import MMStableError
from mmstable.messages import say


class ReportedByRankZero(MMStableError):
    """An error that rank 0 tells the user.

    Args:
        error (MMStableError): The error.
    """

    def __init__(self, error: MMStableError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code


def join_ranks(cfg: Config) -> str | None:
    """Start the process group, before anything is decided.

    The backend is nccl for CUDA and gloo for CPUs, unless the config says
    otherwise. mmengine itself asks CUDA for a device while it joins the
    ranks, and wraps the model for one; both fail without any.

    Args:
        cfg (Config): The config, changed in place for CPUs.

    Returns:
        str or None: What the user should know.
    """
    if cfg.launcher == 'none' or torch.distributed.is_initialized():
        return None
    set_rank_variables(cfg.launcher)
    settings = dict((cfg.get('env_cfg') or {}).get('dist_cfg') or {})
    if get_device() != 'cpu':
        # By mmengine, which knows the backends of other accelerators.
        init_dist(cfg.launcher, **{'backend': 'nccl', **settings})
        return None
    note = _join_cpus(settings)
    _wrap_for_cpu(cfg)
    return note


def _join_cpus(settings: dict[str, Any]) -> str | None:
    backend, note = settings.pop('backend', None) or 'gloo', None
    if backend == 'nccl':
        # Every OpenMMLab config says so, and nccl knows GPUs only.
        backend, note = 'gloo', say('launcher.gloo')
    if 'timeout' in settings:
        settings['timeout'] = timedelta(seconds=settings['timeout'])
    # These are for mmengine and its launchers.
    for key in ('port', 'init_backend'):
        settings.pop(key, None)
    torch.distributed.init_process_group(backend, **settings)
    return note


def _wrap_for_cpu(cfg: Config) -> None:
    wrapper = dict(cfg.get('model_wrapper_cfg') or {})
    if not wrapper:
        wrapper['broadcast_buffers'] = False
        wrapper['find_unused_parameters'] = cfg.get(
            'find_unused_parameters', False
        )
    wrapper.setdefault('type', 'MMDistributedDataParallel')
    # Given, because mmengine fills in the local rank otherwise.
    wrapper.setdefault('device_ids', None)
    # That one has a strategy instead.
    if cfg.get('runner_type') != 'FlexibleRunner':
        cfg.model_wrapper_cfg = wrapper


def decide_on_rank_zero(decide: Callable[[], Any]) -> Any:
    """Let rank 0 decide for all of them. A collective call.

    Args:
        decide (Callable): Called on rank 0. If it raises an error of
            mmstable, all ranks do; the others :class:`ReportedByRankZero`.
    """
    told: list[Any] = [None, None]
    if get_rank() == 0:
        try:
            told[0] = decide()
        except MMStableError as error:
            told[1] = error
    broadcast_object_list(told)
    if told[1] is not None:
        raise told[1] if get_rank() == 0 else ReportedByRankZero(told[1])
    return told[0]
