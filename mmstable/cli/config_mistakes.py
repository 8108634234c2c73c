"""Tell mistakes in a config from faults in the code that it starts."""

from __future__ import annotations

import re
import traceback

from mmengine import registry as root
from mmengine.config import Config
from mmengine.registry import Registry

from mmstable.loops.batch_checks import check_batch_size, check_counts
from mmstable.settings import did_you_mean

_UNREGISTERED = re.compile(r'(\S+) is not in the (\S+)::(.+?) registry')


def refuse_impossible_batches(cfg: Config) -> None:
    """Raise for what is wrong whatever loop and wrapper are used."""
    for setting in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        check_batch_size(cfg.get(setting), setting)
    iterations = (cfg.get('train_cfg') or {}).get('max_iters')
    wrappers = {'optim_wrapper': cfg.get('optim_wrapper')}
    wrappers.update(
        (f'optim_wrapper.{name}', value)
        for name, value in (wrappers['optim_wrapper'] or {}).items()
    )
    for setting, wrapper in wrappers.items():
        if isinstance(wrapper, dict) and isinstance(iterations, int):
            counts = wrapper.get('accumulative_counts')
            check_counts(setting, counts, iterations)


def explain_mistake(error: Exception) -> str | None:
    """What is wrong with the config, in one line.

    Args:
        error (Exception): What came out of building or training.

    Returns:
        str or None: None if the config is not to blame.
    """
    if isinstance(error, KeyError):
        return _explain_unregistered(str(error))
    if isinstance(error, TypeError) and _refused_arguments(error):
        return f'the config has a wrong argument: {error}.'
    if isinstance(error, (TypeError, ValueError)) and _is_ours(error):
        return f'the config has a wrong setting: {error}'
    if 'end should be larger than begin' in str(error):
        return (
            f'param_scheduler: {error}. Is the warm-up longer than the '
            'training (train_cfg)?'
        )
    return None


def _explain_unregistered(message: str) -> str | None:
    found = _UNREGISTERED.search(message)
    if found is None:
        return None
    name, scope, kind = found.groups()
    name = name.strip('\'"')
    known = _registered_names(kind)
    return (
        f"the config asks for the {kind} '{name}', which is not registered "
        f"in scope '{scope}'.{did_you_mean(name, known)}"
    )


def _registered_names(kind: str) -> set[str]:
    names: set[str] = set()
    for value in vars(root).values():
        if isinstance(value, Registry) and value.name == kind:
            names |= _names_of(value)
    return names


def _names_of(registry: Registry) -> set[str]:
    names = set(registry.module_dict)
    for child in registry.children.values():
        names |= {f'{child.scope}.{name}' for name in _names_of(child)}
        names |= set(child.module_dict)
    return names


def _is_ours(error: Exception) -> bool:
    """Whether mmstable itself has refused a setting."""
    modules = [
        frame.f_globals.get('__name__', '')
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return bool(modules) and modules[-1].startswith('mmstable.')


def _refused_arguments(error: TypeError) -> bool:
    """Whether the call itself failed, rather than something inside it."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].name == 'build_from_cfg'
