"""Records as strict JSON, and back."""

import json
import math
from dataclasses import replace

import pytest
import torch

from mmstable import Culprit
from mmstable.events import Origin
from mmstable.events.codec import decode, encode
from mmstable.events.records import EVENTS, HeldStep, HeldVerdict
from mmstable.report import (
    CheckpointFailed,
    FaultExplained,
    GuardIntervention,
    Hang,
    Heartbeat,
    InjectedFault,
    IterationProfile,
    LiveChange,
    LowHeadroom,
    MemoryAlarm,
    OutOfMemory,
    Poisoned,
    ReplicasDiverged,
    RunEnd,
    ScaleChange,
    StepFault,
    UnknownEvent,
    WrapperSample,
    WrapperTotals,
)

NAN, INF = float('nan'), float('inf')

RECORDS = [
    StepFault(
        iteration=3,
        time=2.0,
        wrapper='optim_wrapper',
        rank=1,
        outcome='skipped',
        fault='overflow',
        loss_scale=1024.0,
        next_loss_scale=512.0,
        culprits=(Culprit('层.weight', 'NaN'), Culprit('b', 'Inf')),
        dropped_micro_batches=0,
        losses={'loss': INF, 'loss_aux': -INF},
        origins=(Origin(1, 'node', 'cpu', 'loss'),),
        copied_from=0,
    ),
    ScaleChange(3, 2.0, 'optim_wrapper', 1024.0, 512.0),
    Heartbeat(
        iteration=50,
        time=3.0,
        losses={'loss': 0.25},
        wrappers={
            'gen': WrapperSample(0.1, None, 512.0, 0.5, {'neck': 2.0}),
            'disc': WrapperSample(None, INF, None),
        },
        iteration_time=0.01,
        host_memory=2**40,
        device_memory=None,
        device_memory_peak=None,
    ),
    RunEnd(
        iteration=100,
        time=4.0,
        reason='finished',
        wrappers={'gen': WrapperTotals(98, 2, {'overflow': 2}, 0)},
        lost_events=1,
    ),
    LowHeadroom(
        iteration=4,
        time=2.5,
        problem='overflow',
        module='head.conv',
        kind='output',
        dtype='float16',
        share=0.71,
        doubling=900.0,
        left=445.0,
        loss_scale=1024.0,
    ),
    MemoryAlarm(
        iteration=4,
        time=2.5,
        resource='host',
        holder='workers',
        used=60,
        limit=64,
        left=4,
        source='cgroup',
        action='save',
        growth=0.5,
        iterations_left=8.0,
    ),
    OutOfMemory(
        iteration=4,
        time=2.5,
        phase='backward',
        rung='chunk/4',
        rank=1,
        gradients='rounding',
        reason='',
        shapes=('inputs (4, 3, 8, 8) float32',),
        samples=('img_path=a.png',),
        device='cuda:1',
        requested=2**31,
        report='a.txt',
    ),
    Hang(
        iteration=4,
        time=2.5,
        rank=1,
        phase='hook',
        part='MyHook',
        seconds=312.0,
        limit=300.0,
        line='dataset.py:88: file.read()',
        behind=None,
        action='wait',
        text='training hangs: 卡住',
        file='stability/stacks.rank1.txt',
    ),
    IterationProfile(
        iteration=60,
        time=2.5,
        iterations=10,
        seconds=0.2,
        causes=('data',),
        text='62 % 等待数据',
        phases={'data': 0.12, 'forward': 0.08},
        hooks={'MyHook': 0.01},
        modules={'backbone.layer3': 0.05},
        workers=2,
        loading='busy',
        straggler=1,
        behind=0.1,
    ),
    InjectedFault(4, 2.5, 1, 'nan_grad', 'a.weight', 'NaN'),
    LiveChange(4, 2.5, 'lr', 1, 'optim_wrapper', 0.1, 0.01, '层'),
    Poisoned(4, 2.5, (Culprit('state_dict/a', 'NaN'),)),
    CheckpointFailed(5, 2.5, 'iter_5.pth', 'no space'),
    ReplicasDiverged(5, 2.5, 'a.weight', 2, (1, 3), 'warn'),
    HeldStep(
        8,
        1.5,
        verdict=HeldVerdict.REPRODUCIBLE,
        quantity='grad_norm',
        value=812.0,
        peak=3.1,
        again=812.0,
        samples=('img_path=a.png',),
    ),
    GuardIntervention(
        iteration=7,
        time=3.0,
        action='rollback',
        fault='poisoned',
        reason='不是有限值',
        since=6,
        subject='',
        culprits=(Culprit('state_dict.a', 'NaN'),),
        restored=4,
        source='memory',
        lr_factor=0.5,
    ),
    FaultExplained(
        iteration=7,
        time=3.0,
        fault='nan_loss',
        verdict='bad_input',
        text='样本异常',
        samples=(2,),
        sample_names=('img_path=a.png',),
        only_together=True,
        largest=1e5,
    ),
]


