"""The pages that a user reads, and what is in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.some_files import some_files

ROOT = Path(__file__).resolve().parents[2]
# Pages of both languages; the first of each pair is the English one.
TWINS = [
    *(
        (english, ROOT / 'docs' / 'zh_cn' / english.name)
        for english in some_files(ROOT, 'docs/en/*.md')
    ),
    *(
        (ROOT / f'{name}.md', ROOT / f'{name}_zh-CN.md')
        for name in ('README', 'CONTRIBUTING')
    ),
]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [
        *some_files(ROOT, '*.md'),
        *some_files(ROOT, 'docs/*/*.md'),
    ]
)


class Block(NamedTuple):
    """A block of code in a page."""

    language: str
    text: str


def read(page: Path) -> str:
    return (ROOT / page).read_text(encoding='utf-8')


def blocks(page: Path) -> list[Block]:
    found = re.findall(r'^ *```([^\n]*)\n(.*?)^ *```', read(page), re.S | re.M)
    return [Block(*one) for one in found]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r'^ *```.*?^ *```', '', read(page), flags=re.S | re.M)


def headings(page: Path) -> list[tuple[int, str]]:
    """Level and text of each heading."""
    found = re.findall(r'^(#+) (.+)$', prose(page), re.M)
    return [(len(marks), text) for marks, text in found]


def anchor(heading: str) -> str:
    """What a link to a heading ends with, as on GitHub."""
    return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')


def page_id(value: object) -> str:
    return str(value) if isinstance(value, Path) else ''
