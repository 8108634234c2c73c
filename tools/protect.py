"""Write a protected config: the same as ``mmstable protect``."""

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
    sys.exit(main(['protect', *sys.argv[1:]]))
