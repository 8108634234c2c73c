"""The command ``mmstable``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from mmstable.cli import train, upgrade
from mmstable.errors import UsageError
from mmstable.version import __version__

_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    'train': train.main,
    'upgrade': upgrade.main,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command, and return its exit code.

    Args:
        argv (Sequence[str], optional): The arguments; those of the process
            if None. Defaults to None.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    name = args[0] if args else '--help'
    if name == '--version':
        print(__version__)
        return 0
    if name in ('-h', '--help'):
        print(f'usage: mmstable {{{",".join(_COMMANDS)}}} ... [--help]')
        return 0
    if name not in _COMMANDS:
        print(
            f"mmstable: error: no command '{name}', there is "
            f'{", ".join(_COMMANDS)}',
            file=sys.stderr,
        )
        return UsageError.exit_code
    return _COMMANDS[name](args[1:])


if __name__ == '__main__':
    sys.exit(main())
