"""Build mmstable, with its configs and tools inside the package."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = ('configs', 'tools')


class BuildWithConfigs(build_py):
    """Put configs and tools below ``mmstable/.mim``, where mmengine looks."""

    def run(self) -> None:
        super().run()
        if getattr(self, 'editable_mode', False):
            fill_mim(ROOT / 'mmstable' / '.mim', link=True)
        else:
            fill_mim(Path(self.build_lib) / 'mmstable' / '.mim', link=False)


def fill_mim(mim: Path, link: bool) -> None:
    mim.mkdir(parents=True, exist_ok=True)
    for name in SHIPPED:
        place(ROOT / name, mim / name, link)
    # mmengine reads it before it looks for a file below `configs`.
    (mim / 'model-index.yml').write_text('Import: []\n')


def place(source: Path, target: Path, link: bool) -> None:
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)
    if link:
        try:
            target.symlink_to(os.path.relpath(source, target.parent))
            return
        except OSError:
            # Windows allows links to administrators only.
            pass
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns('__pycache__')
    )


def read(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding='utf-8') if path.exists() else ''


def requirements(name: str) -> list[str]:
    lines = read(f'requirements/{name}.txt').splitlines()
    return [line for line in lines if line and not line.startswith('#')]


def version() -> str:
    scope: dict[str, str] = {}
    exec(read('mmstable/version.py'), scope)
    return scope['__version__']


extras = {
    name: requirements(name) for name in ('mmcv', 'demo', 'probe', 'tests')
}
extras['all'] = sorted({line for lines in extras.values() for line in lines})

setup(
    name='mmstable',
    version=version(),
    description='Keep OpenMMLab training runs alive, and know what happened',
    long_description=read('README.md'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['mmstable', 'mmstable.*']),
    package_data={
        'mmstable': ['py.typed'],
        'mmstable.report': ['assets/*', 'assets/js/*'],
    },
    include_package_data=False,
    python_requires='>=3.9',
    install_requires=requirements('runtime'),
    extras_require=extras,
    entry_points={'console_scripts': ['mmstable=mmstable.cli.main:main']},
    cmdclass={'build_py': BuildWithConfigs},
    zip_safe=False,
)
