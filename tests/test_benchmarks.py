"""The benchmarks run and say what they should; how fast is not asked."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / 'benchmarks'))

import demo  # noqa: E402
from bench import (  # noqa: E402
    BENCHMARKS,
    PRINTED,
    run_one,
)
from demo_story import tell_story  # noqa: E402
from memory_presets import MODELS, PLAIN, Trainer  # noqa: E402
from survival import (  # noqa: E402
    format_row,
    survives,
)
from survival_runs import Result, run_case  # noqa: E402

from mmstable.events import Culprit  # noqa: E402
from mmstable.memory import estimate  # noqa: E402
from mmstable.memory.estimate import PRESETS  # noqa: E402

EVERY_200 = 'a run with a sample every 200 / none'


@pytest.mark.skipif(
    not estimate.can_measure(), reason='this torch has no MemTracker'
)
@pytest.mark.parametrize(
    'name', ['CNN', pytest.param('transformer', marks=pytest.mark.soak)]
)
def test_memory_presets_save_what_they_promise(name):
    peaks = {
        preset.name: Trainer(MODELS[name], preset, 224, is_fake=True).peak()
        for preset in (PLAIN, *PRESETS)
    }
    half = PLAIN._replace(dtype='bfloat16')
    peaks['half'] = Trainer(MODELS[name], half, 224, is_fake=True).peak()
    assert peaks['balanced'] < 0.9 * peaks['half'] < 0.9 * peaks[PLAIN.name]
    assert peaks['max_saving'] < peaks['balanced']


@pytest.mark.parametrize(
    ('change', 'verdict'),
    [
        ({}, True),
        ({'finished': False}, False),
        ({'finite': False}, False),
        ({'miou': 10.0}, False),
    ],
)
def test_what_counts_as_survival(change, verdict):
    good = Result(finished=True, finite=True, miou=20.0, starts=1, told='x')
    result = replace(good, **change)
    assert survives(result, good) is verdict
    row = {'fault': 'f', 'contender': 'c', 'survives': verdict}
    line = format_row({**row, **asdict(result)})
    assert ('NO' in line) is not verdict


@pytest.mark.parametrize(
    ('contender', 'finite', 'told'),
    [
        pytest.param(
            'stock fp32',
            False,
            'loss: nan in 1 log lines',
            marks=pytest.mark.soak,
        ),
        ('mmstable fp32', True, 'nan_grad (head.bias)'),
    ],
)
def test_a_run_that_is_broken_on_purpose(tmp_path, contender, finite, told):
    fault = dict(kind='nan_grad', param='head.bias', at=4)
    result = run_case(tmp_path / 'run', contender, 10, [fault])
    assert result.finished
    assert (result.finite, result.told) == (finite, told)
    assert result.starts == 1


def test_the_demo_tells_each_fault_with_what_was_done_about_it():
    def event(kind, time, iteration=0, **fields):
        facts = dict(event=kind, time=time, iteration=iteration, **fields)
        return SimpleNamespace(**facts)

    skip = dict(fault=SimpleNamespace(value='overflow'), loss_terms=())
    story = tell_story(
        [
            event('run_start', 0.0, restarts=0),
            event('injected_fault', 10.0, 5),
            # A bad step is recorded with the time at which it began.
            event(
                'step_fault', 9.9, 5, culprits=[Culprit('w', 'Inf')], **skip
            ),
            event('injected_fault', 20.0, 8),
            event('run_start', 30.0, 4, restarts=1),
            event('injected_fault', 40.0, 5),
            event(
                'step_fault', 40.1, 5, culprits=[Culprit('w', 'Inf')], **skip
            ),
        ]
    )
    assert story == {
        5: 'step skipped: overflow w',
        8: 'restarted from 4',
    }


def test_the_demo_removes_nothing_that_is_not_its_own(tmp_path, monkeypatch):
    mine = tmp_path / 'mine.txt'
    old = tmp_path / 'mmstable' / 'old.txt'
    old.parent.mkdir()
    for path in (mine, old):
        path.write_text('')

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, 'start_protected', stop)
    with pytest.raises(KeyboardInterrupt):
        demo.main(['--work-dir', str(tmp_path)])
    assert mine.exists()
    assert not old.exists()


def test_bench_knows_every_benchmark():
    names = {
        path.stem
        for path in (REPO / 'benchmarks').glob('*.py')
        if '__main__' in path.read_text(encoding='utf-8')
    }
    assert names - {'bench', 'demo'} == {*BENCHMARKS, *PRINTED}


@pytest.mark.soak
@pytest.mark.parametrize('name', [*BENCHMARKS, *PRINTED])
def test_every_benchmark_runs(name, tmp_path):
    assert run_one(name, tmp_path, quick=True) == ''
