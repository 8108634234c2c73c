"""Measure why training is slow: the same as ``mmstable profile``.

Not called ``profile.py``: Python has a module of that name, which scripts in
this folder would get this file for.
"""

import sys
from pathlib import Path

try:
    from mmstable.cli.main import main
except ModuleNotFoundError as error:
    if error.name != 'mmstable':
        raise
    # A checkout that was not installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from mmstable.cli.main import main

if __name__ == '__main__':
    sys.exit(main(['profile', *sys.argv[1:]]))
