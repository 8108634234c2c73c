"""What calls tell about the phase of a run, and how long that may take."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from mmstable.hang.watchdog import (
    DEBUGGER,
    ENDED,
    Call,
    Phase,
    PhaseLimits,
    blamed_line,
    calls_of,
    find_phase,
    read_dump,
)

SITE = '/venv/lib/python3.11/site-packages'
TRAIN = Call(f'{SITE}/mmengine/runner/runner.py', 1, 'train')
HOOK = Call(f'{SITE}/mmengine/runner/runner.py', 1, 'call_hook', 'MyHook')
STOCK = Call(f'{SITE}/mmengine/runner/loops.py', 1, 'run')
LOOP = Call(f'{SITE}/mmstable/loops/train.py', 1, 'run')
VALIDATE = Call(f'{SITE}/mmstable/loops/train.py', 1, '_validate')
STEP = Call(f'{SITE}/mmstable/loops/train_step.py', 1, 'run')
LOADER = Call(f'{SITE}/torch/utils/data/dataloader.py', 1, '__next__')
MINE = Call('/home/me/project/data.py', 88, '__getitem__')


def of(path: str, function: str) -> Call:
    return Call(f'{SITE}/{path}', 1, function)


@pytest.mark.parametrize(
    ('calls', 'phase'),
    [
        ([], Phase(ENDED)),
        ([MINE], Phase(ENDED)),
        ([TRAIN], Phase('other')),
        ([TRAIN, of('mmengine/runner/runner.py', 'load_or_resume')], 'resume'),
        ([TRAIN, LOOP, LOADER, MINE], 'data'),
        ([TRAIN, STOCK, LOADER, MINE], 'data'),
        ([TRAIN, LOOP, STEP, MINE], 'forward'),
        ([TRAIN, LOOP, STEP, of('torch/_tensor.py', 'backward')], 'backward'),
        ([TRAIN, LOOP, STEP, of('torch/optim/adamw.py', 'step')], 'step'),
        ([TRAIN, LOOP, HOOK, MINE], Phase('hook', 'MyHook')),
        (
            [
                TRAIN,
                LOOP,
                HOOK,
                of('mmengine/runner/runner.py', 'save_checkpoint'),
            ],
            'checkpoint',
        ),
        ([TRAIN, LOOP, VALIDATE, STOCK, LOADER], Phase('validation', 'data')),
        ([TRAIN, STOCK, STOCK, MINE], 'validation'),
        (
            [TRAIN, LOOP, STEP, of('torch/_dynamo/convert_frame.py', 'x')],
            'compile',
        ),
        ([TRAIN, LOOP, HOOK, MINE, Call('/lib/bdb.py', 1, 'f')], DEBUGGER),
        (
            [
                TRAIN,
                LOOP,
                of('mmstable/state/data_position.py', 'reread'),
                LOADER,
            ],
            'resume',
        ),
    ],
)
def test_phases(calls, phase):
    expected = Phase(phase) if isinstance(phase, str) else phase
    assert find_phase(calls) == expected


def test_the_words_of_a_phase():
    assert str(Phase('data')) == 'data'
    assert str(Phase('hook', 'MyHook')) == 'hook: MyHook'


def test_the_line_to_blame_is_of_the_user():
    inner = Call(torch.__file__, 3, 'f')
    calls = [TRAIN, LOOP, LOADER, MINE, inner]
    assert blamed_line(calls) == str(MINE)
    assert blamed_line([inner]) == ''


def test_frames_are_read_from_the_outside():
    calls = calls_of(sys._getframe())
    assert calls[-1].function == 'test_frames_are_read_from_the_outside'
    assert calls[-1].file == __file__
    assert calls_of(None) == []


DUMP = """Thread MainThread (most recent call first):
  File "/home/me/data.py", line 88 in __getitem__
  File "/site/mmengine/runner/runner.py", line 7 in train
{}Thread pin (most recent call first):
  File "/lib/threading.py", line 5 in wait
"""


@pytest.mark.parametrize('between', ['', '\n', 'Process 4711\n'])
def test_a_dump_is_read_as_frames_are(between):
    assert read_dump(DUMP.format(between)) == [
        Call('/site/mmengine/runner/runner.py', 7, 'train'),
        Call('/home/me/data.py', 88, '__getitem__'),
    ]
    assert read_dump('') == []


def limits(**by_hand):
    return PhaseLimits(by_hand, least=10, least_rare=100, factor=5)


def test_limits_have_a_least():
    known = limits()
    assert known.of(Phase('data'), is_first=False) == 10
    assert known.of(Phase('data'), is_first=True) == 100
    assert known.of(Phase('validation'), is_first=False) == 100
    assert known.of(Phase(DEBUGGER), is_first=False) == math.inf
    assert known.shortest == 10


def test_limits_are_learned_from_what_came_twice():
    known, data = limits(), Phase('data')
    known.learn(data, 60, is_first=True)
    known.learn(data, 50, is_first=False)
    assert known.of(data, is_first=False) == 10
    known.learn(data, 4, is_first=False)
    assert known.of(data, is_first=False) == 20
    known.learn(data, 7, is_first=False)
    assert known.of(data, is_first=False) == 35
    assert known.of(Phase('forward'), is_first=False) == 10
    hook = Phase('hook', 'Slow')
    for _ in range(2):
        known.learn(hook, 90, is_first=True)
    assert known.of(hook, is_first=True) == 450
    assert known.of(Phase('hook', 'Other'), is_first=True) == 100


def test_what_is_slow_in_all_first_iterations_may_stay_so():
    known, forward = limits(), Phase('forward')
    for seconds in (500, 40):
        known.learn(forward, seconds, is_first=True)
    assert known.of(forward, is_first=False) == 10
    known.learn(forward, 30, is_first=True)
    assert known.of(forward, is_first=False) == 150


def test_limits_by_hand_are_not_learned():
    known = limits(data=3, validation=40, MyHook=7)
    for _ in range(2):
        known.learn(Phase('data'), 60, is_first=False)
    assert known.of(Phase('data'), is_first=True) == 3
    assert known.of(Phase('validation', 'data'), is_first=False) == 40
    assert known.of(Phase('hook', 'MyHook'), is_first=False) == 7
    assert known.of(Phase('hook', 'Other'), is_first=False) == 100
    assert known.shortest == 3
