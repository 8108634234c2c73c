"""The pages are built without a warning."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

for package in ('sphinx', 'myst_parser', 'furo'):
    pytest.importorskip(package, reason='requirements/docs.txt has it')


@pytest.mark.soak
@pytest.mark.parametrize('language', ['en', 'zh_cn'])
def test_the_pages_are_built_without_a_warning(tmp_path, language):
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q'),
            *('-d', tmp_path / 'trees', ROOT / 'docs' / language),
            tmp_path / 'html',
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    options = page(tmp_path, 'options')
    assert 'overflow_streak' in options
    commands = page(tmp_path, 'commands')
    word = {'en': 'Train', 'zh_cn': '训练'}[language]
    assert word in commands and '--before-iter' in commands


def page(folder, name):
    return (folder / 'html' / f'{name}.html').read_text(encoding='utf-8')
