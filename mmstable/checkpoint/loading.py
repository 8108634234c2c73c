"""Read a checkpoint as data, and compare it with its manifest."""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmstable.checkpoint.folders import AnyPath, RemotePath
from mmstable.checkpoint.manifest import Manifest
from mmstable.errors import CheckpointError
from mmstable.io.files import (
    Malformed,
    OpenFile,
    Source,
    Truncated,
    size_of,
)
from mmstable.messages import _, printable

# The reader is imported when a file is read, not by `import mmstable`.
if TYPE_CHECKING:
    from mmstable.checkpoint.reader.formats import Content

# Bytes of settings, counters and random states, which are tensors too.
_SMALL = 1 << 16


class BadCheckpoint(CheckpointError):
    """A file that cannot be loaded.

    Args:
        path (str or Path): The file.
        reason (str): What is wrong with it, beginning with one word for it:
            'missing', 'empty', 'truncated', 'corrupt', 'foreign',
            'refused' or 'non-finite'.
    """

    def __init__(self, path: str | AnyPath, reason: str) -> None:
        self.path, self.reason = path, printable(reason)
        # No longer than a line, whatever is in the file.
        super().__init__(
            _(
                "checkpoint '{path}' is {reason}",
                path=printable(path),
                reason=self.reason,
            )
        )

    @property
    def is_refused(self) -> bool:
        """Whether it asks for more than data."""
        from mmstable.checkpoint.reader.rebuild import Refused

        return isinstance(self.__cause__, Refused)

    def __reduce__(self) -> tuple[Any, ...]:
        # torch sends the exceptions of a rank to all others.
        return type(self), (self.path, self.reason)


def load_checkpoint(
    path: str | AnyPath, map_location: Any = 'cpu', sha256: str | None = None
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
    return require_sections(path, content)


def load_file(
    path: str | AnyPath, map_location: Any = 'cpu', sha256: str | None = None
) -> Any:
    """Load whatever a file holds, see :func:`read_verified`.

    Args:
        path (str or Path): The file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        sha256 (str, optional): The digest that its bytes must have. Defaults
            to None.

    Raises:
        BadCheckpoint: As :func:`load_checkpoint`.
    """
    return read_verified(path, map_location, sha256).value


def read_verified(
    path: str | AnyPath,
    map_location: Any = 'cpu',
    sha256: str | None = None,
    with_digest: bool = False,
    for_audit: bool = False,
) -> Content:
    """Read a file in one pass, and compare its bytes with what is known.

    That is a digest, from here or from its manifest, or the check sums
    inside it.

    Args:
        path (str or Path): The file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        sha256 (str, optional): The digest that its bytes must have. Defaults
            to None.
        with_digest (bool): Whether to digest it in any case. Defaults to
            False.
        for_audit (bool): Whether large tensors get no values where a
            manifest says that these are finite: a file may be larger than
            the memory. Defaults to False.

    Raises:
        BadCheckpoint: As :func:`load_checkpoint`.
    """
    manifest = None
    if not sha256:
        manifest = Manifest.read(
            path if isinstance(path, RemotePath) else Path(path)
        )
    expected = sha256 if manifest is None else manifest.sha256
    content = read_content(
        path,
        map_location=map_location,
        values_up_to=_SMALL if for_audit and manifest else math.inf,
        with_digest=with_digest or expected is not None,
        check_sums=expected is None,
    )
    if expected is not None and content.sha256 != expected:
        reason = (
            _('corrupt: it is not the file that was verified before')
            if sha256
            else _('corrupt: its SHA-256 is not as saved')
        )
        raise BadCheckpoint(path, reason)
    return content


def inspect_checkpoint(path: str | AnyPath) -> dict[str, Any]:
    """The same as :func:`load_checkpoint`, but tensors have no values."""
    content = read_content(path, values_up_to=0)
    return require_sections(path, content.value)


def require_sections(path: str | AnyPath, content: Any) -> dict[str, Any]:
    """A checkpoint, if it has the sections of one.

    Raises:
        BadCheckpoint: If it has not.
    """
    if not isinstance(content, dict) or 'state_dict' not in content:
        got = _describe(content)
        raise BadCheckpoint(
            path,
            _(
                'foreign: a dict with a state_dict is expected, got {got}',
                got=got,
            ),
        )
    for name in ('state_dict', 'meta', 'message_hub', 'optimizer', 'mmstable'):
        section = content.get(name, {})
        if not isinstance(section, dict):
            kind = type(section).__name__
            raise BadCheckpoint(
                path,
                _(
                    "foreign: its '{name}' is a {kind}, not a dict",
                    name=name,
                    kind=kind,
                ),
            )
    return content


def no_dict(path: str | AnyPath, content: Any) -> BadCheckpoint:
    """The error about a file that holds something else than a dict."""
    return BadCheckpoint(
        path,
        _('foreign: a dict is expected, got {got}', got=_describe(content)),
    )


def check_container(path: str | Path) -> None:
    """Make sure that a file is there and, if it is an archive, complete.

    Raises:
        BadCheckpoint: If it is missing, empty or cut off.
    """
    from mmstable.checkpoint.reader.formats import is_archive, read_directory

    with _opened(path) as file:
        if is_archive(file):
            read_directory(file)


def read_content(source: str | AnyPath | Source, **options: Any) -> Content:
    """Read a file by :func:`mmstable.checkpoint.reader.formats.read`.

    Args:
        source (str, Path or Source): The file, or its content.
        **options: For ``read``.

    Raises:
        BadCheckpoint: If it cannot be read, whatever the reason.
    """
    from mmstable.checkpoint.reader.formats import read

    with _opened(source) as file:
        return read(file, **options)


@contextmanager
def _opened(source: str | AnyPath | Source) -> Iterator[Source]:
    """Open a file; whatever it causes inside becomes BadCheckpoint.

    A file must not end the search for a better one by an exception that was
    not thought of.
    """
    from mmstable.checkpoint.reader.formats import is_archive

    is_path = isinstance(source, (str, Path, RemotePath))
    path: Any = source if is_path else '(downloaded)'
    is_zip = False
    with ExitStack() as stack:
        try:
            if isinstance(source, RemotePath):
                source = io.BytesIO(source.read())
            elif isinstance(source, (str, Path)):
                source = stack.enter_context(OpenFile(source))
            is_zip = is_archive(source)
            if not size_of(source):
                raise BadCheckpoint(path, _('empty'))
            yield source
        except BadCheckpoint:
            raise
        except Exception as error:
            raise BadCheckpoint(path, _explain(error, is_zip)) from error


def _explain(error: Exception, is_zip: bool) -> str:
    from mmstable.checkpoint.reader.rebuild import Refused

    if isinstance(error, Refused):
        return _(
            'refused: it asks for {error}, which is not on the list of what '
            'checkpoints may contain. Nothing in it was executed. If you '
            'know who made it and trust them, name it together with '
            '--trust-checkpoint',
            error=error,
        )
    if isinstance(error, Truncated):
        return _('truncated: {error}', error=error)
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
        return _('missing: {error}', error=error.strerror or error)
    text = getattr(error, 'strerror', str(error))
    # A plain ValueError: a name that no file can have.
    is_known = isinstance(error, (Malformed, OSError))
    if not is_known and type(error) is not ValueError:
        text = f'{type(error).__name__}: {text}'
    return _('corrupt: {error}' if is_zip else 'foreign: {error}', error=text)


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return _('a {kind}', kind=type(content).__name__)
    keys = [printable(key, 40) for key in list(content)[:4]]
    return _('a dict of {keys}', keys=keys) if keys else _('an empty dict')
