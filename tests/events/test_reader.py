"""Reading event files, good and bad."""

import os
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmstable.events import Action, Culprit, Fault, Origin, Outcome
from mmstable.events.codec import LONGEST_LINE, encode
from mmstable.events.records import EVENTS
from mmstable.report import (
    EventFileError,
    GuardIntervention,
    ScaleChange,
    StepFault,
    read_events,
)

CHANGE = ScaleChange(3, 2.0, 'optim_wrapper', 1024.0, 512.0)
FAULT = StepFault(
    iteration=3,
    time=1.5,
    wrapper='gen',
    rank=0,
    outcome='skipped',
    fault='overflow',
    loss_scale=2.0,
    next_loss_scale=1.0,
    culprits=(Culprit('a.weight', 'NaN'),),
    dropped_micro_batches=0,
    losses={'loss': 0.5},
    origins=(Origin(1, 'node', 'cpu', 'loss'),),
)


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


def test_a_cut_off_line_is_not_counted(path):
    events = read_events(path)
    assert len(list(events)) == 3
    assert (events.skipped, events.is_cut_off) == (0, False)
    path.write_bytes(path.read_bytes()[:-5])
    events = read_events(path)
    assert len(list(events)) == 2
    assert (events.skipped, events.is_cut_off) == (0, True)


def changed(old, new):
    assert old in encode(CHANGE)
    return encode(CHANGE).replace(old, new)


DAMAGED = {
    'no JSON': (b'{"event":\n', 'Expecting value'),
    'empty': (b'\n', 'Expecting value'),
    'no UTF-8': (changed(b'optim', b'\xff'), "can't decode byte 0xff"),
    'UTF-16': (encode(CHANGE).decode().encode('utf-16-be'), 'Expecting'),
    'zeros': (b'\0' * 100 + b'\n', 'Expecting value'),
    'deep': (b'[' * 10**5 + b'\n', 'is nested too deeply'),
    'deep object': (b'{"a":' * 10**5 + b'\n', 'is nested too deeply'),
    'deep unknown event': (
        b'{"event":"new","iteration":1,"time":1,"a":%s}\n'
        % (b'[' * 200 + b']' * 200),
        'is nested too deeply',
    ),
    'deep value': (
        changed(b'1024.0', b'[' * 900 + b']' * 900),
        r'`loss_scale`: must be a number, got \[\[',
    ),
    'long integer': (
        changed(b'1024.0', b'9' * 10**6),
        'has a number of 1000000 digits',
    ),
    'large integer': (
        changed(b'"iteration":3', b'"iteration":99999999999999999999'),
        'must be -9223372036854775808 to 18446744073709551615, got 9',
    ),
    'infinite iteration': (
        changed(b'"iteration":3', b'"iteration":1e999'),
        'must be an integer, got inf',
    ),
    'other type': (
        changed(b'"optim_wrapper"', b'["\\u001b[31m"]'),
        r"`wrapper`: must be a string, got \['\\x1b",
    ),
    'long string in the wrong place': (
        changed(b'1024.0', b'"%s"' % (b'x' * 10**6)),
        r"must be a number, got 'x+\.\.\.x+'$",
    ),
    'culprit without a name': (
        b'{"event":"poisoned","iteration":1,"time":1,'
        b'"culprits":[{"name":1,"kind":"NaN"}]}\n',
        '`culprits`: `name`: must be a string, got 1',
    ),
    'origin without a rank': (
        encode(FAULT).replace(b'"rank":1', b'"rank":"1"'),
        "`origins`: `rank`: must be an integer, got '1'",
    ),
}


@pytest.mark.parametrize(
    ('line', 'reason'), DAMAGED.values(), ids=DAMAGED.keys()
)
def test_a_damaged_line_is_skipped_and_counted(path, header, line, reason):
    path.write_bytes(encode(header) + line + encode(CHANGE) + line)
    events = read_events(path)
    assert list(events) == [header, CHANGE]
    assert (events.skipped, events.is_cut_off) == (2, False)
    assert re.match(f'line 2: .*{reason}', events.reasons[0])
    assert all(len(text) < 600 for text in events.reasons)
    assert all(text.isprintable() for text in events.reasons)


def test_reasons_are_few_and_the_count_is_complete(path, header):
    path.write_bytes(encode(header) + b'{}\n' * 1000 + encode(CHANGE))
    events = read_events(path)
    assert list(events) == [header, CHANGE]
    assert events.skipped == 1000
    assert len(events.reasons) == 10


def test_a_line_without_bounds_is_not_held(path, header):
    with open(path, 'ab') as file:
        for _ in range(64):
            file.write(b'x' * (1 << 20))
        file.write(b'\n' + encode(CHANGE))
    tracemalloc.start()
    try:
        events = read_events(path)
        found = list(events)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [header, CHANGE, CHANGE, CHANGE]
    assert events.skipped == 1
    assert events.reasons == ['line 4: has more than 4194304 bytes']
    assert peak < 16 << 20


def test_the_longest_line_that_is_read(path, header):
    padding = b' ' * (LONGEST_LINE - len(encode(CHANGE)))
    for extra, count in ((b'', 2), (b' ', 1)):
        line = encode(CHANGE)[:-1] + padding + extra + b'\n'
        path.write_bytes(encode(header) + line)
        assert len(list(read_events(path))) == count


def test_numbers_that_others_cannot_hold_are_written_as_text(path, header):
    odd = replace(header, custom_hooks=({'a': 10**400, 'b': 2**63},))
    path.write_bytes(encode(odd))
    (head,) = read_events(path)
    assert head.custom_hooks == ({'a': str(10**400), 'b': 2**63},)


def test_closing_early(path):
    events = read_events(path)
    next(events)
    events.close()
    assert list(events) == []


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
        (b'x' * (1 << 23), 'but has more than 4194304 bytes'),
        (b'[' * (1 << 20), 'but is nested too deeply'),
        (b'\xff\xfe\n', "but 'utf-8' codec can't decode"),
        (b'9' * 5000 + b'\n', 'but has a number of 5000 digits'),
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


def test_a_pipe_or_a_folder_is_no_event_file(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'folder\x1b').mkdir()
    with pytest.raises(EventFileError, match='pipe: not a regular file'):
        next(read_events(tmp_path / 'pipe'))
    with pytest.raises(EventFileError, match=r'folder\\x1b: not a regular'):
        next(read_events(tmp_path / 'folder\x1b'))


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
    # What that release knew of.
    assert {event.event for event in events} == EVENTS.keys() - {
        'checkpoint_failed',
        'fault_explained',
        'hang',
        'held_step',
        'live_change',
        'iteration_profile',
        'low_headroom',
        'memory_alarm',
        'out_of_memory',
    }
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
