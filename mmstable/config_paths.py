"""Where are the configs that mmstable ships?"""

from __future__ import annotations

from pathlib import Path

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
