"""What a run starts with: the header of its event file."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from dataclasses import asdict
from typing import Any

import mmengine
import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import run_view
from mmstable.events.records import SCHEMA, RunStart, WrapperSetup
from mmstable.events.samples import read_scale
from mmstable.messages.secrets import mask_values
from mmstable.process_identity import ProcessIdentity
from mmstable.version import __version__

# What whoever starts a run again says to it; the second is torchrun's.
RESTARTS = ('MMSTABLE_RESTARTS', 'TORCHELASTIC_RESTART_COUNT')
RESTARTED_AFTER = 'MMSTABLE_RESTARTED_AFTER'


def restarts() -> int:
    """How often this run was started again before."""
    for name in RESTARTS:
        count = os.environ.get(name, '')
        if count.isdigit():
            return int(count)
    return 0


def device_of(model: Module) -> torch.device:
    """Where a model is."""
    parameter = next(model.parameters(), None)
    return torch.device('cpu') if parameter is None else parameter.device


def describe_run(runner: Runner) -> RunStart:
    """The header for a run that is about to train."""
    device = device_of(runner.model)
    process = ProcessIdentity.of_this_process()
    return RunStart(
        iteration=runner.iter,
        time=time.time(),
        schema=SCHEMA,
        rank=get_rank(),
        world_size=get_world_size(),
        host=process.host,
        pid=process.pid,
        versions=versions(),
        device=str(device),
        device_name=_device_name(device),
        seed=runner.seed,
        max_iterations=runner.max_iters,
        config_sha256=_digest(runner.cfg.pretty_text),
        wrappers={
            name: _describe_wrapper(wrapper)
            for name, wrapper in run_view.wrappers(runner).items()
        },
        custom_hooks=tuple(mask_values(runner.cfg.get('custom_hooks') or ())),
        restarts=restarts(),
        restarted_after=os.environ.get(RESTARTED_AFTER, ''),
        space=process.space,
        born=process.born,
        resume_command=_resume_command(runner),
    )


def _resume_command(runner: Runner) -> str:
    # As `mmstable train` has noted it, if it was that.
    command = runner.cfg.get('resume_command')
    return command if isinstance(command, str) else ''


def versions() -> dict[str, str]:
    """Of mmstable and what it depends on."""
    return {
        'mmstable': __version__,
        'mmengine': mmengine.__version__,
        'torch': str(torch.__version__),
        'python': platform.python_version(),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _device_name(device: torch.device) -> str | None:
    module = getattr(torch, device.type, None)
    read = getattr(module, 'get_device_name', None)
    return None if read is None else str(read(device))


def _describe_wrapper(wrapper: Any) -> WrapperSetup:
    dtype = getattr(wrapper, 'cast_dtype', None)
    scale = read_scale(wrapper)
    clip = getattr(wrapper, 'clip', None)
    policy = getattr(run_view.loss_scaler(wrapper), 'policy', None)
    return WrapperSetup(
        type=_class_name(wrapper),
        optimizer=_class_name(getattr(wrapper, 'optimizer', None)),
        accumulative_counts=run_view.accumulative_counts(wrapper),
        dtype=None if dtype is None else str(dtype).replace('torch.', ''),
        clip_grad=getattr(wrapper, 'clip_grad_kwargs', None),
        clip=None if clip is None else str(clip),
        loss_scale=scale,
        scale_policy=None if policy is None else asdict(policy),
    )


def _class_name(instance: Any) -> str:
    cls = type(instance)
    return f'{cls.__module__}.{cls.__qualname__}'
