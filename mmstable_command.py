"""Entry point of the command ``mmstable`` and of ``tools/``.

``import mmstable`` registers its classes with mmengine, which takes seconds.
A program that imports this module first postpones that until a command needs
the classes, so that ``mmstable --help`` answers at once.
"""

from __future__ import annotations

import sys

# A worker process of `multiprocessing` imports the program again, but is no
# command: its own `__main__` has no file.
IS_PROGRAM = hasattr(sys.modules['__main__'], '__file__')

from mmstable.cli.main import main  # noqa: E402, F401
