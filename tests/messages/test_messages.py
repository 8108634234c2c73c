"""How fields are filled in, and in which language."""

import time

import pytest

from mmstable.errors import ConfigError
from mmstable.messages import N_, PO_FILE, _, read_po, use_language


@pytest.fixture
def chinese(monkeypatch):
    """Translate some texts, and nothing else."""

    def put(**texts):
        monkeypatch.setattr('mmstable.messages.read_po', lambda: texts)

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
def test_fields(template, value, text):
    assert _(template, n=value) == text


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('a\x1b[31m\nb', r'a\x1b[31m\nb'),
        (['a\nb', 'c'], r'a\nb, c'),
        (ValueError('a\rb'), r'a\rb'),
        ('x' * 5000, 'x' * 4000 + '... (1000 more characters)'),
    ],
)
def test_what_others_wrote_cannot_act(value, text):
    assert _('{n}', n=value) == text


def test_lists_are_joined_as_the_language_does():
    use_language('zh_cn')
    assert _('{names}', names=['a', 'b']) == 'a、b'


def test_a_missing_field_is_an_error():
    with pytest.raises(KeyError, match='n'):
        _('{n}')


def test_a_marked_text_is_the_text():
    assert N_('word') == 'word'


def test_a_text_without_translation_is_english(chinese):
    chinese(word='字')
    use_language('zh_cn')
    assert _('word') == '字'
    assert _('another {n}', n=1) == 'another 1'


@pytest.mark.parametrize('value', ['zh_cn', 'zh_CN', 'zh-CN'])
def test_the_environment_chooses(monkeypatch, chinese, value):
    chinese(word='字')
    assert _('word') == 'word'
    monkeypatch.setenv('MMSTABLE_LANG', value)
    assert _('word') == '字'


def test_a_choice_wins_over_the_environment(monkeypatch, chinese):
    chinese(word='字')
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    use_language('en')
    assert _('word') == 'word'
    use_language(None)
    assert _('word') == '字'


def test_a_wrong_environment_is_named(monkeypatch):
    monkeypatch.setenv('MMSTABLE_LANG', 'fr')
    message = "MMSTABLE_LANG must be one of en, zh_cn, got 'fr'"
    with pytest.raises(ConfigError, match=message):
        use_language(None)


def test_english_reads_no_file(monkeypatch):
    def read_nothing():
        raise AssertionError('the translations were read')

    monkeypatch.setattr('mmstable.messages.read_po', read_nothing)
    assert _('word') == 'word'


def test_po_files_of_other_programs_are_read(tmp_path):
    path = tmp_path / 'a.po'
    path.write_text(
        'msgid ""\nmsgstr ""\n"Language: zh_CN\\n"\n\n'
        '#: a.py\nmsgid "one\\n\\"two\\" \\\\"\nmsgstr "一"\n\n'
        'msgid ""\n"a long "\n"text"\nmsgstr ""\n"长"\n"文"\n\n'
        'msgid "not yet"\nmsgstr ""\n',
        encoding='utf-8',
    )
    assert read_po(path) == {'one\n"two" \\': '一', 'a long text': '长文'}


def test_reading_takes_next_to_nothing():
    start = time.process_time()
    read_po.__wrapped__(PO_FILE)
    assert time.process_time() - start < 1
