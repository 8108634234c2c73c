"""Read a config file, or say in one line why it cannot be read."""

from __future__ import annotations

import os
import re
import sys
import traceback
from contextlib import suppress
from typing import Any

from mmengine.config import Config

from mmstable.cli.pkg_resources_fallback import pkg_resources_available
from mmstable.cli.plain_yaml import plain_yaml
from mmstable.cli.suggest import near_files
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.registry import (
    bare_names_free,
    forget_since,
    registered_names,
)

# As mmengine says it of a bare name that is ours.
_TAKEN = re.compile(r'is already registered in .* at mmstable\.')

# Those of mmengine's functions that are called once for each config.
_READERS = ('_file2dict', '_parse_lazy_import')


def check_config_path(path: str) -> None:
    """Refuse a path that is no config file."""
    if not os.path.isfile(path):
        hint = near_files(path)
        raise UsageError(
            _("no config file '{path}'.{hint}", path=path, hint=hint)
        )
    if os.path.splitext(path)[1] not in ('.py', '.json', '.yaml', '.yml'):
        raise UsageError(
            _(
                "a config is a .py, .json, .yaml or .yml file, got '{path}'.",
                path=path,
            )
        )


def load_config(path: str, import_modules: bool = True) -> Config:
    """Read a config with all its bases.

    A ``.py`` file is Python, and is run. JSON and YAML files are only read.

    Args:
        path (str): The config file.
        import_modules (bool): Whether to follow ``custom_imports``.
            Defaults to True.
    """
    check_config_path(path)
    # Everything below runs the user's file: any exception may come from it.
    try:
        with pkg_resources_available(), plain_yaml():
            cfg = _read(path, import_modules)
    except Exception as error:
        raise UsageError(_explain(path, error)) from error
    _drop_own_scope(cfg._cfg_dict)
    return cfg


def _read(path: str, import_modules: bool) -> Config:
    before = registered_names()
    try:
        return Config.fromfile(path, import_custom_modules=import_modules)
    except KeyError as error:
        if not _TAKEN.search(str(error)):
            raise
        # Again, without what is in the way of a class of the user.
        for module in forget_since(before):
            sys.modules.pop(module, None)
        with suppress(KeyError), bare_names_free():
            return Config.fromfile(path, import_custom_modules=import_modules)
        raise


def load_config_anyway(path: str) -> Config:
    """The config, also if what it wants imported is not here."""
    try:
        return load_config(path)
    except UsageError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
    return load_config(path, import_modules=False)


def _explain(path: str, error: Exception) -> str:
    circle = _circle(error) if isinstance(error, RecursionError) else []
    if circle:
        return _(
            "'{path}' inherits from itself: {files: -> }.",
            path=circle[0],
            files=circle,
        )
    culprit = os.path.normpath(_file_being_read(error) or path)
    if isinstance(error, FileNotFoundError) and not os.path.exists(culprit):
        hint = near_files(culprit)
        return _(
            "'{path}' needs '{base}', which does not exist.{hint}",
            path=path,
            base=culprit,
            hint=hint,
        )
    if isinstance(error, FileNotFoundError) and '.mim' in str(error):
        return _(
            "'{path}' has a base 'mmstable::...', which needs an installed "
            "package: run 'pip install -e .' in the checkout first.",
            path=path,
        )
    if isinstance(error, SyntaxError):
        return f'{culprit}:{error.lineno}: {error.msg}'
    text = ' '.join(str(error).split())
    where = _line_of_config(culprit, error)
    return f'{where}: {type(error).__name__}: {text}'.rstrip(': ')


def _circle(error: RecursionError) -> list[str]:
    """The configs from one of them back to itself; none if it is not that."""
    frames = [frame for frame, __ in traceback.walk_tb(error.__traceback__)]
    files: list[str] = []
    # One that raises again is there twice.
    for frame in dict.fromkeys(frames):
        if frame.f_code.co_name in _READERS:
            files.append(os.path.relpath(frame.f_locals['filename']))
            if files[-1] in files[:-1]:
                return files[files.index(files[-1]) :]
    return []


def _file_being_read(error: Exception) -> str | None:
    """The config that mmengine was at, which may be a base of a base.

    It parses a temporary copy, so the error itself does not know the name.
    """
    found = None
    for frame, __ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get('__name__', '')
        name = frame.f_locals.get('filename')
        is_copy = frame.f_code.co_name == '_get_base_files'
        if module.startswith('mmengine.') and isinstance(name, str):
            found = found if is_copy else name
    return found


def _line_of_config(path: str, error: Exception) -> str:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == path and frame.name == '<module>':
            return f'{path}:{frame.lineno}'
    return path


def _drop_own_scope(node: Any) -> None:
    """Forget that bases came from ``mmstable::``.

    mmengine marks them with that scope, and would then look there first for
    what is built inside, such as the user's dataset inside the train loop.
    The bases name mmstable's classes in full, so nothing needs the mark.
    """
    if isinstance(node, dict):
        if node.get('_scope_') == 'mmstable':
            node.pop('_scope_')
        for value in node.values():
            _drop_own_scope(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _drop_own_scope(value)
