"""Let mmengine load checkpoints as data, wherever it loads one.

``CheckpointLoader`` is mmengine's own place for this: one function for each
beginning of an address. Those of mmengine are replaced; loaders that other
projects have registered for their own addresses stay. Entries that mmengine
would run as code, or whose files it would delete, are taken out.

One resume, station by station::

    checkpoint/loaders.py: load_from_local  mmengine asks for the file
    checkpoint/manifest.py: read            size and digest, if known
    checkpoint/reader/formats.py: archive   read as data
    checkpoint/reader/unpickler.py: load    plain types only
    events/monitor.py: after_load_checkpoint  states of hooks
    checkpoint/sections.py: check_sections    all parts checked
    checkpoint/resume.py: check_resumable     do they fit this run?
    state/progress.py: restore              generators and data position
    optim/wrapper.py: load_state_dict       optimizer and tally
    loops/train.py: _resume_sampler         the sampler moves on
    state/data_position.py: iterate_from    to the next batch
    loops/train.py: run_iter                the first batch
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import torch
from mmengine.dist import barrier, is_main_process
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

from mmstable.checkpoint.folders import RemotePath
from mmstable.checkpoint.loading import load_file
from mmstable.errors import CheckpointError
from mmstable.messages import _, printable

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
    """Load a file of this machine, or of a file back-end of mmengine."""
    if filename.startswith(_TRUSTED):
        raise CheckpointError(f"'{printable(filename)}' is not trusted.")
    if '://' in filename:
        sha256, args = _PINNED.get(filename, (None, None))
        remote = RemotePath(filename, args)
        content = load_file(remote, map_location, sha256)
        return _prepare(content, os.path.dirname(filename))
    path = os.path.expanduser(filename)
    try:
        sha256, __ = _PINNED.get(os.path.realpath(path), (None, None))
    except ValueError:
        # A name that no file can have, which is reported below.
        sha256 = None
    content = load_file(path, map_location, sha256)
    return _prepare(content, os.path.dirname(os.path.abspath(path)))


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
    # mmengine's own loaders would unpickle anything.
    ('', 'pavi://', r'(\S+\:)?s3://', r'(\S+\:)?petrel://'): load_from_local,
    ('http://', 'https://'): load_from_http,
    tuple(f'{scheme}://' for scheme in _ZOOS): load_from_zoo,
}
