"""Which phase of training is this, judged by the calls of its thread?

The calls are read now and then, from another thread: a healthy run has
nothing to record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from mmstable.liveness.calls import Call

# Parts of every iteration.
BUSY = ('data', 'forward', 'backward', 'step')
# What happens now and then, and may take long.
RARE = ('hook', 'validation', 'checkpoint', 'resume', 'compile', 'other')
# A user works with it: no time is too long.
DEBUGGER = 'debugger'
# Training is over.
ENDED = 'ended'

_RUNNERS = ('mmengine/runner/runner.py', 'mmengine/runner/_flexible_runner.py')
_LOOPS = ('mmengine/runner/loops.py',)
_RUNS = (*_LOOPS, 'mmstable/loops/safe_loop.py')
# Names of calls that are no phase, but show that a run is under way.
_LOOP, _RUNNER = 'loop', 'runner'
_OWN_LOOPS = (
    'mmstable/loops/safe_iter_based_train_loop.py',
    'mmstable/loops/safe_epoch_based_train_loop.py',
)
_SAVES = ('save_checkpoint', 'save_emergency', 'save_alone')
_DEBUGGERS = ('/bdb.py', '/pdb.py', '/pydevd.py', '/debugpy/', '/pydevd/')
# Functions by their files; '' stands for all functions of a file.
_RULES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    'resume': [
        ('load_or_resume', _RUNNERS),
        ('reread', ('mmstable/loops/reread_batches.py',)),
    ],
    'validation': [
        ('val', _RUNNERS),
        ('test', _RUNNERS),
        ('_validate', ('mmstable/loops/safe_loop.py',)),
    ],
    'hook': [('call_hook', _RUNNERS)],
    'data': [
        ('', ('torch/utils/data/dataloader.py',)),
        ('__next__', ('mmstable/loops/endless_batches.py',)),
        ('run_epoch', (*_LOOPS, *_OWN_LOOPS)),
    ],
    'forward': [
        ('run_iter', (*_LOOPS, *_OWN_LOOPS)),
        ('run', ('mmstable/loops/train_step.py',)),
    ],
    'compile': [('', ('torch/_dynamo/convert_frame.py',))],
}
_BACKWARD = ('torch/', 'mmengine/optim/', 'mmstable/optim/')
_STEP = ('torch/optim/', 'mmengine/optim/', 'mmstable/optim/')
# Whatever they are inside of, these are what counts, in this order.
_FIRST = (DEBUGGER, 'compile', 'resume', 'checkpoint', 'hook', 'validation')


class Phase(NamedTuple):
    """What a run is doing.

    Args:
        name (str): One of :data:`BUSY` or :data:`RARE`, or
            :data:`DEBUGGER` or :data:`ENDED`.
        part (str): The hook of the phase 'hook'; of 'validation' what would
            be the phase of training. Defaults to ''.
    """

    name: str
    part: str = ''

    def __str__(self) -> str:
        return f'{self.name}: {self.part}' if self.part else self.name


def find_phase(calls: Sequence[Call]) -> Phase:
    """The phase of a run by the calls of its thread.

    Args:
        calls (Sequence[Call]): The outermost first.
    """
    named = [
        (name, call)
        for call in calls
        for name in _names(call.file, call.function)
    ]
    names = [name for name, _ in named]
    if _RUNNER not in names and _LOOP not in names:
        return Phase(ENDED)
    if names.count(_LOOP) > 1:
        # One inside of another, which trains.
        names.append('validation')
    inner = next((name for name in reversed(names) if name in BUSY), '')
    first = next((name for name in _FIRST if name in names), '')
    if first == 'hook':
        hooks = [call.hook for name, call in named if name == 'hook']
        return Phase(first, hooks[-1])
    if first:
        return Phase(first, inner if first == 'validation' else '')
    return Phase(inner or 'other')


# The same few functions are seen again and again.
@lru_cache(maxsize=4096)
def _names(path: str, function: str) -> tuple[str, ...]:
    """What a function of a file stands for."""
    file = path.replace(os.sep, '/')
    found = [
        phase
        for phase, rules in _RULES.items()
        for name, files in rules
        if name in ('', function) and file.endswith(files)
    ]
    if function == 'run' and file.endswith(_RUNS):
        found.append(_LOOP)
    if file.endswith(_RUNNERS):
        found.append(_RUNNER)
    if function == 'backward' and any(one in file for one in _BACKWARD):
        found.append('backward')
    if function == 'step' and any(one in file for one in _STEP):
        found.append('step')
    if function in _SAVES and ('mmengine' in file or 'mmstable' in file):
        found.append('checkpoint')
    if any(one in file for one in _DEBUGGERS):
        found.append(DEBUGGER)
    return tuple(found)
