"""How fields are filled in, and in which language."""

import pytest

from mmstable.errors import ConfigError
from mmstable.messages import say, use_language
from mmstable.messages.catalogue import CATALOGUE
from mmstable.messages.message import Message


@pytest.fixture
def message(monkeypatch):
    """Put a message into the catalogue."""

    def put(en, zh_cn='字'):
        monkeypatch.setitem(CATALOGUE, 'test', Message(en, zh_cn))

    return put


@pytest.mark.parametrize(
    ('template', 'value', 'text'),
    [
        ('{n:step|steps}', 0, '0 steps'),
        ('{n:step|steps}', 1, '1 step'),
        ('{n:step|steps}', 2, '2 steps'),
        ('{n}', ['a', 'b'], 'a, b'),
        ('{n:; }', ('a', 'b'), 'a; b'),
        ('{n:.2f}', 0.125, '0.12'),
        ('{n}', None, 'None'),
        ('{{{n}}}', '{x}', '{{x}}'),
    ],
)
def test_fields(message, template, value, text):
    message(template)
    assert say('test', n=value) == text


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('a\x1b[31m\nb', r'a\x1b[31m\nb'),
        (['a\nb', 'c'], r'a\nb, c'),
        (ValueError('a\rb'), r'a\rb'),
        ('x' * 5000, 'x' * 4000 + '... (1000 more characters)'),
    ],
)
def test_what_others_wrote_cannot_act(message, value, text):
    message('{n}')
    assert say('test', n=value) == text


def test_lists_are_joined_as_the_language_does(message):
    message('{names}', '{names}')
    use_language('zh_cn')
    assert say('test', names=['a', 'b']) == 'a、b'


def test_a_missing_field_is_an_error(message):
    message('{n}')
    with pytest.raises(KeyError, match='n'):
        say('test')


@pytest.mark.parametrize('value', ['zh_cn', 'zh_CN', 'zh-CN'])
def test_the_environment_chooses(monkeypatch, message, value):
    message('word')
    assert say('test') == 'word'
    monkeypatch.setenv('MMSTABLE_LANG', value)
    assert say('test') == '字'


def test_a_choice_wins_over_the_environment(monkeypatch, message):
    message('word')
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    use_language('en')
    assert say('test') == 'word'
    use_language(None)
    assert say('test') == '字'


def test_a_wrong_environment_is_named(monkeypatch):
    monkeypatch.setenv('MMSTABLE_LANG', 'fr')
    message = "MMSTABLE_LANG must be one of en, zh_cn, got 'fr'"
    with pytest.raises(ConfigError, match=message):
        use_language(None)
