"""Measure why training is slow: the same as ``mmstable profile``.

Not called ``profile.py``: Python has a module of that name, which scripts in
this folder would get this file for.
"""

import sys
from pathlib import Path

# A checkout need not be installed; what is installed comes first.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from mmstable_command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main(['profile', *sys.argv[1:]]))
