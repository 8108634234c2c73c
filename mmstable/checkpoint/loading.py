"""Load a checkpoint as data, here and wherever mmengine loads one.

``CheckpointLoader`` is mmengine's own place for this: one function for each
beginning of an address. Those of mmengine are replaced; loaders that other
projects have registered for their own addresses stay. Entries that mmengine
would run as code, or whose files it would delete, are taken out.

One resume, station by station::

    checkpoint/loading.py: load_from_local  mmengine asks for the file
    checkpoint/manifest.py: read            size and digest, if known
    checkpoint/reader/formats.py: archive   read as data
    checkpoint/reader/unpickler.py: load    plain types only
    events/monitor.py: after_load_checkpoint  states of hooks
    checkpoint/resume.py: prepare_to_resume   does it fit this run?
    checkpoint/sections.py: check_sections    all parts checked
    state/progress.py: restore              generators and data position
    optim/wrapper.py: load_state_dict       optimizer and tally
    loops/train.py: _resume_sampler         the sampler moves on
    state/data_position.py: iterate_from    to the next batch
    loops/train.py: run_iter                the first batch
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import torch
from mmengine.dist import barrier, is_main_process
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

from mmstable.checkpoint.manifest import Manifest
from mmstable.checkpoint.remote import AnyPath, RemotePath
from mmstable.errors import CheckpointError
from mmstable.io.files import Malformed, OpenFile, Source, Truncated
from mmstable.messages import _, printable

# The reader is imported when a file is read: `import mmstable` needs only
# the names of the loaders.
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
    from mmstable.checkpoint.reader.formats import read_directory

    try:
        with OpenFile(path) as file:
            if _is_archive(path, file):
                read_directory(file)
    except (OSError, Malformed) as error:
        raise BadCheckpoint(path, _explain(error, path)) from error


def read_content(source: str | AnyPath | Source, **options: Any) -> Content:
    """Read a file by :func:`mmstable.checkpoint.reader.formats.read`.

    Args:
        source (str, Path or Source): The file, or its content.
        **options: For ``read``.

    Raises:
        BadCheckpoint: If it cannot be read, whatever the reason.
    """
    if isinstance(source, (str, Path, RemotePath)):
        try:
            if isinstance(source, RemotePath):
                return _read(source, io.BytesIO(source.read()), options)
            with OpenFile(source) as file:
                return _read(source, file, options)
        except (OSError, ValueError) as error:
            # Also a name that no file can have.
            raise BadCheckpoint(source, _explain(error, source)) from error
    return _read('(downloaded)', source, options)


def _read(
    path: str | AnyPath, file: Source, options: dict[str, Any]
) -> Content:
    from mmstable.checkpoint.reader.formats import read
    from mmstable.checkpoint.reader.rebuild import Refused

    is_zip = _is_archive(path, file)
    try:
        return read(file, **options)
    except Refused as error:
        text = _(
            'refused: it asks for {error}, which is not on the list of what '
            'checkpoints may contain. Nothing in it was executed. If you '
            'know who made it and trust them, name it together with '
            '--trust-checkpoint',
            error=error,
        )
        raise BadCheckpoint(path, text) from error
    except Truncated as error:
        raise BadCheckpoint(path, _explain(error, path)) from error
    except Malformed as error:
        raise BadCheckpoint(path, _explain(error, path, is_zip)) from error
    except Exception as error:
        # A file must not end the search for a better one by an exception
        # that nobody has thought of.
        text = f'{type(error).__name__}: {error}'
        raise BadCheckpoint(path, _name(text, is_zip)) from error


def _is_archive(path: str | AnyPath, file: Source) -> bool:
    from mmstable.checkpoint.reader.formats import is_archive

    file.seek(0)
    if not file.read(1):
        raise BadCheckpoint(path, _('empty'))
    return is_archive(file)


def _explain(
    error: Exception, path: str | AnyPath, is_zip: bool = False
) -> str:
    if isinstance(error, OSError):
        if error.errno == errno.EINVAL:
            return _('foreign: {error}', error=error.strerror)
        return _('missing: {error}', error=error.strerror or error)
    if isinstance(error, Truncated):
        return _('truncated: {error}', error=error)
    return _name(error, is_zip)


def _name(error: object, is_zip: bool) -> str:
    return _('corrupt: {error}' if is_zip else 'foreign: {error}', error=error)


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return _('a {kind}', kind=type(content).__name__)
    keys = [printable(key, 40) for key in list(content)[:4]]
    return _('a dict of {keys}', keys=keys) if keys else _('an empty dict')


_BEST = 'best_ckpt'
_SUFFIX = '.pth'


def drop_foreign_references(checkpoint: Any, folder: str) -> None:
    """Apply :func:`keep_own_references` to what was loaded."""
    keep_own_references(
        _section(checkpoint, 'message_hub', 'runtime_info'), folder
    )


def _section(content: Any, *path: str) -> dict[str, Any]:
    """A dict inside of others; empty if there is none."""
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def keep_own_references(info: MutableMapping[str, Any], folder: str) -> None:
    """Keep what names checkpoints in a folder, and drop the rest.

    mmengine deletes what ``best_ckpt`` and ``keep_ckpt_ids`` of a resumed
    checkpoint name: files, and whole directories. A best checkpoint that lies
    elsewhere, as in the original of a copied folder, is looked for here.

    Args:
        info (MutableMapping): The ``runtime_info``, changed in place.
        folder (str): Where the checkpoint was loaded from.
    """
    for key in [k for k in info if isinstance(k, str) and k.startswith(_BEST)]:
        own = _find_own(info[key], folder)
        if own is None:
            del info[key]
        else:
            info[key] = own
    kept = info.get('keep_ckpt_ids', [])
    if type(kept) is not list or any(type(one) is not int for one in kept):
        del info['keep_ckpt_ids']


def _find_own(path: Any, folder: str) -> str | None:
    """A checkpoint file that lies in a folder, there or by its name."""
    if not isinstance(path, str):
        return None
    if '://' in path:
        is_own = path.endswith(_SUFFIX) and os.path.dirname(path) == folder
        return path if is_own else None
    for one in (path, os.path.join(folder, os.path.basename(path))):
        if (
            one.endswith(_SUFFIX)
            and os.path.isfile(one)
            and os.path.realpath(os.path.dirname(one))
            == os.path.realpath(folder)
        ):
            return one
    return None


_TRUSTED = 'mmstable-trusted://'
# The digest that a file must have, and how to reach it, by its full path.
_PINNED: dict[str, tuple[str, dict[str, Any] | None]] = {}


def guard_checkpoints() -> None:
    """Replace mmengine's ways to load a checkpoint."""
    for prefixes, loader in _LOADERS.items():
        CheckpointLoader.register_scheme(
            prefixes=list(prefixes), loader=loader, force=True
        )


