"""Compile the simulated device, once for a torch and a source."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import yaml

SOURCE = Path(__file__).with_name('fakecuda') / 'device.cpp'
CACHE = Path(__file__).with_name('.build')
# The only release whose dispatcher and hooks the source was written for.
TORCH = (2, 13)
# Functions that device.cpp implements itself.
_OWN = {
    'copy_',
    '_fused_sdp_choice',
    'record_stream',
    'set_.source_Storage_storage_offset',
    'set_.source_Storage',
    'set_.source_Tensor',
    'resize_',
}


def why_not() -> str | None:
    """A reason why the device cannot be simulated here; None if it can."""
    release = tuple(map(int, version('torch').split('.')[:2]))
    if release < TORCH:
        return f'the simulated device needs torch 2.13, not {release}'
    if shutil.which(_compiler()) is None:
        return f'the simulated device is compiled by {_compiler()}: not found'
    if find_spec('torchgen') is None:
        return 'the simulated device needs torchgen to list the kernels'
    return None


def build() -> Path:
    """Return the library; compile it if this source was not compiled yet."""
    key = hashlib.sha256(
        b'\0'.join(
            (
                SOURCE.read_bytes(),
                Path(__file__).read_bytes(),
                version('torch').encode(),
            )
        )
    ).hexdigest()
    library = CACHE / f'{key[:16]}.so'
    if library.exists():
        return library
    CACHE.mkdir(exist_ok=True)
    # Test processes ask for it at the same time.
    with open(CACHE / 'lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            for old in CACHE.glob('*.so'):
                old.unlink()
            _compile(library)
    return library


def torch_folder() -> Path:
    """Where torch is, without importing it."""
    return Path(_locations('torch')[0])


def kernels() -> list[str]:
    """Functions with a CUDA kernel whose work a CPU kernel can do."""
    folder = Path(_locations('torchgen')[0]) / 'packaged/ATen/native'
    text = (folder / 'native_functions.yaml').read_text(encoding='utf-8')
    functions = yaml.load(text, getattr(yaml, 'CSafeLoader', yaml.SafeLoader))
    by_name = {one['func'].split('(')[0]: one for one in functions}

    def backends(one: dict) -> set[str]:
        delegate = one.get('structured_delegate')
        found = (by_name[delegate] if delegate else one).get('dispatch', {})
        return {key.strip() for keys in found for key in keys.split(',')}

    return [
        name
        for name, one in by_name.items()
        if name not in _OWN
        and not name.startswith(('_nested', '_sparse'))
        and 'CUDA' in backends(one)
        # Multi-tensor functions call one kernel for each tensor on a CPU.
        and backends(one) & {'CPU', 'CompositeExplicitAutograd'}
    ]


def _compile(library: Path) -> None:
    listing = CACHE / 'kernels.inc'
    listing.write_text(''.join(f'KERNEL("{one}")\n' for one in kernels()))
    torch, made = torch_folder(), library.with_suffix('.new')
    include = torch / 'include'
    subprocess.run(
        [_compiler(), '-std=c++20', '-O1', '-w', '-fPIC', '-shared']
        + ['-DUSE_C10D', f'-I{CACHE}', f'-I{include}']
        + [f'-I{include}/torch/csrc/api/include', str(SOURCE)]
        + ['-o', str(made), f'-L{torch}/lib', f'-Wl,-rpath,{torch}/lib']
        + ['-ltorch_cpu', '-lc10', '-ltorch'],
        check=True,
    )
    made.replace(library)


def _compiler() -> str:
    return os.environ.get('CXX', 'g++')


def _locations(package: str) -> list[str]:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return list(spec.submodule_search_locations)
