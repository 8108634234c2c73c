"""The content of a checkpoint: mmengine's sections, built and captured here.

``Runner.save_checkpoint`` builds the same dict, but writes it at once and in
one way. :func:`build` gives the dict to the writer instead, with the keys and
values of mmengine 0.10, and :func:`capture` copies it, so that training can
continue while a thread writes it. :class:`HookStates` adds what hooks need and
do not save.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import mmengine
import torch
from mmengine.config import Config
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.runner import Runner
from mmengine.utils import apply_to, get_git_hash
from torch import Tensor, UntypedStorage

from mmstable import runner_view
from mmstable.checkpoint.audit import tensors_in
from mmstable.checkpoint.shards import besides
from mmstable.state.snapshot import is_opaque

# Host copies of storages, by ``_cdata`` of the original.
Storages = Mapping[int, UntypedStorage]


def build(
    runner: Any,
    meta: Mapping[str, Any],
    save_optimizer: bool = True,
    save_param_scheduler: bool = True,
    groups: Any = None,
    kept: Storages | None = None,
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
        kept (dict, optional): Host copies of storages, by ``_cdata`` of the
            original, to use in its place. Defaults to None.
    """
    is_whole = isinstance(runner, Runner)
    kept = kept or {}
    checkpoint: dict[str, Any] = {
        'meta': _complete_meta(runner, meta, is_whole),
        'state_dict': {},
        'message_hub': _on_host(runner.message_hub.state_dict(), kept),
    }
    if is_whole:
        weights = runner_view.saved_model(runner).state_dict()
        section = checkpoint['state_dict'] = _on_host(weights, kept)
        section._metadata = getattr(weights, '_metadata', OrderedDict())
    if save_optimizer:
        state = runner.optim_wrapper.state_dict()
        if not is_whole:
            state = {'param_groups': groups, **besides(state)}
        checkpoint['optimizer'] = _on_host(state, kept)
    schedulers = runner.param_schedulers
    if save_param_scheduler and (schedulers or is_whole and schedulers == []):
        checkpoint['param_schedulers'] = _states_of(schedulers)
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    for name, section in checkpoint.items():
        if str(name).endswith('state_dict') and isinstance(section, dict):
            checkpoint[name] = _moved_to_host(section, kept)
    return checkpoint


def capture(
    checkpoint: dict[str, Any], kept: Storages | None = None
) -> dict[str, Any]:
    """Copy a checkpoint, so that training does not change it any more.

    Tensors that share memory share it in the copy, too: the file is the same.

    Args:
        checkpoint (dict): What :func:`build` returned.
        kept (dict, optional): What it was given: needs no copy. Defaults to
            None.
    """
    # Where torch looks for storages that it has copied before.
    known = {one._cdata: one for one in (kept or {}).values()}
    return copy.deepcopy(checkpoint, {'torch': known})  # type: ignore[dict-item]


def content_size(content: Any, kept: Storages | None = None) -> int:
    """Return the bytes of all storages, without those that were kept."""
    storages = (one.untyped_storage() for __, one in tensors_in(content))
    sizes = {one.data_ptr(): one.nbytes() for one in storages}
    for one in (kept or {}).values():
        sizes.pop(one.data_ptr(), None)
    return sum(sizes.values())


def _on_host(content: Any, kept: Storages) -> Any:
    return apply_to(
        content, lambda x: hasattr(x, 'cpu'), lambda x: _copied(x, kept)
    )


def _moved_to_host(section: dict[str, Any], kept: Storages) -> dict[str, Any]:
    """Move the tensors that mmengine's EMAHook leaves where they are."""
    section = copy.copy(section)
    for name, value in section.items():
        if isinstance(value, Tensor):
            section[name] = _copied(value, kept)
    return section


def _copied(value: Any, kept: Storages) -> Any:
    """Return a tensor on the host: a kept copy, if there is one."""
    if not kept or not isinstance(value, Tensor) or is_opaque(value):
        return value.cpu()
    storage = kept.get(value.untyped_storage()._cdata)
    if storage is None or value.is_conj() or value.is_neg():
        return value.cpu()
    place = value.storage_offset(), value.shape, value.stride()
    copied = torch.empty(0, dtype=value.dtype)
    return copied.set_(storage, *place)  # type: ignore[call-overload]


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


# Attributes that a resumed run needs, of hooks that save nothing.
_SAVED: dict[type[Hook], tuple[str, ...]] = {
    EarlyStoppingHook: ('wait_count', 'best_score')
}
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, set, dict, deque)
# Hooks of these packages save what they need, or need nothing.
_KNOWN = ('mmengine', 'mmstable')


class HookStates:
    """Saves the state of mmengine's hooks, and names hooks without any."""

    def __init__(self) -> None:
        self._at_start: dict[int, dict[str, Any]] = {}

    def begin(self, runner: Runner) -> None:
        """Remember what hooks of others look like before they train."""
        self._at_start = {
            id(hook): _plain_attributes(hook) for hook in _unsaved(runner)
        }

    def state_dict(self, runner: Runner) -> dict[str, Any]:
        """Return attributes to restore, and names of hooks to report."""
        state: dict[str, Any] = {}
        saved = {
            type(hook).__name__: {
                name: float(getattr(hook, name)) for name in names
            }
            for hook, names in _saved(runner)
        }
        changed = {
            type(hook).__name__
            for hook in _unsaved(runner)
            if _plain_attributes(hook) != self._at_start.get(id(hook))
        }
        if saved:
            state['hooks'] = saved
        if changed:
            state['unsaved_hooks'] = sorted(changed)
        return state

    def load_state_dict(
        self, runner: Runner, state: Mapping[str, Any]
    ) -> None:
        """Restore the attributes that :meth:`state_dict` returned."""
        saved = state.get('hooks', {})
        for hook, names in _saved(runner):
            own = saved.get(type(hook).__name__, {})
            for name in names:
                if name in own:
                    kind = type(getattr(hook, name))
                    setattr(hook, name, kind(own[name]))


def _saved(runner: Runner) -> list[tuple[Hook, tuple[str, ...]]]:
    return [
        (hook, names)
        for hook in runner.hooks
        for kind, names in _SAVED.items()
        if isinstance(hook, kind) and not _saves_itself(hook)
    ]


def _unsaved(runner: Runner) -> list[Hook]:
    return [
        hook
        for hook in runner.hooks
        if type(hook).__module__.partition('.')[0] not in _KNOWN
        and not isinstance(hook, tuple(_SAVED))
        and not _saves_itself(hook)
    ]


def _saves_itself(hook: Hook) -> bool:
    own = type(hook).before_save_checkpoint
    return own is not Hook.before_save_checkpoint


def _plain_attributes(hook: Hook) -> dict[str, Any]:
    """Copy numbers, texts and containers of these."""
    return {
        name: copy.copy(value)
        for name, value in vars(hook).items()
        if isinstance(value, _PLAIN)
        or (
            isinstance(value, _CONTAINERS)
            and all(isinstance(one, _PLAIN) for one in value)
        )
    }
