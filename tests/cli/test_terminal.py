"""Completion, colours, silence, and signs of life."""

from __future__ import annotations

import io
import shutil
import subprocess
import time

import pytest

from mmstable.cli import progress
from mmstable.cli.command import find_commands, say, say_error
from mmstable.cli.completion import completion_script
from mmstable.cli.terminal import be_quiet, paint
from tests.cli.runs import Screen


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv('NO_COLOR', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    yield
    be_quiet(False)


def completed(*words: str) -> list[str]:
    script = completion_script('bash', find_commands())
    listed = ' '.join(f"'{word}'" for word in words)
    code = (
        f'{script}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}\n'
        '_mmstable; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    ran = subprocess.run(
        ['bash', '-c', code], capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


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
def test_bash_completes(words: list[str], expected: list[str]) -> None:
    if shutil.which('bash') is None:
        pytest.skip('there is no bash')
    assert expected == completed(*words)[: len(expected)]


def test_other_shells_know_every_option() -> None:
    commands = find_commands()
    assert 'bashcompinit' in completion_script('zsh', commands)
    fish = completion_script('fish', commands)
    for name in commands:
        assert f'-f -a {name} -d ' in fish
    assert '-l preset -x -a ' in fish


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
    monkeypatch.setattr(progress, '_PATIENCE', 0.05)
    with progress.working('reading'):
        pass
    assert capsys.readouterr().err == ''
    with progress.working('reading'):
        time.sleep(0.5)
    assert capsys.readouterr().err == 'reading ...\n'
    be_quiet(True)
    with progress.working('reading'):
        time.sleep(0.2)
    assert capsys.readouterr().err == ''


def test_a_screen_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, '_PATIENCE', 0.0)
    screen = Screen()
    monkeypatch.setattr(progress.sys, 'stderr', screen)
    with progress.working('reading'):
        time.sleep(0.8)
    assert 'reading 0:00:01' in screen.getvalue()
    assert screen.getvalue().endswith('\r\x1b[K')
