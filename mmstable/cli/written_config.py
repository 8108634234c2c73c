"""Write a config file, next to those that it inherits from."""

from __future__ import annotations

import os
from pathlib import Path

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.errors import UsageError
from mmstable.messages import _


def check_target(path: str) -> None:
    """Refuse a path at which no config can be written."""
    if not path.endswith('.py'):
        raise UsageError(
            _("the new config is a .py file, got '{path}'.", path=path)
        )
    folder = os.path.dirname(path)
    if not os.path.isdir(folder or '.'):
        raise UsageError(
            _("there is no folder '{path}' to write to.", path=folder)
        )


def relative(base: str, folder: str) -> str:
    """How a config in a folder names its base."""
    path = Path(os.path.relpath(base, folder or '.')).as_posix()
    return path if path.startswith('.') else f'./{path}'


def write_new_config(path: str, text: str, force: bool) -> bool:
    """Write it, unless something else is there.

    Args:
        path (str): The file.
        text (str): What to write.
        force (bool): Whether to write over what is there.

    Returns:
        bool: False if the file says all that already.
    """
    if os.path.exists(path) and not force:
        if _content(path) == text:
            return False
        raise UsageError(
            _("'{path}' exists already; --force overwrites it.", path=path)
        )
    write_config(path, text)
    return True


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding='utf-8')
    except (OSError, ValueError):
        return ''


def write_config(path: str, text: str) -> None:
    """Write it, or say why that is impossible."""
    try:
        replace_text(Path(path), text, encoding='utf-8')
    except OSError as error:
        text = _("cannot write '{path}': {error}", path=path, error=error)
        raise UsageError(text) from error
