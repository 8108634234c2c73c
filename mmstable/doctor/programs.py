"""Ask another program, with an end to how long and how much."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence

from mmstable.messages import _

_LONGEST_ERROR = 200


class ProgramFailed(Exception):
    """A program is not there, failed or did not end."""


def output_of(
    words: Sequence[str], seconds: float, longest: int = 16 << 20
) -> str:
    """What a program prints.

    Args:
        words (Sequence[str]): The program and its arguments.
        seconds (float): How long it may take.
        longest (int): Bytes to read, of the end if there are more. Defaults
            to 16 MiB.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=seconds,
                check=False,
                env={**os.environ, 'LC_ALL': 'C'},
            )
        except subprocess.TimeoutExpired:
            raise ProgramFailed(
                _(
                    '{name} has not ended within {seconds:g} s',
                    name=words[0],
                    seconds=seconds,
                )
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise ProgramFailed(f'{words[0]}: {reason}') from None
        if done.returncode:
            err.seek(0)
            said = err.read(_LONGEST_ERROR).decode(errors='replace')
            # In one line.
            said = ' '.join(said.split())
            raise ProgramFailed(f'{words[0]}: {said or done.returncode}')
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - longest))
        return out.read(longest).decode(errors='replace')
