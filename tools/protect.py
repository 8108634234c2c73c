"""Write a protected config: the same as ``mmstable protect``."""

import sys
from pathlib import Path

# A checkout need not be installed; what is installed comes first.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from mmstable_command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main(['protect', *sys.argv[1:]]))
