"""Build mmstable, with its configs and tools inside the package."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
URL = 'https://github.com/mmstable/mmstable'
PYTHONS = ('3.9', '3.10', '3.11', '3.12', '3.13')
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


def long_description() -> str:
    """The README, with links that work outside of the repository."""
    image = r'(!\[[^]]*\]\()(?=docs/)'
    text = re.sub(image, rf'\1{URL}/raw/main/', read('README.md'))
    return re.sub(r'\]\((?!https?:|#)', f']({URL}/blob/main/', text)


def requirements(name: str) -> list[str]:
    lines = read(f'requirements/{name}.txt').splitlines()
    return [line for line in lines if line and not line.startswith('#')]


def version() -> str:
    scope: dict[str, str] = {}
    exec(read('mmstable/version.py'), scope)
    return scope['__version__']


extras = {
    name: requirements(name)
    for name in ('mmcv', 'demo', 'completion', 'notify', 'tests')
}
extras['all'] = sorted({line for lines in extras.values() for line in lines})
# Not part of `all`: its socket lets every local user run code.
extras['probing'] = requirements('probing')

setup(
    name='mmstable',
    version=version(),
    description='Keep OpenMMLab training runs alive, and know what happened',
    long_description=long_description(),
    long_description_content_type='text/markdown',
    author='mmstable authors',
    url=URL,
    project_urls={
        'Documentation': f'{URL}/tree/main/docs',
        'Changes': f'{URL}/blob/main/CHANGELOG.md',
        'Issues': f'{URL}/issues',
    },
    keywords=[
        'mmengine',
        'openmmlab',
        'mixed precision',
        'nan',
        'loss scale',
        'out of memory',
        'checkpoint',
        'training stability',
    ],
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Natural Language :: Chinese (Simplified)',
        'Natural Language :: English',
        'Operating System :: POSIX :: Linux',
        *(f'Programming Language :: Python :: {name}' for name in PYTHONS),
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Typing :: Typed',
    ],
    license='Apache-2.0',
    packages=find_packages(include=['mmstable', 'mmstable.*']),
    py_modules=['mmstable_command'],
    package_data={
        'mmstable': ['py.typed', 'locale/*/LC_MESSAGES/*.po'],
        'mmstable.doctor': ['data/*.json'],
        'mmstable.report': ['assets/*', 'assets/js/*'],
    },
    include_package_data=False,
    python_requires='>=3.9',
    install_requires=requirements('runtime'),
    extras_require=extras,
    entry_points={'console_scripts': ['mmstable=mmstable_command:main']},
    cmdclass={'build_py': BuildWithConfigs},
    zip_safe=False,
)
