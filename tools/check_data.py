"""Look through the data of a config: the same as ``mmstable check-data``."""

import sys
from pathlib import Path

# A checkout need not be installed; what is installed comes first.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from mmstable_command import main  # noqa: E402

if __name__ == '__main__':
    sys.exit(main(['check-data', *sys.argv[1:]]))
