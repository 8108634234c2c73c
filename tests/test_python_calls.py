"""What an iteration and a start cost, in calls of Python functions.

Times depend on the machine and its load; counts do not.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.loops.runs import iter_loop
from tests.start_calls import write_toy
from tests.toys import toy_runner

ROOT = Path(__file__).resolve().parents[1]

FIRST, LAST = 20, 40
# As in configs/_base_: clipped, with a schedule, logged now and then.
WRAPPER = dict(
    optimizer=dict(type='AdamW', lr=1e-4, fused=True),
    clip_grad=dict(max_norm=35, norm_type=2),
)
SCHEDULE = [dict(type='LinearLR', start_factor=1e-3, by_epoch=False, end=1500)]
LOGGER = dict(type='LoggerHook', interval=50, log_metric_by_epoch=False)
STOCK = dict(
    optim_wrapper=dict(type='OptimWrapper', **WRAPPER),
    train_cfg=dict(by_epoch=False, max_iters=LAST + 1, val_interval=10**6),
    default_hooks=dict(
        logger=LOGGER,
        checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1000),
    ),
)
ALONE = dict(
    STOCK, optim_wrapper=dict(type='mmstable.SafeOptimWrapper', **WRAPPER)
)
EVERYTHING = dict(
    ALONE,
    train_cfg=iter_loop(LAST + 1),
    # All of configs/_base_/default_runtime.py and schedules/.
    hooks=[
        dict(type='mmstable.GradNanLoggerHook'),
        dict(type='mmstable.EventLogHook'),
        dict(type='mmstable.FaultForensicsHook'),
        dict(type='mmstable.HeadroomHook'),
        dict(type='mmstable.MemoryGuardHook'),
        dict(type='mmstable.EmergencyCheckpointHook'),
        dict(type='mmstable.RankFailureHook'),
        dict(type='mmstable.HangWatchdogHook'),
        dict(type='mmstable.IterProfileHook'),
        dict(type='mmstable.ReplicaCheckHook'),
    ],
    # As `mmstable train` has it.
    visualizer=dict(
        type='Visualizer',
        vis_backends=[
            dict(
                type='mmstable.QueuedVisBackend',
                backend=dict(type='LocalVisBackend'),
            )
        ],
    ),
    default_hooks=dict(
        logger=LOGGER,
        param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
        checkpoint=dict(
            type='mmstable.SafeCheckpointHook', by_epoch=False, interval=1000
        ),
        guard=dict(type='mmstable.DivergenceGuardHook'),
    ),
)


def with_average(settings: dict[str, Any], kind: str) -> dict[str, Any]:
    return {**settings, 'hooks': [*settings.get('hooks', ()), dict(type=kind)]}


def calls(work_dir, settings: dict[str, Any]) -> Counter:
    """Calls by function, of the iterations in the middle of a run."""
    counts: Counter = Counter()
    runner = toy_runner(
        work_dir, param_scheduler=SCHEDULE, **copy.deepcopy(settings)
    )
    call_hook = runner.call_hook

    def count(frame, event, argument):
        if event == 'call':
            code = frame.f_code
            counts[f'{code.co_filename}:{code.co_name}'] += 1

    def watched(fn_name, **kwargs):
        if fn_name == 'before_train_iter' and runner.iter == FIRST:
            counts.clear()
            sys.setprofile(count)
        if fn_name == 'before_train_iter' and runner.iter == LAST:
            sys.setprofile(None)
        call_hook(fn_name, **kwargs)

    runner.call_hook = watched
    before = sys.getprofile()
    try:
        runner.train()
    finally:
        sys.setprofile(before)
    return counts


@pytest.mark.parametrize(
    ('ours', 'stock', 'limit'),
    [
        (ALONE, STOCK, 0.95),
        (EVERYTHING, STOCK, 1.06),
        (
            with_average(EVERYTHING, 'mmstable.SafeEMAHook'),
            with_average(STOCK, 'EMAHook'),
            1.06,
        ),
    ],
    ids=['wrapper', 'everything', 'everything_and_average'],
)
def test_python_calls_of_a_healthy_iteration(tmp_path, ours, stock, limit):
    mine = calls(tmp_path / 'ours', ours)
    theirs = calls(tmp_path / 'stock', stock)
    ratio = sum(mine.values()) / sum(theirs.values())
    if TorchVersion(torch.__version__) < '2.6':
        # Its own clipping takes fewer calls.
        limit *= 1.06
    assert ratio <= limit, '\n'.join(
        f'{count / (LAST - FIRST):6.1f} {name}'
        for name, count in (mine - theirs).most_common(40)
    )


def test_a_run_that_can_be_looked_into_pays_three_calls(tmp_path):
    hook = dict(type='mmstable.LiveProbeHook', use_probing=False)
    probed = {**EVERYTHING, 'hooks': [*EVERYTHING['hooks'], hook]}
    more = calls(tmp_path / 'more', probed) - calls(tmp_path, EVERYTHING)
    found = {
        key.rpartition('/')[2]: count / (LAST - FIRST)
        for key, count in more.items()
        if 'mmstable' in key and 'thread' not in key
    }
    assert found == {
        'live_probe_hook.py:before_train_iter': 1,
        'live_probe_hook.py:after_step': 1,
        'live_probe_hook.py:after_train_iter': 1,
    }


def test_a_step_is_read_told_and_counted_once(tmp_path):
    counts = calls(tmp_path, EVERYTHING)

    def often(name: str) -> float:
        total = sum(n for key, n in counts.items() if key.endswith(name))
        return total / (LAST - FIRST)

    # Into the queue, and into the tally.
    assert often('mmstable/events/monitor.py:add') == 2
    assert often('mmstable/events/monitor.py:_publish') == 1
    assert often('mmstable/optim/grad_health.py:gradient_norms') == 1
    assert often('optim/wrapper.py:last_step') == 0
    assert often('dataclasses.py:replace') == 0


def test_iterations_that_are_not_measured_do_next_to_nothing(tmp_path):
    counts = calls(tmp_path, EVERYTHING)
    own = {
        name.rpartition('/')[2]: count / (LAST - FIRST)
        for name, count in counts.items()
        if 'iter_profile_hook.py' in name or 'mmstable/liveness' in name
    }
    assert own == {'iter_profile_hook.py:after_train_iter': 1}


# After the command, before the first batch.
MOST_CALLS_AT_START = 3000


def test_python_calls_of_a_start(tmp_path):
    config = write_toy(tmp_path)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    subprocess.run(
        [sys.executable, '-m', 'tests.start_calls', str(config), 'run'],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': paths},
        check=True,
        capture_output=True,
    )
    calls = Counter(json.loads((tmp_path / 'run/calls.json').read_text()))
    # One of the last that come before the first batch.
    assert calls['hooks/divergence_guard_hook.py:before_train'] == 1
    assert sum(calls.values()) <= MOST_CALLS_AT_START, '\n'.join(
        f'{count} {name}' for name, count in calls.most_common(40)
    )
