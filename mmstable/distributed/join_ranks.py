"""Join the ranks of a distributed run, on whatever devices there are."""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Callable

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast_object_list, get_rank, init_dist
from torch.distributed import Store

from mmstable.distributed.launchers import set_rank_variables
from mmstable.distributed.store import has_keys, leave_value, open_store
from mmstable.errors import MMStableError
from mmstable.messages import _

_LEFT = 'rank_zero_has_left'


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
        _announce_leaving()
        return None
    note = _join_cpus(settings)
    _announce_leaving()
    _wrap_for_cpu(cfg)
    return note


def _announce_leaving() -> None:
    if get_rank() == 0:
        atexit.register(_say_goodbye, open_store('end'))


def _say_goodbye(store: Store) -> None:
    # The store may be gone before.
    with suppress(RuntimeError):
        leave_value(store, _LEFT, True)


def leave_after_rank_zero(patience: float = 5.0) -> None:
    """Wait until rank 0 has said why the run ends.

    torchrun ends all ranks as soon as one of them has failed.

    Args:
        patience (float): Seconds to wait at most. Defaults to 5.0.
    """
    if not torch.distributed.is_initialized() or get_rank() == 0:
        return
    deadline = time.monotonic() + patience
    try:
        while time.monotonic() < deadline:
            if has_keys(open_store('end'), [_LEFT]):
                return
            time.sleep(0.05)
    except RuntimeError:
        # Rank 0 has taken the store with it.
        return


def _join_cpus(settings: dict[str, Any]) -> str | None:
    backend, note = settings.pop('backend', None) or 'gloo', None
    if backend == 'nccl':
        # Every OpenMMLab config says so, and nccl knows GPUs only.
        backend, note = 'gloo', _('no GPU here: backend gloo instead of nccl')
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
