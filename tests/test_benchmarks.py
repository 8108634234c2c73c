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
    read_rows,
    run_one,
    survival_table,
)
from bench_plots import draw_limits, draw_survival  # noqa: E402
from check_corpus import check_all, rows_of  # noqa: E402
from demo_story import tell_story  # noqa: E402
from forensics import score  # noqa: E402
from guard_rates import (  # noqa: E402
    held,
    measure_healthy,
    measure_series,
    measure_sick,
)
from interleaved import Contender, race  # noqa: E402
from memory_presets import MODELS, PLAIN, Trainer  # noqa: E402
from protocols import Protocol  # noqa: E402
from results import Row, format_table, write_json  # noqa: E402
from survival import (  # noqa: E402
    choose_contenders,
    format_row,
    survives,
)
from survival_runs import Result, run_case  # noqa: E402

from mmstable.events import Culprit  # noqa: E402
from mmstable.events.records import FaultExplained, Verdict  # noqa: E402
from mmstable.memory import estimate  # noqa: E402
from mmstable.memory.estimate import PRESETS  # noqa: E402
from tests.forensics.planted_cases import CASES  # noqa: E402

EVERY_200 = 'a run with a sample every 200 / none'


def test_race_runs_everyone_once_a_round_after_its_preparation():
    calls: list[str] = []
    contenders = [
        Contender(
            name,
            lambda name=name: calls.append(f'run {name}'),
            lambda name=name: calls.append(f'prepare {name}'),
        )
        for name in 'ab'
    ]

    result = race(contenders, rounds=3, warmup=1)

    assert {name: len(s) for name, s in result.seconds.items()} == {
        'a': 3,
        'b': 3,
        'a (again)': 3,
    }
    assert calls.count('run a') == 8
    assert [c.replace('run', 'prepare') for c in calls[1::2]] == calls[::2]


@pytest.mark.parametrize(
    ('value', 'limit', 'verdict'),
    [(0.7, 0.75, 'yes'), (0.8, 0.75, 'NO'), (0.8, None, '')],
)
def test_table_shows_whether_a_limit_holds(value, limit, verdict):
    header, line = format_table([Row('case', 'what', value, limit)]).split(
        '\n'
    )
    place = header.index('holds')
    assert line[place : place + 5].strip() == verdict


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


def test_guard_rates_count_questions_and_lost_runs():
    assert held([1.0] * 99 + [1e3, 1e3]) == 1
    row = measure_series('lognormal 0.5', 4000, seeds=2)
    assert (row.value, row.limit) == (0, 1.0)
    short = Protocol(iterations=10)
    differs, false = measure_healthy('short', short)
    assert (differs.value, false.value) == (0, 0)
    (lost,) = measure_sick('short', short)
    assert lost.value == 0


def test_forensics_count_what_is_wrong_and_what_is_missing():
    case = next(case for case in CASES if case.name == 'log(0)')
    event = FaultExplained.now(
        2,
        fault='nan_loss',
        verdict=Verdict.DOMAIN_ERROR,
        text='',
        op=case.op,
        module=case.module,
        lines=(f'a.py:1: {case.code}',),
        loss_terms=case.terms,
        samples=(1, 2),
    )

    def values(*pairs):
        rows = score(pairs)
        return {(row.case, row.what): row.value for row in rows}

    found = values((case, [event]))
    assert found.pop(('sample', 'precision')) == 0.5
    assert set(found.values()) == {1.0}
    assert values((case, []))['operation', 'recall'] == 0
    # Something is said of a run without any cause.
    assert values((None, [event]))['line', 'precision'] == 0


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


def test_check_corpus_counts_rules_and_what_cannot_be_read(tmp_path):
    good, bad = tmp_path / 'good_8xb2.py', tmp_path / 'bad.py'
    good.write_text('activation_checkpointing = ["backbone"]\n')
    bad.write_text('a = 1 / 0\n')

    outcome = check_all([(good, 8), (bad, 1)])

    assert outcome.checked == 1
    assert outcome.unreadable == {'ZeroDivisionError': 1}
    assert outcome.failures == []
    rows = {row.what: row.value for row in rows_of(outcome)}
    assert rows['activation_checkpointing, error'] == 100
    assert rows['int_scale, error'] == 0


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


def test_bench_puts_all_figures_into_one_table(tmp_path):
    kept = Row('case', 'ratio', 0.5, 1.0)
    empty = Row('case', 'nothing', 0)
    write_json(tmp_path / 'step_overhead.json', [kept, empty], {})
    (row,) = read_rows(tmp_path, ['step_overhead', 'save_cost'])
    assert (row.case, row.what) == ('step_overhead: case', 'ratio')
    draw_limits([row], tmp_path / 'limits.svg')
    assert (tmp_path / 'limits.svg').stat().st_size > 1000


def test_bench_counts_survivors_for_each_trainer(tmp_path):
    rows = [
        dict(fault=fault, contender=name, survives=name == 'b')
        for fault in ('NaN loss', 'SIGKILL')
        for name in 'ab'
    ]
    lines = survival_table(rows).splitlines()
    assert [line.split() for line in lines] == [
        ['survives', 'a', 'b'],
        ['NaN', 'loss', 'NO', 'yes'],
        ['SIGKILL', 'NO', 'yes'],
        ['in', 'all', '0', 'of', '2', '2', 'of', '2'],
    ]
    draw_survival(rows, tmp_path / 'survival.svg')
    assert (tmp_path / 'survival.svg').stat().st_size > 1000
    assert survival_table([]) == 'survival: no figures'


@pytest.mark.soak
@pytest.mark.parametrize('name', [*BENCHMARKS, *PRINTED])
def test_every_benchmark_runs(name, tmp_path):
    assert run_one(name, tmp_path, quick=True) == ''


def test_bench_tells_why_a_benchmark_failed(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, 'no_such', ())
    why = run_one('no_such', tmp_path, quick=True)
    assert why.startswith('exit code 2')


def test_trainers_that_are_not_installed_are_left_out_with_a_reason(
    monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, 'accelerate', None)
    names, versions = choose_contenders(['stock fp32', 'accelerate'])
    assert names == ['stock fp32']
    assert 'accelerate' not in versions
    assert 'accelerate: left out, ModuleNotFound' in capsys.readouterr().out
