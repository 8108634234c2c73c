"""How the command line is refused: in one line."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from mmstable.errors import UsageError
from mmstable.messages import say


class Parser(argparse.ArgumentParser):
    """Prints what is wrong, without the whole usage.

    Args:
        kwargs (Any): As for ``argparse.ArgumentParser``.
    """

    def __init__(self, **kwargs: Any) -> None:
        # An abbreviation that works today breaks when an option is added.
        super().__init__(**{'allow_abbrev': False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        text = say('cli.error', error=say('cli.see_help', error=message))
        self.exit(UsageError.exit_code, f'{self.prog}: {text}\n')

    def options(self) -> list[str]:
        """The options that it knows."""
        return list(self._option_string_actions)
