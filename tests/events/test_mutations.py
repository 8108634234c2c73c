"""Whatever becomes of an event file, reading it does no harm."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mmstable.events.records import Event
from mmstable.report import EventFileError, RunStart, read_events
from tests.toys import Sabotage, toy_runner

MUTATIONS = 4000
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


def mutate(content: bytes, dice: random.Random) -> bytes:
    """The same with a few changes, more often behind the header."""
    data = bytearray(content)
    first = 0 if dice.random() < 0.2 else content.index(b'\n') + 1
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(first, len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at : at + dice.randint(1, 200)]
        elif kind == 2:
            data[at:at] = dice.choice(TOKENS)
        elif kind == 3:
            # In the place of a value.
            colon = data.find(b':', at) + 1
            end = data.find(b',', colon)
            data[colon:end] = dice.choice(TOKENS)
        else:
            start = dice.randrange(len(data))
            data[at:at] = data[start : start + dice.randint(1, 400)]
    return bytes(data)


def test_reading_never_fails_in_another_way(genuine, tmp_path):
    path = tmp_path / 'events.jsonl'
    dice = random.Random(11)
    refused = skipped = 0
    for _ in range(MUTATIONS):
        content = mutate(genuine, dice)
        path.write_bytes(content)
        events = read_events(path)
        try:
            found = list(events)
        except EventFileError as error:
            refused += 1
            assert str(error).isprintable()
            assert len(str(error)) < 1000
            continue
        skipped += events.skipped
        assert isinstance(found[0], RunStart)
        assert all(isinstance(event, Event) for event in found)
        assert all(text.isprintable() for text in events.reasons)
        # Every line is a record, or counted.
        lines = content.count(b'\n') + (not content.endswith(b'\n'))
        assert len(found) + events.skipped + events.is_cut_off == lines
    # Otherwise this would test nothing.
    assert 100 < refused < MUTATIONS / 2
    assert skipped > MUTATIONS / 2
