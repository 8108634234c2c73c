"""Let mmengine load every checkpoint as data.

``CheckpointLoader`` is mmengine's own place for this: one function for each
beginning of an address. Those of mmengine are replaced; what others have
registered for addresses of their own stays as it is.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlparse

import torch
from mmengine.dist import barrier, is_main_process
from mmengine.fileio import get_file_backend
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

from mmstable.checkpoint.config_text import drop_foreign_configs
from mmstable.checkpoint.loading import load_file, read_content
from mmstable.checkpoint.references import drop_foreign_references
from mmstable.errors import CheckpointError
from mmstable.messages import _
from mmstable.messages.printable import printable

_TRUSTED = 'mmstable-trusted://'
# What the bytes of a file must be, by its full path.
_PINNED: dict[str, str] = {}


def guard_checkpoints() -> None:
    """Replace mmengine's ways to load a checkpoint."""
    for prefixes, loader in _LOADERS.items():
        CheckpointLoader.register_scheme(
            prefixes=list(prefixes), loader=loader, force=True
        )


def pin_checkpoint(path: str | Path, sha256: str) -> None:
    """Let a file be loaded only with the content that was verified.

    Args:
        path (str or Path): The file.
        sha256 (str): The digest of its content.
    """
    _PINNED[os.path.realpath(path)] = sha256


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
        return _PINNED.get(os.path.realpath(path))
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


def load_from_pavi(filename: str, map_location: Any = None) -> Any:
    """Download a file from pavi, and load it."""
    from pavi import modelcloud

    model = modelcloud.get(filename[len('pavi://') :])
    with TemporaryDirectory() as folder:
        path = Path(folder, 'checkpoint.pth')
        model.download(str(path))
        return _prepare(load_file(path, map_location), folder)


def load_from_ceph(filename: str, map_location: Any = None) -> Any:
    """Load a file from Ceph or S3."""
    return _load_from_backend(filename, map_location, backend='petrel')


def load_from_torchvision(filename: str, map_location: Any = None) -> Any:
    """Load weights of torchvision by the name of the model."""
    name = filename.partition('://')[2]
    return _load_from_zoo(name, zoo.get_torchvision_models(), map_location)


def load_from_openmmlab(filename: str, map_location: Any = None) -> Any:
    """Load weights of OpenMMLab by the name of the model."""
    name = filename.partition('://')[2]
    name = zoo.get_deprecated_model_names().get(name, name)
    return _load_from_zoo(name, zoo.get_external_models(), map_location)


def load_from_mmcls(filename: str, map_location: Any = None) -> Any:
    """Load a backbone of mmcls by the name of the model."""
    name = filename.partition('://')[2]
    content = _load_from_zoo(name, zoo.get_mmcls_models(), map_location)
    weights = content.get('state_dict', content)
    begin = 'backbone.'
    backbone = {
        key[len(begin) :]: value
        for key, value in weights.items()
        if key.startswith(begin)
    }
    return dict(state_dict=backbone)


def _load_from_zoo(name: str, models: Any, map_location: Any) -> Any:
    if name not in models:
        raise CheckpointError(f"no model '{printable(name)}' in this zoo.")
    address = models[name]
    if address.startswith(('http://', 'https://')):
        return load_from_http(address, map_location)
    home = zoo._get_mmengine_home()
    return load_from_local(os.path.join(home, address), map_location)


def _load_from_backend(address: str, map_location: Any, **args: Any) -> Any:
    try:
        backend = get_file_backend(address, backend_args=args or None)
    except KeyError:
        raise CheckpointError(
            _(
                "mmengine has no file backend for '{address}'.",
                address=printable(address),
            )
        ) from None
    data = io.BytesIO(backend.get(address))
    content = read_content(
        data, map_location=map_location, check_sums=True
    ).value
    return _prepare(content, os.path.dirname(address))


def _prepare(content: Any, folder: str) -> Any:
    """Take out what mmengine would run or delete."""
    if isinstance(content, dict) and isinstance(content.get('meta'), dict):
        # mmengine runs this text as a program to read `gpu_ids` from it.
        content['meta'].pop('config', None)
    drop_foreign_configs(content)
    drop_foreign_references(content, folder)
    return content


_LOADERS = {
    ('',): load_from_local,
    ('http://', 'https://'): load_from_http,
    ('pavi://',): load_from_pavi,
    (r'(\S+\:)?s3://', r'(\S+\:)?petrel://'): load_from_ceph,
    ('modelzoo://', 'torchvision://'): load_from_torchvision,
    ('open-mmlab://', 'openmmlab://'): load_from_openmmlab,
    ('mmcls://',): load_from_mmcls,
}
