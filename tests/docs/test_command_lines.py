"""Commands that the pages show are understood."""

from __future__ import annotations

import re
import shlex

import pytest

from mmstable.cli.main import build_parsers
from tests.docs.pages import PAGES, blocks, prose

PARSER, PARSERS = build_parsers()


def words_for_mmstable(line):
    """What follows the last `mmstable` that is a program or a module."""
    words = shlex.split(line, comments=True)
    if words[:2] == ['pip', 'install']:
        return ()
    ours = [i for i, w in enumerate(words) if w.split('/')[-1] == 'mmstable']
    return tuple(words[ours[-1] + 1 :]) if ours else ()


IN_BLOCKS = {
    words_for_mmstable(line)
    for page in PAGES
    for block in blocks(page)
    if block.language == 'bash'
    for line in block.text.splitlines()
}
IN_TEXT = {
    text
    for page in PAGES
    for text in re.findall(r'`mmstable ([a-z][^`]+)`', prose(page))
}


@pytest.mark.parametrize('words', sorted(IN_BLOCKS - {()}), ids=' '.join)
def test_a_shown_command_is_understood(words):
    assert PARSER.parse_known_args(words)[1] == []


@pytest.mark.parametrize('text', sorted(IN_TEXT))
def test_a_named_command_has_the_named_options(text):
    name, *words = text.split()
    options = {word for word in words if word.startswith('--')}
    known = {'--help', *PARSERS[name].options()}
    if name == 'dist-train':
        # Those of the processes may follow.
        known |= {*PARSERS['train'].options()}
    assert options <= known
