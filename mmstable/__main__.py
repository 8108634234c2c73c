"""``python -m mmstable``: the same as ``mmstable``."""

import sys

from mmstable.cli.main import main

if __name__ == '__main__':
    sys.exit(main())
