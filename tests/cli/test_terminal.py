"""Completion, colours, silence, and signs of life."""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from mmstable.cli import progress
from mmstable.cli.command import find_commands, say, say_error
from mmstable.cli.main import main
from mmstable.cli.parsers import build_parsers
from mmstable.cli.terminal import be_quiet, paint
from tests.cli.runs import Screen
from tests.patience import wait_until


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv('NO_COLOR', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    yield
    be_quiet(False)


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]):
    def printed(shell: str) -> str:
        pytest.importorskip('shtab')
        assert main(['completion', shell]) == 0
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['mmstable', 'prot'], ['protect']),
        (['mmstable', 'train', '--as'], ['--as-is']),
        (['mmstable', 'train', '--preset', 'u'], ['ultra_safe']),
        (['mmstable', 'protect', 'a.py', '--lang', ''], ['en', 'zh_cn']),
        (['mmstable', 'completion', ''], ['bash', 'zsh', 'fish']),
        (['mmstable', 'train', '/dev/nul'], ['/dev/null']),
    ],
)
def test_bash_completes(
    words: list[str], expected: list[str], script: Callable[[str], str]
) -> None:
    if shutil.which('bash') is None:
        pytest.skip('there is no bash')
    listed = ' '.join(f"'{word}'" for word in words)
    code = (
        f'{script("bash")}\nCOMP_WORDS=({listed}); '
        f'COMP_CWORD={len(words) - 1}\n'
        '_shtab_mmstable; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    ran = subprocess.run(
        ['bash', '-c', code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[: len(expected)] == expected


@pytest.mark.parametrize('shell', ['zsh', 'fish'])
def test_other_shells_know_every_option(
    shell: str, script: Callable[[str], str]
) -> None:
    text = script(shell)
    for name, parser in build_parsers(find_commands())[1].items():
        assert name in text
        for action in parser._actions:
            # `--local_rank` is for launchers only.
            if action.help != argparse.SUPPRESS:
                for option in action.option_strings:
                    assert option.lstrip('-') in text


def test_without_shtab_completion_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # None in sys.modules makes an import fail as if nothing were installed.
    monkeypatch.setitem(sys.modules, 'shtab', None)
    assert main(['completion', 'bash']) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith('mmstable completion: error: ')
    assert captured.err.endswith(' pip install mmstable[completion]\n')
    assert captured.err.count('\n') == 1


def test_colours_are_for_screens() -> None:
    assert paint('bad', 'red', Screen()) == '\x1b[31mbad\x1b[0m'
    assert paint('bad', '', Screen()) == 'bad'
    assert paint('bad', 'red', io.StringIO()) == 'bad'


@pytest.mark.parametrize(
    ('name', 'value'), [('NO_COLOR', '1'), ('TERM', 'dumb')]
)
def test_colours_can_be_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert paint('bad', 'red', Screen()) == 'bad'


def test_quiet_keeps_errors(capsys: pytest.CaptureFixture[str]) -> None:
    be_quiet(True)
    say('train', 'a note')
    say_error('train', 'an error')
    assert capsys.readouterr().err == 'mmstable train: an error\n'
    assert list(progress.show_progress(iter('ab'), 2)) == ['a', 'b']


def test_slow_work_gives_a_sign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, '_PATIENCE', 60.0)
    with progress.working('reading'):
        pass
    assert capsys.readouterr().err == ''
    monkeypatch.setattr(progress, '_PATIENCE', 0.05)
    with progress.working('reading'):
        said = wait_until(lambda: capsys.readouterr().err)
    assert said + capsys.readouterr().err == 'reading ...\n'
    be_quiet(True)
    with progress.working('reading'):
        time.sleep(0.2)
    assert capsys.readouterr().err == ''


def test_a_screen_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, '_PATIENCE', 0.0)
    screen = Screen()
    monkeypatch.setattr(progress.sys, 'stderr', screen)
    with progress.working('reading'):
        wait_until(lambda: 'reading 0:00:01' in screen.getvalue())
    assert screen.getvalue().endswith('\r\x1b[K')
