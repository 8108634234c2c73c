"""Reading event files, good and bad."""

import tracemalloc
from pathlib import Path

import pytest
import torch

from mmstable.events import Action, Fault, Outcome
from mmstable.events.json_lines import encode
from mmstable.events.records import EVENTS
from mmstable.report import (
    EventFileError,
    GuardIntervention,
    ScaleChange,
    StepFault,
    read_events,
)

CHANGE = ScaleChange(3, 2.0, 'optim_wrapper', 1024.0, 512.0)


@pytest.fixture
def path(tmp_path, header):
    path = tmp_path / 'events.jsonl'
    path.write_bytes(encode(header) + encode(CHANGE) * 2)
    return path


def test_a_whole_file(path, header):
    assert list(read_events(path)) == [header, CHANGE, CHANGE]
    assert list(read_events(str(path))) == [header, CHANGE, CHANGE]


def test_a_last_line_cut_off_anywhere(path, header):
    whole = path.read_bytes()
    for cut in range(2, len(encode(CHANGE))):
        path.write_bytes(whole[:-cut])
        assert list(read_events(path)) == [header, CHANGE]


def test_a_last_line_that_lacks_only_its_end(path, header):
    path.write_bytes(path.read_bytes()[:-1])
    assert list(read_events(path)) == [header, CHANGE, CHANGE]


def test_zeros_that_a_power_cut_leaves(path, header):
    path.write_bytes(path.read_bytes() + b'\0' * 4096)
    assert list(read_events(path)) == [header, CHANGE, CHANGE]


def test_damage_in_the_middle_is_an_error_once_reached(path, header):
    path.write_bytes(encode(header) + b'{"event":\n' + encode(CHANGE))
    events = read_events(path)
    assert next(events) == header
    with pytest.raises(EventFileError, match=r'events\.jsonl, line 2: '):
        next(events)


def test_a_newer_file_is_read_as_far_as_possible(path, header):
    newer = encode(header).replace(b'"schema":1', b'"schema":2')
    strange = b'{"event":"scale_change","iteration":4,"time":2.0}\n'
    path.write_bytes(newer + strange + encode(CHANGE))
    head, unknown, change = read_events(path)
    assert head.schema == 2
    assert (unknown.name, unknown.iteration) == ('scale_change', 4)
    assert change == CHANGE


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', r'events\.jsonl is empty: the run ended before'),
        (b'lr,loss\n1,2\n', "first line must be a 'run_start' record, but"),
        (b'{"lr": 1}\n', 'but must be an object with an `event`'),
        (b'{"event":"run_start"}\n', 'but `iteration` is missing'),
        (encode(CHANGE), 'got ScaleChange'),
        (b'x' * (1 << 21), 'is not an event file of mmstable'),
    ],
)
def test_a_file_that_is_no_event_file(path, content, message):
    path.write_bytes(content)
    with pytest.raises(EventFileError, match=message):
        next(read_events(path))


def test_a_checkpoint_is_no_event_file(path):
    torch.save({'a': torch.zeros(3)}, path)
    with pytest.raises(EventFileError, match='is not an event file'):
        next(read_events(path))


def test_a_header_cut_off(path):
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(EventFileError, match='is not an event file'):
        next(read_events(path))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere'):
        next(read_events(tmp_path / 'nowhere'))


def test_memory_does_not_grow_with_the_file(path):
    with open(path, 'ab') as file:
        file.write(encode(CHANGE) * 20_000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_events(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 20_003
    # The file itself has more than 2 MB.
    assert peak < 300_000


def test_a_file_of_the_first_release():
    """Written by mmstable 0.1.0; no release may fail to read it."""
    path = Path(__file__).parent / 'data' / 'events_v1.jsonl'
    events = list(read_events(path))
    assert {event.event for event in events} == EVENTS.keys()
    faults = [e for e in events if isinstance(e, StepFault)]
    assert [(e.iteration, e.fault) for e in faults] == [
        (3, Fault.OVERFLOW),
        (5, Fault.NAN_LOSS),
        (6, Fault.NAN_LOSS),
    ]
    assert faults[0].outcome is Outcome.SKIPPED
    assert f'{faults[0].fault}, {faults[0].outcome!s}' == 'overflow, skipped'
    assert faults[0].culprits == (('net.head.weight', 'Inf'),)
    assert (faults[0].wrapper, faults[0].grad_norm) == ('optim_wrapper', None)
    (done,) = (e for e in events if isinstance(e, GuardIntervention))
    assert (done.action, done.restored) == (Action.ROLLBACK, 4)
    assert events[-1].wrappers['optim_wrapper'].skipped == 3
