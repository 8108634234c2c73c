"""Whatever becomes of an event file, reading it does no harm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmstable.events.records import Event
from mmstable.report import EventFileError, RunStart, read_events
from tests.toys import Sabotage, toy_runner

KINDS = ('flip', 'delete', 'insert', 'value', 'repeat')
# What upsets parsers of JSON, and what is printed.
TOKENS = [
    b'[' * 3000,
    b'{"a":' * 3000,
    b']' * 10,
    b'9' * 5000,
    b'-1e999',
    b'1e999',
    b'NaN',
    b'-Infinity',
    b'null',
    b'true',
    b'[]',
    b'{}',
    b'"\\ud800"',
    b'"\x1b[2J"',
    b'\xff\xfe',
    b'\0' * 9,
    b'\n',
    b'\r\n',
    b'"event":',
    b'"run_start"',
    b'"step_fault"',
    b'"unheard_of"',
    b'2' * 20,
    b'',
]


@pytest.fixture(scope='module')
def genuine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a run with bad steps leaves behind."""
    hooks = [Sabotage(loss=[2, 4]), dict(type='mmstable.EventLogHook')]
    folder = tmp_path_factory.mktemp('run')
    runner = toy_runner(folder, max_iters=4, hooks=hooks)
    runner.train()
    return Path(runner.log_dir, 'stability', 'events.jsonl').read_bytes()


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The same with a few changes, more often behind the header."""
    data = bytearray(content)
    behind_header = st.just(content.index(b'\n') + 1)
    first = draw(st.one_of(st.just(0), *[behind_header] * 4))
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)):
        at = draw(st.integers(first, len(data)))
        if kind == 'flip' and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 'delete':
            del data[at : at + draw(st.integers(1, 200))]
        elif kind == 'insert':
            data[at:at] = draw(st.sampled_from(TOKENS))
        elif kind == 'value':
            colon = data.find(b':', at) + 1
            end = data.find(b',', colon)
            data[colon:end] = draw(st.sampled_from(TOKENS))
        elif kind == 'repeat':
            start = draw(st.integers(0, len(data)))
            data[at:at] = data[start : start + draw(st.integers(1, 400))]
    return bytes(data)


def read_whole(path: Path) -> str:
    """Read a file, and look at all that comes of it."""
    events = read_events(path)
    try:
        found = list(events)
    except EventFileError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 1000
        return 'refused'
    assert isinstance(found[0], RunStart)
    assert all(isinstance(event, Event) for event in found)
    assert all(text.isprintable() for text in events.reasons)
    # Every line is a record, or counted.
    content = path.read_bytes()
    lines = content.count(b'\n') + (not content.endswith(b'\n'))
    assert len(found) + events.skipped + events.is_cut_off == lines
    return 'lines skipped' if events.skipped else 'whole'


def test_reading_never_fails_in_another_way(genuine, tmp_path):
    path, seen = tmp_path / 'events.jsonl', Counter()

    @settings(max_examples=400)
    @given(damaged(genuine))
    def damage(content: bytes) -> None:
        path.write_bytes(content)
        seen[read_whole(path)] += 1

    damage()
    # Otherwise this would test nothing.
    assert seen['refused'] > 8
    assert seen['lines skipped'] > 40
