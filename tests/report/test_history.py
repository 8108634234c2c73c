"""Event files in whatever state become a history, or a clear message."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from mmstable.errors import UsageError
from mmstable.events.log import EventFileError
from mmstable.report.history import read_history
from mmstable.report.page import (
    draw_charts,
    figures_of,
    notes_of,
    page_data,
    write_page,
)
from tests.report.event_files import (
    HEADER,
    HOSTILE,
    end,
    explained,
    fault,
    header,
    heartbeat,
    hostile_records,
    scale,
    write_run,
    write_scalars,
)

RUN = '20260101_120000'


@pytest.mark.parametrize('level', [0, 1, 2, 3])
def test_any_folder_down_to_the_file_will_do(tmp_path, level):
    path = write_run(tmp_path, end(10))
    named = [tmp_path, *reversed(path.parents[:2]), path][level]
    assert read_history(named).iterations == 10


def test_no_folder_and_no_events(tmp_path):
    with pytest.raises(UsageError, match="no folder or file '.*nothing'"):
        read_history(tmp_path / 'nothing')
    with pytest.raises(UsageError, match='has no event file of mmstable'):
        read_history(tmp_path)


def test_starts_are_in_the_order_of_time(tmp_path):
    write_run(tmp_path, end(50), name='b', start=header(time=1.0))
    later = header(time=2000.0, iteration=50, restarts=1)
    write_run(tmp_path, end(90), name='a', start=later)
    read = read_history(tmp_path)
    assert [one.header.time for one in read.starts] == [1.0, 2000.0]
    entries = page_data([read])['works'][0]['story']['entries']
    runs = [(e['kind'], e['it']) for e in entries if e['lane'] == 'runs']
    assert sorted(runs) == [
        ('end', 50),
        ('end', 90),
        ('restart', 50),
        ('start', 0),
    ]


def test_an_earlier_training_in_the_folder_is_not_blamed(tmp_path):
    write_run(tmp_path, fault(5), fault(9), end(500), name='a')
    again = header(time=5000.0)
    write_run(tmp_path, end(100), name='b', start=again)
    read = read_history(tmp_path)
    assert figures_of(read)[:5] == ('finished', 100, 1000, 100, 0)
    assert figures_of(read).wasted == 0
    work = page_data([read])['works'][0]
    assert len(work['starts']) == 2
    assert 'step_fault' in [one['kind'] for one in work['story']['entries']]


def test_the_cause_belongs_to_the_step_before_it(tmp_path):
    write_run(tmp_path, fault(5, 'nan_loss'), explained(5, 'exploding'))
    later = header(iteration=2, time=3000.0)
    again = {**fault(5, 'nan_loss'), 'time': 3005.0}
    write_run(tmp_path, again, end(9), name='b', start=later)
    entries = page_data([read_history(tmp_path)])['works'][0]['story']
    steps = [e for e in entries['entries'] if e['kind'] == 'step_fault']
    assert ['cause' in one for one in steps] == [True, False]


def test_a_torn_file_says_what_it_has(tmp_path):
    write_run(tmp_path, heartbeat(50), tail='{"event":"heartb')
    read = read_history(tmp_path)
    assert read.iterations == 50
    assert 'the last line is cut off' in notes_of(read)[0]


def test_damaged_lines_are_counted(tmp_path):
    write_run(tmp_path, tail='nonsense\n[1]\n{"event":7}\n{"event":"x"}\n')
    read = read_history(tmp_path)
    assert read.starts[0].bad_lines == 4
    assert '4 lines were not readable' in notes_of(read)[0]


def test_an_empty_file_among_others_is_named(tmp_path):
    write_run(tmp_path, end(9))
    empty = tmp_path / 'z' / 'stability'
    empty.mkdir(parents=True)
    (empty / 'events.jsonl').touch()
    assert 'is empty' in notes_of(read_history(tmp_path))[0]


def test_nothing_but_empty_files_is_an_error(tmp_path):
    (tmp_path / 'events.jsonl').touch()
    with pytest.raises(EventFileError, match='is empty'):
        read_history(tmp_path)


def test_a_newer_schema_is_shown_as_far_as_it_goes(tmp_path):
    newer = header(schema=2, invented={'a': 1})
    change = dict(event='tomorrow', iteration=7, time=1007.0, text='new here')
    write_run(tmp_path, change, {**heartbeat(9), 'losses': 3}, start=newer)
    read = read_history(tmp_path)
    assert 'written by a newer mmstable' in notes_of(read)[0]
    (entry,) = [
        one
        for one in page_data([read])['works'][0]['story']['entries']
        if one['kind'] == 'tomorrow'
    ]
    assert entry['lane'] == 'other'
    assert entry['data'] == {'text': 'new here'}


def test_a_header_that_nobody_understands_is_an_error(tmp_path):
    strange = {k: v for k, v in HEADER.items() if k != 'host'}
    write_run(tmp_path, end(9), start=strange)
    with pytest.raises(EventFileError, match='`host` is missing'):
        read_history(tmp_path)


def test_other_ranks_tell_only_what_is_theirs(tmp_path):
    write_run(tmp_path, fault(5), end(50))
    other = header(rank=1)
    records = [fault(5), explained(5, 'bad_input')]
    write_run(tmp_path, *records, file='events.rank1.jsonl', start=other)
    read = read_history(tmp_path)
    assert read.skipped == 1
    assert len(read.incidents('fault_explained')) == 1


def test_the_line_of_the_loss_scale_is_whole(tmp_path):
    write_run(tmp_path, scale(10, 1024.0, 512.0), heartbeat(20), end(50))
    (line,) = page_data([read_history(tmp_path)])['works'][0]['charts'][
        'scale'
    ]
    assert (line['x'], line['y']) == (
        [0, 10, 20, 50],
        [1024, 512, 1024, 1024],
    )


def test_scalars_of_mmengine_are_drawn(tmp_path):
    lines = [
        dict(lr=0.1, loss=0.9, grad_norm=2.0, time=0.5, data_time=0.1)
        | dict(iter=10, step=10),
        {'train/stable/memory/workers_mib': 64.0, 'step': 12},
        {'seg/mIoU': 71.5, 'data_time': 0.1, 'time': 0.2, 'step': 1},
        {'loss': 'no number', 'lr': None, 'iter': [], 'step': 'x'},
    ]
    write_scalars(tmp_path, *lines, name=RUN)
    write_run(tmp_path, end(50))
    charts = page_data([read_history(tmp_path)])['works'][0]['charts']
    assert charts['loss'][0]['y'] == [0.9]
    assert charts['memory'] == [{'label': 'workers', 'x': [12], 'y': [64]}]
    assert charts['validation'] == [
        {'label': 'seg/mIoU', 'x': [10], 'y': [71.5]}
    ]
    assert {one['label'] for one in charts['time']} == {'time', 'data_time'}


def lines_of(*steps: int, **more: float) -> list[dict]:
    return [dict(lr=0.1, loss=0.9, iter=i, step=i, **more) for i in steps]


@pytest.mark.parametrize(
    ('steps', 'records', 'seconds'),
    [
        # Too short for a record, as a run that was killed early.
        ([10, 20], [], 10.0),
        # Until the record, and what came after it.
        ([20, 40, 60], [heartbeat(50)], 55.0),
        ([10, 20], [end(20)], 21.0),
    ],
)
def test_the_time_goes_on_with_the_log(tmp_path, steps, records, seconds):
    write_scalars(tmp_path, *lines_of(*steps, time=0.5), name=RUN)
    write_run(tmp_path, *records)
    read = figures_of(read_history(tmp_path))
    assert read.duration == pytest.approx(seconds)


@pytest.mark.parametrize('time', [1e300, math.inf, math.nan, -5.0, 'x', None])
def test_no_time_is_later_than_the_log(tmp_path, time):
    write_scalars(tmp_path, *lines_of(10, 20, time=time), name=RUN)
    write_run(tmp_path)
    os.utime(tmp_path / RUN / 'vis_data' / 'scalars.json', (1030, 1030))
    seconds = 30.0 if time == 1e300 else 0.0
    assert figures_of(read_history(tmp_path)).duration == seconds


def test_several_wrappers_keep_their_names(tmp_path):
    one = header()['wrappers']['optim_wrapper']
    start = header(wrappers={'generator': one, 'critic': one})
    beat = heartbeat(10)
    sample = beat['wrappers'].pop('optim_wrapper')
    beat['wrappers'] = {'generator': sample, 'critic': sample}
    write_run(tmp_path, beat, end(50), start=start)
    work = page_data([read_history(tmp_path)])['works'][0]
    labels = {
        chart: [line['label'] for line in lines]
        for chart, lines in work['charts'].items()
    }
    assert labels['scale'] == ['generator', 'critic']
    assert labels['lr'] == ['generator/lr', 'critic/lr']
    assert 'critic/backbone' in work['heat']['labels']


def test_phases_of_whatever_event_are_drawn(tmp_path):
    sample = dict(event='anything', iteration=5, time=1.0)
    write_run(tmp_path, {**sample, 'phases': {'data': 0.2, 'forward': 0.5}})
    charts = page_data([read_history(tmp_path)])['works'][0]['charts']
    assert [one['label'] for one in charts['time']] == ['data', 'forward']


def test_many_faults_are_counted_and_few_are_kept(tmp_path):
    write_run(tmp_path, *(fault(i) for i in range(5000)), end(5000))
    read = read_history(tmp_path)
    assert figures_of(read).skipped == 5000
    work = page_data([read])['works'][0]
    assert len(work['story']['entries']) < 700
    assert len(work['skips'][0]) == 1500


def test_a_bad_step_and_its_cause_are_one_entry(tmp_path):
    write_run(tmp_path, fault(5, 'nan_loss'), explained(5, 'domain_error'))
    entries = page_data([read_history(tmp_path)])['works'][0]['story']
    (step,) = [e for e in entries['entries'] if e['kind'] == 'step_fault']
    assert step['cause']['lines'] == ['losses/dice.py:61: overlap / total']
    assert step['replay'] == (
        'mmstable replay work_dirs/x/stability/faults/iter_5 --trust-config'
    )


def test_nothing_hostile_ends_the_script(tmp_path):
    write_run(tmp_path / HOSTILE.replace('/', '_'), *hostile_records())
    (folder,) = tmp_path.iterdir()
    page = write_page([read_history(folder)])
    assert page.count('</script>') == 2
    assert '<img' not in page
    assert len(page) < 400_000
    text = page.partition('id="data">')[2].partition('</script>')[0]
    assert '<' not in text
    (work,) = json.loads(text)['works']
    (step,) = [
        e for e in work['story']['entries'] if e['kind'] == 'step_fault'
    ]
    assert step['data']['fault'] == HOSTILE
    assert step['replay'].startswith("mmstable replay 'x'\"'\"'; rm -rf / #")


def test_the_page_allows_nothing_from_outside(tmp_path):
    write_run(tmp_path, end(9))
    page = write_page([read_history(tmp_path)])
    policy = page.partition('Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert 'unsafe' not in policy
    assert 'connect-src' not in policy
    for word in ('src="http', 'href="http', 'url(http', '@import'):
        assert word not in page
    assert 'Permission is hereby granted' in page


def test_a_huge_line_does_not_fill_the_page(tmp_path):
    huge = fault(5) | dict(
        culprits=[
            {'name': f'layer{i}.weight', 'kind': 'NaN'} for i in range(20000)
        ]
    )
    write_run(tmp_path, huge, end(9))
    assert len(write_page([read_history(tmp_path)])) < 200_000


def test_a_symbolic_link_loop_is_no_event_file(tmp_path: Path):
    (tmp_path / 'events.jsonl').symlink_to(tmp_path / 'events.jsonl')
    with pytest.raises(EventFileError, match='events.jsonl'):
        read_history(tmp_path)


def test_many_losses_leave_room_for_other_charts(tmp_path):
    losses = {f'd{i}.loss_{"x" * 130}': 1.0 for i in range(200)}
    beats = [{**heartbeat(i), 'losses': losses} for i in (10, 20)]
    write_run(tmp_path, *beats, end(20))
    read = read_history(tmp_path)
    assert len(read.labels('loss')) == 64
    for chart in ('lr', 'grad_norm', 'time', 'memory'):
        assert len(read.line(chart, read.labels(chart)[0])) == 2
    assert all(len(read.line('loss', one)) == 2 for one in read.labels('loss'))


def test_a_short_run_is_drawn_by_its_log(tmp_path):
    lines = [
        {'generator.lr': 0.1, 'loss_d': 0.5, 'grad_norm': 2.0}
        | dict(iter=i, step=i)
        for i in range(5, 60, 5)
    ]
    write_scalars(tmp_path, *lines, name='20260101_120000')
    write_run(tmp_path, heartbeat(50), end(60))
    charts = draw_charts(read_history(tmp_path))
    (rate,) = charts['lr']
    assert rate['label'] == 'generator/lr' and len(rate['x']) == 11
    assert len(charts['norm'][0]['x']) == 11


def test_a_folder_of_work_dirs_is_told_from_one(tmp_path):
    for name in ('unet', 'fcn'):
        write_run(tmp_path / name, end(10))
    with pytest.raises(UsageError, match=r'some in it.*: \S+/fcn, \S+/unet'):
        read_history(tmp_path)


def test_a_record_is_kept_as_far_as_it_can_be_read(tmp_path):
    wide = {f'k{i}': ['B' * 590] * 24 for i in range(60)}
    write_run(tmp_path, dict(fault(5), text='short', **wide), end(10))
    (kept,) = read_history(tmp_path).incidents('step_fault')
    assert kept['fault'] == 'overflow' and kept['text'] == 'short'
    assert len(json.dumps(kept)) < 10_000


def test_only_a_slow_run_is_worth_a_word(tmp_path):
    known = dict(event='iteration_profile', time=1767270000.0)
    known['phases'] = {'data': 0.3}
    healthy = dict(known, iteration=60, causes=[], text='Nothing.')
    slow = dict(known, iteration=560, causes=['data'], text='62 %')
    write_run(tmp_path, healthy, slow, end(600))
    read = read_history(tmp_path)
    (kept,) = read.incidents('iteration_profile')
    assert kept['iteration'] == 560
    assert read.labels('phases') == ['data']
