"""Check a config before training: the same as ``mmstable check``."""

import sys
from pathlib import Path

# A checkout need not be installed; what is installed comes first.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from mmstable_command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main(['check', *sys.argv[1:]]))
