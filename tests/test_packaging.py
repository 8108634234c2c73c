"""What a wheel of mmstable holds, and what it can do where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.preloaded import run_script
from tests.some_files import some_files

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ('mmstable', 'configs', 'tools', 'requirements')
FILES = ('setup.py', 'pyproject.toml', 'LICENSE', 'README.md')
PRESET = '_base_/loss_scale/fp16_2048.py'
# Old versions of setuptools have it: hide it from every finder there is.
NO_PKG_RESOURCES = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name == 'pkg_resources':
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
sys.modules.pop('pkg_resources', None)
"""


@pytest.fixture(scope='module')
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, as in site-packages."""
    folder = tmp_path_factory.mktemp('wheel')
    # A copy, because building leaves folders behind.
    source = folder / 'source'
    source.mkdir()
    for name in SOURCES:
        shutil.copytree(
            ROOT / name,
            source / name,
            ignore=shutil.ignore_patterns('__pycache__', '.mim'),
        )
    for name in FILES:
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps']
        + ['--no-build-isolation', '--wheel-dir', str(folder), str(source)],
        check=True,
        timeout=200,
    )
    (wheel,) = folder.glob('mmstable-*.whl')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / 'site')
    return folder / 'site'


def run(site: Path, folder: Path, code: str) -> str:
    found, printed = run_script(code, folder, PYTHONPATH=str(site))
    assert found == 0, printed
    return printed


@pytest.mark.parametrize(
    'name',
    [
        'mmstable/py.typed',
        'mmstable/locale/zh_CN/LC_MESSAGES/mmstable.po',
        'mmstable/.mim/model-index.yml',
        'mmstable/.mim/tools/train.py',
        'mmstable/.mim/tools/dist_train.sh',
        f'mmstable/.mim/configs/{PRESET}',
        'mmstable/__main__.py',
        'mmstable/cli/train.py',
        'mmstable/doctor/data/known_bad.json',
        'mmstable/report/assets/report.html',
        'mmstable/report/assets/uPlot.iife.min.js',
        'mmstable/report/assets/LICENSE.uPlot.txt',
        'mmstable/report/assets/js/1_dom.js',
    ],
)
def test_wheel_holds(site: Path, name: str) -> None:
    assert (site / name).is_file()


def test_wheel_holds_every_config(site: Path) -> None:
    def names(root: Path) -> set[str]:
        return {
            p.relative_to(root).as_posix() for p in some_files(root, '**/*.py')
        }

    shipped = names(site / 'mmstable/.mim/configs')
    assert shipped == names(ROOT / 'configs')


def test_wheel_does_not_force_mmcv(site: Path) -> None:
    (metadata,) = site.glob('mmstable-*.dist-info/METADATA')
    needs = [
        line
        for line in metadata.read_text().splitlines()
        if line.startswith('Requires-Dist: ') and 'extra ==' not in line
    ]
    assert sorted(needs) == [
        'Requires-Dist: mmengine>=0.10.4',
        'Requires-Dist: numpy',
        'Requires-Dist: packaging',
        'Requires-Dist: psutil',
        'Requires-Dist: rich',
        'Requires-Dist: torch>=2.1',
    ]


def test_base_of_installed_package_without_pkg_resources(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / 'leaf.py').write_text(f"_base_ = 'mmstable::{PRESET}'\n")
    code = """
import mmstable, sys
from mmstable.cli.config import load_config
cfg = load_config('leaf.py')
print(mmstable.__file__)
print(cfg.loss_scale.init_scale, 'pkg_resources' in sys.modules)
print(sys.meta_path)
"""
    output = run(site, tmp_path, NO_PKG_RESOURCES + code)
    assert str(site) in output
    assert '2048.0 False' in output
    assert '_Finder' not in output


@pytest.mark.soak
def test_own_bases_do_not_hide_the_users_scope(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / 'leaf.py').write_text(
        "_base_ = ['mmstable::_base_/default_runtime_fp16.py',\n"
        "          'mmstable::_base_/schedules/schedule_20k_fp16.py']\n"
        "default_scope = 'mmseg'\n"
    )
    code = """
from mmstable.cli.config import load_config
print(load_config('leaf.py').pretty_text)
"""
    output = run(site, tmp_path, code)
    assert 'IterBasedTrainLoop' in output
    assert '_scope_' not in output


@pytest.mark.soak
def test_stand_in_serves_other_packages(site: Path, tmp_path: Path) -> None:
    package = tmp_path / 'mmseg'
    configs = package / '.mim' / 'configs' / '_base_'
    configs.mkdir(parents=True)
    (package / '__init__.py').touch()
    (package / '.mim' / 'model-index.yml').write_text('Import: []\n')
    (configs / 'foo.py').write_text('foo = 7\n')
    # As pip leaves it, with a distribution that is not called like its module.
    info = tmp_path / 'mmsegmentation-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Name: mmsegmentation\nVersion: 1.0\n')
    (info / 'top_level.txt').write_text('mmseg\n')
    (tmp_path / 'leaf.py').write_text("_base_ = 'mmseg::_base_/foo.py'\n")
    code = """
from mmstable.cli.config import load_config
print('foo is', load_config('leaf.py').foo)
"""
    output = run(site, tmp_path, NO_PKG_RESOURCES + code)
    assert 'foo is 7' in output


def test_config_path_serves_a_stock_config(site: Path, tmp_path: Path) -> None:
    (tmp_path / 'my.py').write_text('batch = 3\n')
    (tmp_path / 'leaf.py').write_text(
        "_base_ = ['./my.py', __import__('mmstable').config_path(\n"
        f"    '{PRESET}')]\n"
    )
    code = """
from mmengine.config import Config
cfg = Config.fromfile('leaf.py')
print(cfg.batch, cfg.loss_scale.init_scale)
"""
    assert '3 2048.0' in run(site, tmp_path, code)


def test_checkout_on_the_path_finds_its_configs(tmp_path: Path) -> None:
    code = f"import mmstable; print(mmstable.config_path('{PRESET}'))"
    output = run(ROOT, tmp_path, code).strip()
    assert os.path.samefile(output, ROOT / 'configs' / PRESET)


def test_metadata_lead_somewhere_outside_of_the_repository(site: Path) -> None:
    (path,) = site.glob('mmstable-*.dist-info/METADATA')
    text = path.read_text(encoding='utf-8')
    assert 'Author: mmstable authors\n' in text
    assert 'Project-URL: Issues, https://github.com/mmstable' in text
    assert 'Programming Language :: Python :: 3.13\n' in text
    description = text.partition('\n\n')[2]
    assert '](https://github.com/mmstable/mmstable/blob/main/' in description
    assert '](docs/' not in description


@pytest.mark.parametrize(
    ('package', 'extras'),
    [('probing', {'probing'}), ('shtab', {'completion', 'all'})],
)
def test_optional_packages_are_in_their_extras(
    site: Path, package: str, extras: set[str]
) -> None:
    (metadata,) = site.glob('mmstable-*.dist-info/METADATA')
    needs = [
        line
        for line in metadata.read_text(encoding='utf-8').splitlines()
        if line.startswith(f'Requires-Dist: {package}')
    ]
    named = [re.findall(r'extra == ["\'](\w+)["\']', line) for line in needs]
    assert all(named)
    assert {name for names in named for name in names} == extras
