"""Commands are run by a real shell as they were meant."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mmstable.messages.secrets import shell_command, shell_word

WORDS = [
    'plain',
    'a b',
    "it's",
    '"$(touch ran)" `touch ran` ; touch ran # \\',
    'red\x1b[31m',
    'line\nbreak\n',
    "both ' \\ and \x1b1",
    'turned \u202e gnp',
    '中文',
    'raw byte \udcff',
    '',
    '-n',
]


@pytest.mark.parametrize('word', WORDS)
def test_a_word_is_printable(word):
    assert shell_word(word).isprintable()


def test_bash_gets_the_words_that_were_meant(tmp_path):
    show = 'import sys, os; print([os.fsencode(a) for a in sys.argv[1:]])'
    command = shell_command([sys.executable, '-c', show, *WORDS])
    done = subprocess.run(
        ['bash', '-c', command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f'{[os.fsencode(word) for word in WORDS]}\n'
    assert not (tmp_path / 'ran').exists()
