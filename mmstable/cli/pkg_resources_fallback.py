"""Read ``_base_ = 'package::...'`` where setuptools has no pkg_resources."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_NAME = 'pkg_resources'
_STAND_IN = Path(__file__).with_name('_pkg_resources.py')


class _Finder:
    """Finds the stand-in; mmengine reloads it, so it must stay findable."""

    @staticmethod
    def find_spec(
        name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != _NAME:
            return None
        return importlib.util.spec_from_file_location(_NAME, _STAND_IN)


@contextmanager
def pkg_resources_available() -> Iterator[None]:
    """Let ``import pkg_resources`` work in the block, by a stand-in if needed.

    mmengine imports it to find another package's configs; setuptools dropped
    it in version 81. A real one is always preferred.
    """
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is not None:
        yield
        return
    finder: Any = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop(_NAME, None)
