"""Keep secrets out of logs, records and commands to copy into a shell.

A value is masked if the name of its setting is that of a secret. The value
itself is no clue: a weak password looks like any other word.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

MASK = '***'
_SECRETS = {
    *('passwords', 'passphrase', 'passcode', 'auth', 'authorization'),
    *('secrets', 'credential', 'credentials', 'webhook', 'cookie', 'jwt'),
    *('apikey', 'apikeys', 'accesskey', 'secretkey', 'privatekey'),
    *('apitoken', 'authtoken', 'accesstoken', 'bearer'),
}
_ENDINGS = ('password', 'passwd', 'secret', 'signature')
# `token_file` names the place of a secret, `secret_name` the secret.
_PLACES = {'file', 'path', 'dir', 'folder', 'env', 'var', 'name', 'type'}
# A key of a dict (`img_key`) is far more common than one that opens a door.
_KEY_OF = {
    *('access', 'account', 'api', 'auth', 'aws', 'client', 'encryption'),
    *('license', 'private', 'secret', 'service', 'signing', 'ssh'),
    *('wandb', 'openai', 'neptune', 'clearml', 'comet', 'oss'),
}
# Tokens that a model computes with.
_TOKEN_OF = {
    *('cls', 'class', 'mask', 'pad', 'eos', 'bos', 'unk', 'sep', 'start'),
    *('padding', 'unknown', 'sos', 'pos', 'mem', 'blank', 'audio', 'video'),
    *('newline', 'new', 'next', 'first', 'last'),
    *('end', 'image', 'img', 'text', 'visual', 'patch', 'prompt', 'query'),
    *('dist', 'distill', 'register', 'special', 'out', 'num', 'max', 'min'),
    *('with', 'use', 'per', 'object', 'task', 'latent', 'learnable'),
}
_WORD = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+')
_SETTING = re.compile(r'[\w.-]+')
# The name of `name=` or `'name':`.
_NAME = re.compile(r"""(?<![\w.-])([\w.-]*\w)["']?\s*[=:](?!=)""")
_LOGIN = re.compile(r"""(?<=://)[^/\s'"]+(?=@)""")


def is_secret(name: str) -> bool:
    """Whether a setting holds a secret, judged by its dotted name."""
    return any(map(_names_secret, name.split('.')))


def _is_secret_in_config(name: str) -> bool:
    # Pipelines have `key='img'`, which a replay may need.
    return name != 'key' and is_secret(name)


def _names_secret(part: str) -> bool:
    words = [word.lower() for word in _WORD.findall(part)]
    if not words or words[-1] in _PLACES:
        return False
    if words in (['key'], ['token']) or not _SECRETS.isdisjoint(words):
        return True
    if any(word.endswith(_ENDINGS) for word in words):
        return True
    pairs = list(zip(words, words[1:]))
    if words[-1] == 'token' and pairs[-1][0] not in _TOKEN_OF:
        return True
    return any(
        noun in ('key', 'keys', 'tokens') and owner in _KEY_OF
        for owner, noun in pairs
    )


def mask_words(words: Iterable[str]) -> list[str]:
    """Mask the secrets of a command line.

    Args:
        words (Iterable[str]): With ``KEY=VALUE``, ``--option VALUE`` and
            ``--option=VALUE``.
    """
    masked: list[str] = []
    follows = False
    for word in words:
        is_value = follows and not word.startswith('-')
        masked.append(MASK if is_value else _mask_word(word))
        follows = word.startswith('-') and is_secret(word)
    return masked


def _mask_word(word: str) -> str:
    name, sign, value = word.partition('=')
    if not sign or not _SETTING.fullmatch(name):
        return mask_text(word)
    # Up to the end of the word, which may have spaces.
    return f'{name}={MASK if is_secret(name) else _mask_word(value)}'


def mask_text(text: str) -> str:
    """Mask logins in a text, or all of it if it sets a secret.

    Args:
        text (str): A value of a config, as written in Python.
    """
    if any(map(_is_secret_in_config, _NAME.findall(text))):
        return MASK
    return _LOGIN.sub(MASK, text)


def mask_values(value: Any) -> Any:
    """Mask the secrets of settings.

    Args:
        value (Any): Dicts, lists and tuples of anything.
    """
    if isinstance(value, Mapping):
        return {
            name: MASK if _is_secret_in_config(str(name)) else mask_values(one)
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        # Of a named tuple it is the plain one.
        kind = tuple if isinstance(value, tuple) else list
        return kind(map(mask_values, value))
    return _LOGIN.sub(MASK, value) if isinstance(value, str) else value


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
