"""Load a checkpoint as data, or say what is wrong with it."""

from __future__ import annotations

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
        super().__init__(f"checkpoint '{printable(path)}' is {self.reason}")


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
        raise BadCheckpoint(
            path, 'corrupt: it is not the file that was verified before'
        )
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
        raise BadCheckpoint(
            path,
            'foreign: a dict with a state_dict is expected, got '
            + _describe(content),
        )
    for name in ('state_dict', 'meta', 'message_hub', 'optimizer', 'mmstable'):
        section = content.get(name, {})
        if not isinstance(section, dict):
            raise BadCheckpoint(
                path,
                f"foreign: its '{name}' is a {type(section).__name__}, not a "
                'dict',
            )
    return content


def check_weights(path: str | Path) -> None:
    """Make sure that a file can be loaded, and is a dict of any kind.

    Raises:
        BadCheckpoint: As :func:`load_checkpoint`.
    """
    content = read_guarded(path, with_values=False).value
    if not isinstance(content, dict):
        raise BadCheckpoint(
            path, f'foreign: a dict is expected, got {_describe(content)}'
        )


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
        except (OSError, Malformed) as error:
            raise BadCheckpoint(source, _explain(error, source)) from error
    return _read('(downloaded)', source, options)


def _read(
    path: str | Path, file: ReadableFile, options: dict[str, Any]
) -> Content:
    is_archive = _is_archive(path, file)
    try:
        return read(file, **options)
    except Refused as error:
        raise BadCheckpoint(path, _explain_refusal(error)) from error
    except Truncated as error:
        raise BadCheckpoint(path, f'truncated: {error}') from error
    except Malformed as error:
        raise BadCheckpoint(path, _explain(error, path, is_archive)) from error
    except (MemoryError, RecursionError, Exception) as error:
        # A file must not end the search for a better one by an exception
        # that nobody has thought of.
        what = 'corrupt' if is_archive else 'foreign'
        text = f'{what}: {type(error).__name__}: {error}'
        raise BadCheckpoint(path, text) from error


def _is_archive(path: str | Path, file: ReadableFile) -> bool:
    if file.size == 0:
        raise BadCheckpoint(path, 'empty')
    return file.size > len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC


def _explain(
    error: Exception, path: str | Path, is_archive: bool = False
) -> str:
    if isinstance(error, OSError):
        return f'missing: {error.strerror}'
    if isinstance(error, Truncated):
        return f'truncated: {error}'
    return f'{"corrupt" if is_archive else "foreign"}: {error}'


def _explain_refusal(error: Refused) -> str:
    return (
        f'refused: it asks for {error}, which is not on the list of what '
        'checkpoints may contain. Nothing in it was executed. If you know '
        'who made it and trust them, name it together with '
        '--trust-checkpoint'
    )


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return f'a {type(content).__name__}'
    keys = ', '.join(printable(key, 40) for key in list(content)[:4])
    return f'a dict of {keys}' if keys else 'an empty dict'
