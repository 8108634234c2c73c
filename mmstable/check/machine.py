"""Facts about the machine, and a trial of a config on the CPU."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Callable

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

# They all install the package `mmengine`.
_MMENGINES = ('mmengine', 'mmengine-lite', 'onedl-mmengine')


@dataclass(frozen=True)
class Machine:
    """Facts about a machine; None if unknown.

    Args:
        cores (int): Cores that this process may use.
        shared_memory (int, optional): Free bytes of /dev/shm.
        gpus (int): Number of GPUs.
        bf16 (Callable): Returns whether the GPUs support bfloat16. A
            function, because the call initializes CUDA.
        disk (Callable): Returns the free bytes at a path, existing or not.
        exists (Callable): Returns whether a file or folder exists.
        mmengines (tuple[str]): Distributions that install ``mmengine``.
            Defaults to ('mmengine',).
    """

    cores: int
    shared_memory: int | None
    gpus: int
    bf16: Callable[[], bool | None]
    disk: Callable[[str], int | None]
    exists: Callable[[str], bool]
    mmengines: tuple[str, ...] = ('mmengine',)

    @classmethod
    def here(cls) -> Machine:
        """Return the facts about this machine."""
        return cls(
            cores=_cores(),
            shared_memory=_free('/dev/shm'),
            gpus=torch.cuda.device_count(),
            bf16=_supports_bf16,
            disk=_free_above,
            exists=os.path.exists,
            mmengines=tuple(filter(_is_distribution, _MMENGINES)),
        )


def _is_distribution(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _cores() -> int:
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _supports_bf16() -> bool | None:
    """Return None without an NVIDIA GPU: other devices support it."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    device = int(os.environ.get('LOCAL_RANK', '0'))
    # torch calls the emulation of older GPUs supported.
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _free_above(path: str) -> int | None:
    """Return the free bytes at a path, or at its nearest existing parent."""
    folder = Path(path).absolute()
    return _free(next(p for p in (folder, *folder.parents) if p.exists()))


def _free(path: str | Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


_SAMPLES = 2
# Arguments for a plain wrapper. Mixed precision needs a GPU.
_OF_WRAPPER = ('optimizer', 'paramwise_cfg', 'constructor')
_OF_WORKERS = ('persistent_workers', 'prefetch_factor', 'pin_memory')


@dataclass
class Trial:
    """The result of building a config and training one step.

    Args:
        parameters (int): Number of trainable parameters.
        parameter_bytes (int): Bytes of all parameters.
        unseen (list): Names of those that the optimizer does not have.
        without_gradient (list): Names of those without a gradient.
        failures (list): The part that failed, and why.
    """

    parameters: int = 0
    parameter_bytes: int = 0
    unseen: list[str] = field(default_factory=list)
    without_gradient: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)


def try_out(cfg: Config) -> Trial:
    """Build the model and the optimizer, and train once with two samples.

    Args:
        cfg (Config): The config, left as it is.
    """
    cfg = copy.deepcopy(cfg)
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    trial = Trial()
    stage = 'model'
    try:
        model = _build_model(cfg)
        trained = {
            n: p for n, p in model.named_parameters() if p.requires_grad
        }
        trial.parameters = len(trained)
        trial.parameter_bytes = sum(
            p.numel() * p.element_size() for p in model.parameters()
        )
        stage = 'optim_wrapper'
        wrapper = build_optim_wrapper(model, _plain(cfg.optim_wrapper))
        held = _parameters_in(wrapper)
        trial.unseen = [n for n, p in trained.items() if id(p) not in held]
        stage = 'train_dataloader'
        batch = _first_batch(cfg)
        stage = 'train_step'
        touched: set[str] = set()
        for name, parameter in trained.items():
            parameter.register_hook(lambda _, name=name: touched.add(name))
        model.train()
        model.train_step(batch, wrapper)
        trial.without_gradient = [n for n in trained if n not in touched]
    except Exception as error:
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        trial.failures.append((stage, reason))
    return trial


def _build_model(cfg: Config) -> BaseModel:
    settings = cfg.model
    if cfg.get('data_preprocessor') is not None:
        # As the runner does.
        settings.setdefault('data_preprocessor', cfg.data_preprocessor)
    return MODELS.build(settings)


def _plain(wrapper: Mapping[str, Any]) -> Any:
    if 'optimizer' not in wrapper:
        return {
            name: _plain(value) if isinstance(value, Mapping) else value
            for name, value in wrapper.items()
        }
    kept = {k: v for k, v in wrapper.items() if k in _OF_WRAPPER}
    return {'type': 'OptimWrapper', **kept}


def _parameters_in(wrapper: Any) -> set[int]:
    wrappers = getattr(wrapper, 'optim_wrappers', {'': wrapper})
    return {
        id(parameter)
        for one in wrappers.values()
        for group in one.optimizer.param_groups
        for parameter in group['params']
    }


def _first_batch(cfg: Config) -> Any:
    given = dict(cfg.train_dataloader)
    loader = {k: v for k, v in given.items() if k not in _OF_WORKERS}
    loader['num_workers'] = 0
    if 'batch_size' in loader:
        loader['batch_size'] = min(_SAMPLES, loader['batch_size'])
    return next(iter(Runner.build_dataloader(loader, seed=0)))
