"""The documented schema is the one that is written."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from mmstable.events.codec import decode, encode
from mmstable.events.records import EVENTS, SCHEMA
from mmstable.report import WrapperSample, WrapperSetup, WrapperTotals

DOCS = Path(__file__).parents[2] / 'docs'
PARTS = {
    'run_start': WrapperSetup,
    'heartbeat': WrapperSample,
    'run_end': WrapperTotals,
}

pages = pytest.mark.parametrize('language', ['en', 'zh_cn'])


def read(language: str) -> str:
    return (DOCS / language / 'event_file.md').read_text(encoding='utf-8')


def sections(text: str) -> dict[str, str]:
    parts = re.split(r'^### `(\w+)`$', text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def example(section: str) -> str:
    return re.search(r'```json\n(.*?)\n```', section, re.DOTALL).group(1)


@pages
def test_every_event_has_a_section(language):
    assert sections(read(language)).keys() == EVENTS.keys()
    assert f'## Schema {SCHEMA}\n' in read(language)


@pages
@pytest.mark.parametrize('event', EVENTS)
def test_every_field_is_explained(language, event):
    section = sections(read(language))[event]
    named = set(re.findall(r'`(\w+)`', section))
    common = {'iteration', 'time'}
    wanted = {field.name for field in fields(EVENTS[event])} - common
    if event in PARTS:
        wanted |= {field.name for field in fields(PARTS[event])}
    assert wanted - named == set()


@pages
@pytest.mark.parametrize('event', EVENTS)
def test_every_example_is_what_would_be_written(language, event):
    line = example(sections(read(language))[event])
    record = decode(line.encode())
    assert record.event == event
    assert encode(record).decode() == line + '\n'
    assert json.loads(line).keys() >= {'event', 'iteration', 'time'}
