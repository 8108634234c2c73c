"""Where are the configs that mmstable ships?"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

from mmstable.settings import did_you_mean

_PACKAGE = Path(__file__).resolve().parent


def config_root() -> Path:
    """The folder that holds ``_base_``.

    A wheel has it in the package; a checkout beside it.
    """
    shipped = _PACKAGE / '.mim' / 'configs'
    if shipped.is_dir():
        return shipped.resolve()
    return _PACKAGE.parent / 'configs'


def config_path(name: str) -> str:
    """The absolute path of a config that mmstable ships.

    It serves those who start from the train script of another project, where
    ``mmstable::`` is not known yet while ``_base_`` is read::

        _base_ = [
            './my_config.py',
            __import__('mmstable').config_path('_base_/loss_scale/dynamic.py'),
        ]

    Args:
        name (str): Its path below ``configs/``.
    """
    root = config_root()
    path = root / name
    if path.is_file():
        return str(path)
    known = sorted(
        found.relative_to(root).as_posix() for found in root.rglob('*.py')
    )
    hint = did_you_mean(name, known) or f' It has {", ".join(known)}.'
    raise FileNotFoundError(
        f"config_path: mmstable ships no config '{name}'.{hint}"
    )


def shipped_settings(name: str) -> dict[str, Any]:
    """What a config that mmstable ships says, in plain types.

    Args:
        name (str): Its path below ``configs/``.
    """
    return copy.deepcopy(_read(name))


@cache
def _read(name: str) -> dict[str, Any]:
    # `mmstable --help` does without mmengine.
    from mmengine.config import Config

    return Config.fromfile(config_path(name))._cfg_dict.to_dict()


def runtime_hooks() -> dict[str, dict[str, Any]]:
    """The hooks of the base runtime by the names of their classes."""
    hooks = shipped_settings('_base_/default_runtime.py')['custom_hooks']
    return {hook['type'].rpartition('.')[2]: hook for hook in hooks}
