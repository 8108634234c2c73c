"""What GitHub, pip and newcomers read is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from mmstable.version import __version__
from tests.some_files import some_files

ROOT = Path(__file__).resolve().parents[1]
SETUP = (ROOT / 'setup.py').read_text()
# In a line that is about other files than those of this repository.
MADE_UP = {'mmstable/hooks/my_hook.py'}


def pythons():
    return ast.literal_eval(re.search(r'^PYTHONS = (.+)$', SETUP, re.M)[1])


def test_the_workflow_runs_what_is_run_at_home():
    path = ROOT / '.github' / 'workflows' / 'ci.yml'
    job = yaml.safe_load(path.read_text())['jobs']['ci']
    assert tuple(job['strategy']['matrix']['python']) == pythons()
    assert [step for step in job['steps'] if step.get('run') == '.ci/run']
    assert (ROOT / '.ci' / 'run').stat().st_mode & 0o100


def test_no_supported_python_is_left_out():
    lowest = re.search(r"python_requires='>=(.+)'", SETUP)[1]
    assert pythons()[0] == lowest


@pytest.mark.parametrize('path', some_files(ROOT, '.github/*/*.yml'), ids=str)
def test_yaml_can_be_read(path):
    assert yaml.safe_load(path.read_text(encoding='utf-8'))


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['version'] == __version__
    assert f'## {__version__}' in (ROOT / 'CHANGELOG.md').read_text()


@pytest.mark.parametrize('page', some_files(ROOT, '[CR]*ING*.md'), ids=str)
def test_what_contributors_are_sent_to_exists(page):
    text = page.read_text(encoding='utf-8')
    named = set(re.findall(r'`((?:[\w.-]+/)+[\w.-]*)`', text)) - MADE_UP
    # A page that has no checks at all would pass.
    assert named
    for name in named - {'docs/_build/en', 'docs/_build/zh_cn'}:
        assert (ROOT / name).exists(), name
    for target in re.findall(r'\bmake ([\w-]+)', text):
        assert re.search(rf'^{target}:', _makefile(), re.M), target


def _makefile():
    return (ROOT / 'Makefile').read_text()
