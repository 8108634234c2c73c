"""Pages lead somewhere, and say the same in both languages."""

from __future__ import annotations

import re

import pytest

from mmstable import events
from tests.docs.pages import (
    PAGES,
    ROOT,
    TWINS,
    anchor,
    blocks,
    headings,
    page_id,
    prose,
    read,
)
from tests.some_files import some_files

twins = pytest.mark.parametrize(
    ('english', 'chinese'), TWINS, ids=lambda path: path.name
)
# What is run or read by a program; the rest shows what is printed.
CODE = ('python', 'bash', 'json', 'yaml', '{eval-rst}')


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)]+)\)', prose(page)):
        if target.startswith('http'):
            continue
        name, _, place = target.partition('#')
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if place:
            assert place in {anchor(text) for _, text in headings(path)}


def test_every_page_has_its_twin():
    english = {p.name for p in some_files(ROOT, 'docs/en/*')}
    chinese = {p.name for p in some_files(ROOT, 'docs/zh_cn/*')}
    assert english == chinese


@twins
def test_both_languages_have_the_same_headings(english, chinese):
    levels = [level for level, _ in headings(english)]
    assert [level for level, _ in headings(chinese)] == levels


@twins
def test_both_languages_have_the_same_code(english, chinese):
    ours, theirs = blocks(english), blocks(chinese)
    assert [b.language for b in theirs] == [b.language for b in ours]
    for one, other in zip(ours, theirs):
        if one.language in CODE:
            assert without_remarks(other.text) == without_remarks(one.text)


def without_remarks(code):
    """Code alone: remarks, and the language of a run, may differ."""
    code = re.sub(r"lang='\w+'", '', code)
    return [re.sub(r'(^|\s+)#.*', '', line) for line in code.splitlines()]


@twins
def test_both_languages_link_to_the_same_pages(english, chinese):
    def pages(path):
        text = prose(path).replace('_zh-CN', '').replace('zh_cn', 'en')
        return set(re.findall(r'\]\(([\w./]+\.md)', text))

    assert pages(chinese) == pages(english)


@pytest.mark.parametrize('language', ['en', 'zh_cn'])
def test_the_design_names_every_folder(language):
    page = read(ROOT / 'docs' / language / 'design.md')
    for path in some_files(ROOT / 'mmstable', '*/__init__.py'):
        assert f'| `{path.parent.name}` |' in page


@pytest.mark.parametrize('language', ['en', 'zh_cn'])
def test_the_timeline_of_the_design_is_that_of_the_events(language):
    """Which a test in `tests/events` compares with a run."""
    (drawn,) = [
        block.text
        for block in blocks(ROOT / 'docs' / language / 'design.md')
        if block.language == 'text'
    ]
    real = iter(first_words(events.__doc__))
    assert all(word in real for word in first_words(drawn))


def first_words(text):
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def test_what_the_readme_promises_early():
    lines = read(ROOT / 'README.md').splitlines()
    assert any('pip install mmstable' in line for line in lines[:25])
    assert len(lines) < 150
    assert len(read(ROOT / 'README_zh-CN.md').splitlines()) < 150


@pytest.mark.parametrize('language', ['en', 'zh_cn'])
def test_the_index_lists_every_page_by_its_title(language):
    folder = ROOT / 'docs' / language
    listed = re.findall(
        r'^- \[(.+)\]\(([\w.]+)\)$', read(folder / 'index.md'), re.M
    )
    titles = {
        (headings(path)[0][1], path.name)
        for path in some_files(folder, '*.md')
        if path.name != 'index.md'
    }
    assert set(listed) == titles
    assert len(listed) == len(titles)
