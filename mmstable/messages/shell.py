"""Commands to copy into a shell, and a limit on lines that repeat."""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Iterable

from mmstable.messages.secrets import mask_words


def shell_command(words: Iterable[str]) -> str:
    """Quote words as a command line, in printable characters.

    Secrets are masked; :func:`mmstable.messages._` adds a note about that.
    """
    return ' '.join(map(shell_word, mask_words(words)))


def shell_word(word: str) -> str:
    r"""Quote one word of a command line.

    A word with control characters is written as GNU ``ls`` shows it, as in
    ``$'runs/\033[31m'``. Plain ``dash`` does not know that form; bash, zsh,
    ksh and POSIX of 2024 do.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_in_dollar_quotes, word))}'"


def _in_dollar_quotes(character: str) -> str:
    if character in ('\\', "'"):
        return f'\\{character}'
    if character.isprintable():
        return character
    return ''.join(f'\\{byte:03o}' for byte in os.fsencode(character))


class RateLimit:
    """At most so many lines in so many iterations.

    Args:
        most (int): How many lines.
        per (int): In how many iterations.
    """

    def __init__(self, most: int, per: int) -> None:
        self._per = per
        self._printed: deque[int] = deque(maxlen=most)
        self._unprinted: list[int] = []

    def allows(self, iteration: int) -> bool:
        """Whether a line may be printed; if not, it is counted."""
        full = len(self._printed) == self._printed.maxlen
        if full and iteration - self._printed[0] < self._per:
            self._unprinted.append(iteration)
            return False
        self._printed.append(iteration)
        return True

    def take_unprinted(self) -> tuple[int, int, int] | None:
        """Lines not printed since the last call: count, first, last."""
        if not self._unprinted:
            return None
        facts = len(self._unprinted), self._unprinted[0], self._unprinted[-1]
        self._unprinted = []
        return facts
