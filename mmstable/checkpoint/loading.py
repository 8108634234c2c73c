"""Load a checkpoint as data, or say what is wrong with it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from mmstable.checkpoint.guarded import (
    Content,
    Malformed,
    OpenFile,
    Refused,
    Truncated,
    read,
)
from mmstable.checkpoint.guarded.open_file import ReadableFile
from mmstable.checkpoint.guarded.zip_archive import MAGIC, ZipArchive
from mmstable.errors import CheckpointError
from mmstable.messages import say
from mmstable.messages.printable import printable


class BadCheckpoint(CheckpointError):
    """A file that cannot be loaded.

    Args:
        path (str or Path): The file.
        reason (str): What is wrong with it, beginning with one word for it:
            'missing', 'empty', 'truncated', 'corrupt', 'foreign',
            'refused' or 'non-finite'.
    """

    def __init__(self, path: str | Path, reason: str) -> None:
        self.reason = printable(reason)
        # No longer than a line, whatever is in the file.
        super().__init__(
            say('bad.checkpoint', path=printable(path), reason=self.reason)
        )


def load_checkpoint(
    path: str | Path, map_location: Any = 'cpu', sha256: str | None = None
) -> dict[str, Any]:
    """Load a checkpoint of mmengine or mmcv; only data, no code.

    Args:
        path (str or Path): The file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        sha256 (str, optional): The digest that its bytes must have. Defaults
            to None.

    Raises:
        BadCheckpoint: If the file is damaged, is something else, or asks for
            code to be run.
    """
    content = load_file(path, map_location, sha256)
    return check_sections(path, content)


def load_file(
    path: str | Path, map_location: Any = 'cpu', sha256: str | None = None
) -> Any:
    """Load whatever a file holds; only data, no code.

    Args:
        path (str or Path): The file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        sha256 (str, optional): The digest that its bytes must have. Defaults
            to None.

    Raises:
        BadCheckpoint: As :func:`load_checkpoint`.
    """
    content = read_guarded(
        path, map_location=map_location, with_digest=sha256 is not None
    )
    if sha256 is not None and content.sha256 != sha256:
        raise BadCheckpoint(path, say('bad.other_file'))
    return content.value


def inspect_checkpoint(path: str | Path) -> dict[str, Any]:
    """The same as :func:`load_checkpoint`, but tensors have no values."""
    content = read_guarded(path, with_values=False)
    return check_sections(path, content.value)


def check_sections(path: str | Path, content: Any) -> dict[str, Any]:
    """A checkpoint, if it has the sections of one.

    Raises:
        BadCheckpoint: If it has not.
    """
    if not isinstance(content, dict) or 'state_dict' not in content:
        got = _describe(content)
        raise BadCheckpoint(path, say('bad.no_state_dict', got=got))
    for name in ('state_dict', 'meta', 'message_hub', 'optimizer', 'mmstable'):
        section = content.get(name, {})
        if not isinstance(section, dict):
            kind = type(section).__name__
            raise BadCheckpoint(path, say('bad.section', name=name, kind=kind))
    return content


def check_weights(path: str | Path) -> None:
    """Make sure that a file can be loaded, and is a dict of any kind.

    Raises:
        BadCheckpoint: As :func:`load_checkpoint`.
    """
    content = read_guarded(path, with_values=False).value
    if not isinstance(content, dict):
        raise no_dict(path, content)


def no_dict(path: str | Path, content: Any) -> BadCheckpoint:
    """The error about a file that holds something else than a dict."""
    return BadCheckpoint(path, say('bad.no_dict', got=_describe(content)))


def check_container(path: str | Path) -> None:
    """Make sure that a file is there and, if it is an archive, complete.

    Raises:
        BadCheckpoint: If it is missing, empty or cut off.
    """
    try:
        with OpenFile(path) as file:
            if _is_archive(path, file):
                ZipArchive(file)
    except (OSError, Malformed) as error:
        raise BadCheckpoint(path, _explain(error, path)) from error


def read_guarded(source: str | Path | ReadableFile, **options: Any) -> Content:
    """Read a file by :func:`mmstable.checkpoint.guarded.read`.

    Args:
        source (str, Path or ReadableFile): The file, or its content.
        **options: For ``read``.

    Raises:
        BadCheckpoint: If it cannot be read, whatever the reason.
    """
    if isinstance(source, (str, Path)):
        try:
            with OpenFile(source) as file:
                return _read(source, file, options)
        except (OSError, ValueError) as error:
            # Also a name that no file can have.
            raise BadCheckpoint(source, _explain(error, source)) from error
    return _read('(downloaded)', source, options)


def _read(
    path: str | Path, file: ReadableFile, options: dict[str, Any]
) -> Content:
    is_archive = _is_archive(path, file)
    try:
        return read(file, **options)
    except Refused as error:
        text = say('bad.refused', error=error)
        raise BadCheckpoint(path, text) from error
    except Truncated as error:
        raise BadCheckpoint(path, _explain(error, path)) from error
    except Malformed as error:
        raise BadCheckpoint(path, _explain(error, path, is_archive)) from error
    except Exception as error:
        # A file must not end the search for a better one by an exception
        # that nobody has thought of.
        text = f'{type(error).__name__}: {error}'
        raise BadCheckpoint(path, _name(text, is_archive)) from error


def _is_archive(path: str | Path, file: ReadableFile) -> bool:
    if file.size == 0:
        raise BadCheckpoint(path, say('bad.empty'))
    return file.size > len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC


def _explain(
    error: Exception, path: str | Path, is_archive: bool = False
) -> str:
    if isinstance(error, OSError):
        if error.errno == errno.EINVAL:
            return say('bad.foreign', error=error.strerror)
        return say('bad.missing', error=error.strerror)
    if isinstance(error, Truncated):
        return say('bad.truncated', error=error)
    return _name(error, is_archive)


def _name(error: object, is_archive: bool) -> str:
    return say('bad.corrupt' if is_archive else 'bad.foreign', error=error)


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return say('bad.a', kind=type(content).__name__)
    keys = [printable(key, 40) for key in list(content)[:4]]
    return say('bad.dict_of', keys=keys) if keys else say('bad.empty_dict')
