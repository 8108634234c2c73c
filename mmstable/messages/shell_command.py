"""Commands that can be copied from a terminal into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from mmstable.messages.secrets import mask_words


def shell_command(words: Iterable[str]) -> str:
    """A command line that means these words, in printable characters.

    Secrets are masked. A message with such a ``command`` says so.
    """
    return ' '.join(map(shell_word, mask_words(words)))


def shell_word(word: str) -> str:
    r"""One word of a command line.

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
