"""The content of a checkpoint: mmengine's sections, built and captured here.

``Runner.save_checkpoint`` builds the same dict, but writes it at once and in
one way. :func:`build` gives the dict to the writer instead, with the keys and
values of mmengine 0.10, and :func:`capture` copies it, so that training can
continue while a thread writes it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import mmengine
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.runner.checkpoint import weights_to_cpu
from mmengine.utils import apply_to, get_git_hash
from torch import Tensor

from mmstable import runner_view
from mmstable.checkpoint.shards import besides


def build(
    runner: Any,
    meta: Mapping[str, Any],
    save_optimizer: bool = True,
    save_param_scheduler: bool = True,
    groups: Any = None,
) -> dict[str, Any]:
    """Build what mmengine's runner saves, and call ``before_save_checkpoint``.

    Args:
        runner (Runner or FlexibleRunner): The runner.
        meta (Mapping): Epochs and iterations done.
        save_optimizer (bool): Whether to include it. Defaults to True.
        save_param_scheduler (bool): Whether to include the schedules.
            Defaults to True.
        groups (list, optional): The optimizer's groups of a sharded run,
            whose tensors are saved elsewhere. Defaults to None.
    """
    is_whole = isinstance(runner, Runner)
    checkpoint: dict[str, Any] = {
        'meta': _complete_meta(runner, meta, is_whole),
        'state_dict': weights_to_cpu(
            runner_view.saved_model(runner).state_dict()
        )
        if is_whole
        else {},
        'message_hub': _on_host(runner.message_hub.state_dict()),
    }
    if save_optimizer:
        state = runner.optim_wrapper.state_dict()
        if not is_whole:
            state = {'param_groups': groups, **besides(state)}
        checkpoint['optimizer'] = _on_host(state)
    schedulers = runner.param_schedulers
    if save_param_scheduler and (schedulers or is_whole and schedulers == []):
        checkpoint['param_schedulers'] = _states_of(schedulers)
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    for name, section in checkpoint.items():
        if str(name).endswith('state_dict') and isinstance(section, dict):
            checkpoint[name] = _moved_to_host(section)
    return checkpoint


def capture(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Copy a checkpoint, so that training does not change it any more.

    Tensors that share memory share it in the copy, too: the file is the same.
    """
    return copy.deepcopy(checkpoint)


def storage_sizes(content: Any) -> dict[int, int]:
    """Return the bytes of each piece of memory; tensors may share one."""
    storages = (one.untyped_storage() for one in _tensors(content))
    return {one.data_ptr(): one.nbytes() for one in storages}


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from _tensors(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _tensors(value)


def _on_host(content: Any) -> Any:
    return apply_to(content, lambda x: hasattr(x, 'cpu'), lambda x: x.cpu())


def _moved_to_host(section: dict[str, Any]) -> dict[str, Any]:
    """Move the tensors that mmengine's EMAHook leaves on the accelerator."""
    elsewhere = {
        name: value.cpu()
        for name, value in section.items()
        if isinstance(value, Tensor) and value.device.type != 'cpu'
    }
    if elsewhere:
        section = copy.copy(section)
        section.update(elsewhere)
    return section


def _complete_meta(
    runner: Any, meta: Mapping[str, Any], is_whole: bool
) -> dict[str, Any]:
    version = 'mmengine_version' if is_whole else 'mmengine'
    complete = {
        **meta,
        'cfg': _config_text(runner.cfg),
        'seed': runner.seed,
        'experiment_name': runner.experiment_name,
        'time': time.strftime('%Y%m%d_%H%M%S', time.localtime()),
        version: mmengine.__version__ + _git_hash(),
    }
    if hasattr(runner.train_dataloader.dataset, 'metainfo'):
        complete['dataset_meta'] = runner.train_dataloader.dataset.metainfo
    return complete


# The newest config, and mmengine's text of it: formatting takes yapf up to a
# second.
_TEXTS: dict[str, str] = {}


def _config_text(cfg: Config) -> str:
    key = repr(cfg)
    if key not in _TEXTS:
        _TEXTS.clear()
        _TEXTS[key] = cfg.pretty_text
    return _TEXTS[key]


@cache
def _git_hash() -> str:
    # It starts a process: once is enough.
    return get_git_hash()


def _states_of(schedulers: Any) -> Any:
    if isinstance(schedulers, dict):
        return {name: _states_of(some) for name, some in schedulers.items()}
    return [one.state_dict() for one in schedulers]
