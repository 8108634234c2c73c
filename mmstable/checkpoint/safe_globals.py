"""What may a checkpoint of mmengine ask torch's safe loader for?

From torch 2.6 on, ``torch.load`` builds only what is allow-listed, and
mmengine's checkpoints hold more than torch allows by default: the log history
and one-cycle schedules are saved through ``getattr``, metrics as numpy
numbers, dataset information as numpy arrays and ``ConfigDict``.

The originals of some of these names would open the door again: ``getattr``
reaches any code, and ``numpy.ndarray`` makes object pointers out of bytes.
Guards take their places, which build genuine content and nothing else. Numpy
content is read in the byte order of this machine.
"""

from __future__ import annotations

import warnings
from pickle import UnpicklingError
from typing import Any, Callable

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from mmengine.utils import digit_version

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    HistoryBuffer: ('min', 'max', 'current', 'mean'),
    OneCycleParamScheduler: ('_annealing_cos', '_annealing_linear'),
}
_SIZES: dict[str, tuple[int, ...]] = {
    'b': (1,),
    'i': (1, 2, 4, 8),
    'u': (1, 2, 4, 8),
    'f': (2, 4, 8),
    'c': (8, 16),
}
_NUMBERS: dict[str, np.dtype[Any]] = {
    f'{kind}{size}': np.dtype(f'{kind}{size}')
    for kind, sizes in _SIZES.items()
    for size in sizes
}


def allow_mmengine_checkpoints() -> None:
    """Let ``torch.load`` read genuine checkpoints of mmengine, safely.

    Called when mmstable is imported; needed again only after
    ``torch.serialization.clear_safe_globals()``. What others have
    allow-listed stays in force, also under the same names. Before torch 2.6,
    where mmengine does not load through the allow-list, nothing is done.
    """
    if digit_version(torch.__version__) < digit_version('2.6'):
        return
    torch.serialization.add_safe_globals(_ENTRIES)
    if _entry_of_others('builtins.getattr') is getattr:
        warnings.warn(
            'Plain `getattr` is in the allow-list of torch.serialization: a '
            'forged checkpoint can run any code through it. mmstable loads '
            'checkpoints of mmengine without it, so take it out.',
            stacklevel=2,
        )


class _Guard:
    """Stands for a callable in the allow-list and narrows its use.

    torch keeps one entry per name, in no particular order, so a guard may
    hide what the user allow-listed under its name. It then steps aside.

    Args:
        name (str): The name that checkpoints use for the callable.
        build (Callable): Builds genuine content and refuses the rest.
    """

    def __init__(self, name: str, build: Callable[..., Any]) -> None:
        self._name = name
        self._build = build

    def __call__(self, *args: Any) -> Any:
        return (_entry_of_others(self._name) or self._build)(*args)


class _NamedArray(np.ndarray):
    """What checkpoints get for the name ``numpy.ndarray``.

    It cannot be called, only handed to ``_reconstruct``. If the user has
    allow-listed numpy's own ``_reconstruct``, that makes an instance of it,
    which works and is saved like a plain array.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> _NamedArray:
        raise _refusal('numpy.ndarray', 'as an argument', args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _entry_of_others(name: str) -> Any:
    for entry in torch.serialization.get_safe_globals():
        obj, full_name = entry if isinstance(entry, tuple) else (entry, '')
        if not full_name:
            module = getattr(obj, '__module__', None)
            full_name = f'{module}.{getattr(obj, "__qualname__", None)}'
        # By name, because a reload of this module leaves older guards behind.
        if full_name == name and type(obj).__module__ != __name__:
            return obj
    return None


def _refusal(name: str, allowed: str, came: Any) -> UnpicklingError:
    return UnpicklingError(
        f'mmstable: a checkpoint may use {name} only {allowed}, got '
        f'{repr(came)[:80]}.'
    )


def _getattr(owner: Any, name: Any) -> Any:
    known = isinstance(owner, type) and isinstance(name, str)
    if not known or name not in _ATTRIBUTES.get(owner, ()):
        raise _refusal(
            'getattr',
            'for the statistics of HistoryBuffer and the annealing '
            'of OneCycleParamScheduler',
            (owner, name),
        )
    return getattr(owner, name)


def _bytes(*args: Any) -> bytes:
    if args:
        raise _refusal('bytes', 'for an empty string', args)
    return b''


def _dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    if not isinstance(code, str) or code not in _NUMBERS:
        raise _refusal('numpy.dtype', f'for {", ".join(_NUMBERS)}', code)
    # Never a copy, whatever the file asks for: numpy fills any state into a
    # copy, up to "these bytes are object pointers", and none into its own.
    return _NUMBERS[code]


def _reconstruct(subtype: Any, shape: Any, code: Any) -> np.ndarray[Any, Any]:
    if subtype is not _NamedArray and subtype is not np.ndarray:
        raise _refusal('numpy _reconstruct', 'for numpy.ndarray', subtype)
    return np.ndarray((0,), 'b')


def _scalar(dtype: Any, data: Any) -> Any:
    code = dtype.str[1:] if isinstance(dtype, np.dtype) else ''
    number = _NUMBERS.get(code)
    if number is None or dtype != number or type(data) is not bytes:
        raise _refusal('numpy scalar', 'for numbers', (dtype, data))
    if len(data) != number.itemsize:
        raise _refusal(
            'numpy scalar', f'with {number.itemsize} bytes for {number}', data
        )
    return np.frombuffer(data, number)[0]


def _entries() -> list[Any]:
    guards: dict[str, Callable[..., Any]] = {
        'builtins.getattr': _getattr,
        # The data of an empty array.
        'builtins.bytes': _bytes,
        'numpy.dtype': _dtype,
    }
    # numpy 1.x writes the name without the underscore.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        guards[f'{module}._reconstruct'] = _reconstruct
        guards[f'{module}.scalar'] = _scalar
    entries: list[Any] = [(_Guard(*item), item[0]) for item in guards.items()]
    entries.append((_NamedArray, 'numpy.ndarray'))
    # A pair is another entry than the bare class: it outlives a user's
    # `with safe_globals([HistoryBuffer])`.
    for cls in (HistoryBuffer, ConfigDict, OneCycleParamScheduler):
        entries.append((cls, f'{cls.__module__}.{cls.__qualname__}'))
    # Types that may be filled with their state. A name without a dot cannot
    # be asked for by any file, so none gets hold of these types themselves.
    for cls in (np.ndarray, *map(type, _NUMBERS.values())):
        entries.append((cls, f'only filled: {cls.__name__}'))
    return entries


_ENTRIES = _entries()
