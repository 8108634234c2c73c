"""Read a checkpoint without running it, or say what is wrong with it."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from mmengine.runner import CheckpointLoader
from mmengine.utils import digit_version

from mmstable.errors import CheckpointError

# Before this, torch has no allow-list that mmengine's checkpoints pass, and
# they are loaded as mmengine does there: unguarded.
_GUARDED = digit_version(torch.__version__) >= digit_version('2.6')
_ZIP = b'PK\x03\x04'


class BadCheckpoint(CheckpointError):
    """A file that cannot be loaded.

    Args:
        path (str or Path): The file.
        reason (str): What is wrong with it, beginning with one word for it:
            'missing', 'empty', 'truncated', 'corrupt', 'foreign',
            'refused' or 'non-finite'.
    """

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"checkpoint '{path}' is {reason}")
        self.reason = reason


def load_checkpoint(
    path: str | Path, map_location: Any = 'cpu', mmap: bool = False
) -> dict[str, Any]:
    """Load a checkpoint of mmengine or mmcv; only data, no code.

    Args:
        path (str or Path): The file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        mmap (bool): Whether to read tensors from the file only when they are
            used. Defaults to False.

    Raises:
        BadCheckpoint: If the file is damaged, is something else, or asks for
            code to be run.
    """
    content = _load(Path(path), map_location, mmap)
    if not isinstance(content, dict) or 'state_dict' not in content:
        raise BadCheckpoint(
            path,
            'foreign: a dict with a state_dict is expected, got '
            + _describe(content),
        )
    return content


def check_weights(path: str | Path) -> None:
    """Make sure that a file can be loaded, and is a dict of any kind.

    Raises:
        BadCheckpoint: As :func:`load_checkpoint`.
    """
    content = _load(Path(path), 'cpu', mmap=True)
    if not isinstance(content, dict):
        raise BadCheckpoint(
            path, f'foreign: a dict is expected, got {_describe(content)}'
        )


def check_container(path: Path) -> bool:
    """Whether a file is a complete zip archive, as torch writes since 1.6.

    Raises:
        BadCheckpoint: If it is missing, empty or cut off.
    """
    try:
        size = path.stat().st_size
        with open(path, 'rb') as file:
            begin = file.read(len(_ZIP))
    except OSError as error:
        raise BadCheckpoint(path, f'missing: {error.strerror}') from error
    if size == 0:
        raise BadCheckpoint(path, 'empty')
    if begin != _ZIP:
        return False
    if not zipfile.is_zipfile(path):
        raise BadCheckpoint(
            path, f'truncated: its end is missing after {size} bytes'
        )
    return True


def check_data(path: Path) -> None:
    """Compare all data with the check sums in the archive itself.

    torch's reader does not: a flipped bit in a weight loads without a word.

    Raises:
        BadCheckpoint: If they differ.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, ValueError, OSError) as error:
        raise BadCheckpoint(path, f'corrupt: {_first_line(error)}') from error
    if damaged is not None:
        raise BadCheckpoint(
            path, f'corrupt: {damaged} differs from its check sum'
        )


def trust_checkpoint(path: str | Path) -> str:
    """Let mmengine load one file without the guard, and no other.

    Args:
        path (str or Path): The file. Code in it will be run.

    Returns:
        str: What to give to mmengine instead of the path.
    """
    absolute = os.path.abspath(path)
    address = f'mmstable-trusted://{absolute}'

    def load_from_trusted(filename: str, map_location: Any = None) -> Any:
        return torch.load(
            absolute, map_location=map_location, weights_only=False
        )

    CheckpointLoader.register_scheme(
        # mmengine takes it as a regular expression: this one file only.
        prefixes=re.escape(address) + '$',
        loader=load_from_trusted,
        force=True,
    )
    return address


def _load(path: Path, map_location: Any, mmap: bool) -> Any:
    is_zip = check_container(path)
    try:
        return torch.load(
            # Before 2.3 only a string can be mapped.
            str(path),
            map_location=map_location,
            weights_only=_GUARDED,
            mmap=mmap and is_zip,
        )
    except UnpicklingError as error:
        raise BadCheckpoint(path, _explain_refusal(str(error))) from error
    except Exception as error:
        # What damage does to torch's reader depends on where it is.
        what = 'corrupt' if is_zip else 'foreign'
        reason = f'{what}: {_first_line(error)}'
        raise BadCheckpoint(path, reason) from error


def _explain_refusal(message: str) -> str:
    if 'Unsupported operand' in message or 'load key' in message:
        return 'foreign: it is no checkpoint of torch'
    name = re.search(r'GLOBAL (\S+)', message)
    found = name.group(1) if name else _last_line(message)
    return (
        f'refused: it asks for {found}, which is not on the list of what '
        'checkpoints may contain. Nothing in it was executed. If you know '
        'who made it and trust them, name it together with '
        '--trust-checkpoint'
    )


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return f'a {type(content).__name__}'
    keys = ', '.join(map(str, list(content)[:4]))
    return f'a dict of {keys}' if keys else 'an empty dict'


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith('Check the doc')]
    return lines[-1] if lines else 'something'