def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')


@pytest.mark.parametrize('record', RECORDS, ids=lambda record: record.event)
def test_a_record_comes_back_as_it_was(record):
    line = encode(record)
    assert line.count(b'\n') == 1
    assert line.endswith(b'\n')
    content = json.loads(line, parse_constant=refuse)
    assert content['event'] == record.event
    assert decode(line) == record
    assert decode(line).time == record.time


def test_a_header_comes_back_as_it_was(header):
    line = encode(header)
    content = json.loads(line, parse_constant=refuse)
    clip = content['wrappers']['optim_wrapper']['clip_grad']
    assert clip == {'max_norm': 35, 'norm_type': 'Infinity'}
    assert decode(line) == header


def test_every_record_is_tried_here(header):
    tried = {record.event for record in [header, *RECORDS]}
    assert tried == EVENTS.keys()


def test_nan_is_a_float_again():
    record = replace(RECORDS[0], losses={'loss': NAN})
    line = encode(record)
    assert json.loads(line, parse_constant=refuse)['losses'] == {'loss': 'NaN'}
    assert math.isnan(decode(line).losses['loss'])


def test_settings_may_hold_anything(header):
    odd = {('a', 1): torch.float16, 'nested': [{1: object}]}
    line = encode(replace(header, custom_hooks=(odd,)))
    (read,) = decode(line).custom_hooks
    assert read["('a', 1)"] == 'torch.float16'
    assert read['nested'] == [{'1': "<class 'object'>"}]


def test_an_unknown_event_is_kept_whole():
    line = b'{"event":"rollback","iteration":9,"time":1.0,"to":4}'
    record = decode(line)
    assert isinstance(record, UnknownEvent)
    assert (record.name, record.iteration, record.time) == ('rollback', 9, 1.0)
    assert record.data['to'] == 4


def test_a_field_from_the_future_is_left_out():
    content = json.loads(encode(RECORDS[1]))
    line = json.dumps({**content, 'why': 'growth'}).encode()
    assert decode(line) == RECORDS[1]


def test_a_record_that_a_newer_schema_changed_is_unknown():
    line = b'{"event":"scale_change","iteration":9,"time":1.0,"scales":[2]}'
    assert isinstance(decode(line, schema=2), UnknownEvent)
    with pytest.raises(ValueError, match='`wrapper` is missing'):
        decode(line, schema=1)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'iteration': '3'}, "`iteration`: must be an integer, got '3'"),
        ({'iteration': True}, '`iteration`: must be an integer, got True'),
        ({'time': 'soon'}, "`time`: must be a number, got 'soon'"),
        ({'fault': 1}, '`fault`: must be one of .*, got 1'),
        ({'losses': [1]}, r'`losses`: must be an object, got \[1\]'),
        ({'culprits': {}}, '`culprits`: must be an array, got {}'),
        ({'culprits': ['a']}, "`culprits`: must be an object, got 'a'"),
        ({'culprits': [{'name': 'a'}]}, '`culprits`: `kind` is missing'),
    ],
)
def test_a_wrong_value_is_named(changes, message):
    content = json.loads(encode(RECORDS[0]))
    with pytest.raises(ValueError, match=message):
        decode(json.dumps({**content, **changes}).encode())


@pytest.mark.parametrize('line', [b'[]', b'3', b'{"iteration":1}'])
def test_json_that_is_no_record(line):
    with pytest.raises(ValueError, match='must be an object with an `event`'):
        decode(line)


def test_an_event_that_is_no_name():
    with pytest.raises(ValueError, match=r'must be a string, got \[\]'):
        decode(b'{"event":[],"iteration":1,"time":1.0}')
