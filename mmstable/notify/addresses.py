"""The addresses that messages go to, which are secrets."""

from __future__ import annotations

import os
import re
import stat
from importlib.util import find_spec
from pathlib import Path

from mmstable.errors import ConfigError
from mmstable.io.files import read_bounded
from mmstable.messages import _
from mmstable.messages.secrets import MASK

VARIABLE = 'MMSTABLE_NOTIFY'
_MAX_BYTES = 1 << 16
_SCHEME = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*(?=://)')


def default_file() -> Path:
    """Return the file that is read if the variable is not set."""
    folder = os.environ.get('XDG_CONFIG_HOME') or '~/.config'
    return Path(folder).expanduser() / 'mmstable' / 'notify'


def read_addresses() -> list[str]:
    """Read the addresses; an empty list if there are none.

    ``MMSTABLE_NOTIFY`` holds addresses separated by spaces, or the path of a
    file with one in each line. Without it the file is
    ``~/.config/mmstable/notify``.

    Raises:
        ConfigError: If the file cannot be read, others may read it, or a
            word is not an address.
    """
    value = os.environ.get(VARIABLE, '').strip()
    if value and _SCHEME.match(value):
        words = value.split()
    else:
        file = Path(value).expanduser() if value else default_file()
        if not value and not file.exists():
            return []
        lines = _read_private(file).splitlines()
        stripped = (line.strip() for line in lines)
        words = [one for one in stripped if one and one[0] != '#']
    for word in words:
        if not _SCHEME.match(word):
            raise ConfigError(
                _(
                    '{variable}: an address has the form '
                    "'service://...', and one of them has no '://'.",
                    variable=VARIABLE,
                )
            )
    return words


def _read_private(file: Path) -> str:
    try:
        status = file.stat()
        content = read_bounded(file, _MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        # The value may be an address without a scheme: it is not shown.
        reason = error.strerror if isinstance(error, OSError) else 'not UTF-8'
        raise ConfigError(
            _(
                '{variable} is neither an address such as '
                "'dingtalk://...' nor a file that can be read ({reason}).",
                variable=VARIABLE,
                reason=reason,
            )
        ) from None
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            _(
                "'{file}' holds secrets, and others may read or own it. "
                'Make it private: chmod 600 {file}',
                file=file,
            )
        )
    return content


def mask_address(address: str) -> str:
    """Return the service of an address, and nothing else of it."""
    found = _SCHEME.match(address)
    return f'{found[0].lower() if found else ""}://{MASK}'


def why_not_possible() -> str:
    """Return why nothing can be sent; '' if it can."""
    if find_spec('apprise') is not None:
        return ''
    return _(
        'notifications need the package `apprise`: pip install '
        'mmstable[notify]'
    )