def pin_checkpoint(
    path: str | Path, sha256: str, backend_args: dict[str, Any] | None = None
) -> None:
    """Let a file be loaded only with the content that was verified.

    Args:
        path (str or Path): The file, or the address of a remote one.
        sha256 (str): The digest of its content.
        backend_args (dict, optional): For the back-end of a remote one.
            Defaults to None.
    """
    key = str(path)
    key = key if '://' in key else os.path.realpath(key)
    _PINNED[key] = sha256, backend_args


def trust_checkpoint(path: str | Path) -> str:
    """Let mmengine load one file without the guard, and no other.

    Args:
        path (str or Path): The file. Code in it will be run.

    Returns:
        str: What to give to mmengine instead of the path.
    """
    absolute = os.path.abspath(path)
    address = f'{_TRUSTED}{absolute}'

    def load_from_trusted(filename: str, map_location: Any = None) -> Any:
        content = torch.load(
            absolute, map_location=map_location, weights_only=False
        )
        return _prepare(content, os.path.dirname(absolute))

    CheckpointLoader.register_scheme(
        # mmengine takes it as a regular expression: this one file only.
        prefixes=re.escape(address) + '$',
        loader=load_from_trusted,
        force=True,
    )
    return address


def load_from_local(filename: str, map_location: Any = None) -> Any:
    """Load a file of this machine, or of a file backend of mmengine."""
    if filename.startswith(_TRUSTED):
        raise CheckpointError(f"'{printable(filename)}' is not trusted.")
    if '://' in filename:
        return _load_from_backend(filename, map_location)
    path = os.path.expanduser(filename)
    content = load_file(path, map_location, _find_pinned(path))
    return _prepare(content, os.path.dirname(os.path.abspath(path)))


