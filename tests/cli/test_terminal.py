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

from mmstable.cli import command
from mmstable.cli.command import begin, say, say_error
from mmstable.cli.main import build_parsers, main
from tests.cli.runs import Screen
from tests.patience import wait_until


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv('NO_COLOR', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    yield
    begin('train', quiet=False)


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
    for name, parser in build_parsers()[1].items():
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


def printed_error(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, 'stderr', stream)
    say_error('bad')
    return stream.getvalue()


def test_colours_are_for_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    line = 'mmstable train: bad'
    begin('train', quiet=False)
    shown = printed_error(monkeypatch, Screen())
    assert shown == f'\x1b[31m{line}\x1b[0m\n'
    assert printed_error(monkeypatch, io.StringIO()) == f'{line}\n'


@pytest.mark.parametrize(
    ('name', 'value'), [('NO_COLOR', '1'), ('TERM', 'dumb')]
)
def test_colours_can_be_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    begin('train', quiet=False)
    shown = printed_error(monkeypatch, Screen())
    assert shown == 'mmstable train: bad\n'


def test_quiet_keeps_errors(capsys: pytest.CaptureFixture[str]) -> None:
    begin('train', quiet=True)
    say('a note')
    say_error('an error')
    assert capsys.readouterr().err == 'mmstable train: an error\n'
    assert list(command.show_progress(iter('ab'), 2)) == ['a', 'b']


def test_slow_work_gives_a_sign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, '_PATIENCE_S', 60.0)
    with command.working('reading'):
        pass
    assert capsys.readouterr().err == ''
    monkeypatch.setattr(command, '_PATIENCE_S', 0.05)
    with command.working('reading'):
        said = wait_until(lambda: capsys.readouterr().err)
    assert said + capsys.readouterr().err == 'reading ...\n'
    begin('train', quiet=True)
    with command.working('reading'):
        time.sleep(0.2)
    assert capsys.readouterr().err == ''


def test_a_screen_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(command.sys, 'stderr', screen)
    with command.working('reading'):
        wait_until(lambda: '0:00:01' in screen.getvalue())
    assert 'reading' in screen.getvalue()
    *__, left = screen.getvalue().split('\x1b[2K')
    assert 'reading' not in left
