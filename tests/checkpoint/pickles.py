"""Hand-written pickles, and archives of torch around them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import torch


def name(module: str, attribute: str) -> bytes:
    """Push a global."""
    return f'c{module}\n{attribute}\n'.encode()


def text(value: str) -> bytes:
    """Push a string."""
    data = value.encode()
    return b'X' + struct.pack('<I', len(data)) + data


def call(function: bytes, *args: bytes) -> bytes:
    """Push the result of a call."""
    return function + b'(' + b''.join(args) + b'tR'


def new(cls: bytes, *args: bytes) -> bytes:
    """Push a new object of a class."""
    return cls + b'(' + b''.join(args) + b't\x81'


def fill(target: bytes, state: bytes) -> bytes:
    """Push an object with a state."""
    return target + state + b'b'


def mapping(**entries: bytes) -> bytes:
    """Push a dict."""
    return b'}(' + b''.join(text(k) + v for k, v in entries.items()) + b'u'


def checkpoint(**meta: bytes) -> bytes:
    """A pickle that is a checkpoint but for what is put into its meta."""
    facts = dict(iter=b'K\x04', epoch=b'K\x00')
    facts.update(meta)
    return pickled(mapping(meta=mapping(**facts), state_dict=b'}'))


def pickled(body: bytes) -> bytes:
    """A complete pickle."""
    return b'\x80\x02' + body + b'.'


def write_archive(
    path: Path, data: bytes, records: dict[str, bytes] | None = None
) -> Path:
    """Write a file that torch takes for one of its own."""
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('archive/data.pkl', data)
        archive.writestr('archive/byteorder', b'little')
        archive.writestr('archive/version', b'3\n')
        for key, content in (records or {}).items():
            archive.writestr(f'archive/data/{key}', content)
    return path


def rewrite_pickle(source: Path, target: Path, change: Any) -> Path:
    """Copy an archive with another pickle in it."""
    with (
        zipfile.ZipFile(source) as archive,
        zipfile.ZipFile(target, 'w') as copy,
    ):
        for info in archive.infolist():
            content = archive.read(info)
            if info.filename.endswith('data.pkl'):
                content = change(content)
            copy.writestr(info.filename, content)
    return target


def storage(count: int, key: str = '0', kind: str = 'FloatStorage') -> bytes:
    """Push a storage by its persistent id."""
    return (
        b'('
        + text('storage')
        + name('torch', kind)
        + text(key)
        + text('cpu')
        + b'J'
        + struct.pack('<i', count)
        + b'tQ'
    )


def save(value: Any, path: Path, is_zip: bool = True) -> Path:
    """Save with torch, in its new or in its old format."""
    torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    return path