def _find_pinned(path: str) -> str | None:
    try:
        return _PINNED.get(os.path.realpath(path), (None, None))[0]
    except ValueError:
        # No file can have such a name.
        return None


def load_from_http(filename: str, map_location: Any = None) -> Any:
    """Download a file, and load it."""
    folder = Path(torch.hub.get_dir(), 'checkpoints')
    name = os.path.basename(unquote(urlparse(filename).path))
    if name in ('', '.', '..'):
        raise CheckpointError(
            _(
                "'{address}' does not name a file to download.",
                address=printable(filename),
            )
        )
    path = folder / name
    if is_main_process() and not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(
            filename, str(path), progress=os.isatty(0)
        )
    barrier()
    return _prepare(load_file(path, map_location), str(folder))


def load_from_ceph(filename: str, map_location: Any = None) -> Any:
    """Load a file from Ceph or S3."""
    return _load_from_backend(filename, map_location, backend='petrel')


def load_from_zoo(filename: str, map_location: Any = None) -> Any:
    """Load weights by the name of a model of a zoo that mmengine knows."""
    scheme, _separator, name = filename.partition('://')
    # Looked up at each call: mmengine reads them from files of the user.
    models = getattr(zoo, _ZOOS[scheme])()
    name = zoo.get_deprecated_model_names().get(name, name)
    if name not in models:
        raise CheckpointError(f"no model '{printable(name)}' in this zoo.")
    address = models[name]
    if not address.startswith(('http://', 'https://')):
        address = os.path.join(zoo._get_mmengine_home(), address)
        content = load_from_local(address, map_location)
    else:
        content = load_from_http(address, map_location)
    if scheme != 'mmcls':
        return content
    weights, begin = content.get('state_dict', content), 'backbone.'
    backbone = {
        key[len(begin) :]: value
        for key, value in weights.items()
        if key.startswith(begin)
    }
    return dict(state_dict=backbone)


def _load_from_backend(
    address: str, map_location: Any, backend: str | None = None
) -> Any:
    sha256, known = _PINNED.get(address, (None, None))
    args = known or (None if backend is None else {'backend': backend})
    content = load_file(RemotePath(address, args), map_location, sha256)
    return _prepare(content, os.path.dirname(address))


def _prepare(content: Any, folder: str) -> Any:
    """Take out what mmengine would run or delete."""
    from mmstable.checkpoint.config_text import drop_foreign_configs

    meta = _section(content, 'meta')
    info = _section(content, 'message_hub', 'runtime_info')
    # mmengine runs this text as a program to read `gpu_ids` from it.
    meta.pop('config', None)
    drop_foreign_configs([info, meta])
    keep_own_references(info, folder)
    return content


_ZOOS = {
    'modelzoo': 'get_torchvision_models',
    'torchvision': 'get_torchvision_models',
    'open-mmlab': 'get_external_models',
    'openmmlab': 'get_external_models',
    'mmcls': 'get_mmcls_models',
}
_LOADERS = {
    # mmengine's own loader of pavi would unpickle anything.
    ('', 'pavi://'): load_from_local,
    ('http://', 'https://'): load_from_http,
    (r'(\S+\:)?s3://', r'(\S+\:)?petrel://'): load_from_ceph,
    tuple(f'{scheme}://' for scheme in _ZOOS): load_from_zoo,
}
