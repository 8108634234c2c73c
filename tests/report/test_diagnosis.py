"""What a history is diagnosed with, and when nothing is said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from mmengine.config import Config

from mmstable.finding import Finding, Severity
from mmstable.messages import speaking
from mmstable.optim.loss_scale import ScalePolicy
from mmstable.report.diagnosis import (
    CHECKS,
    config_lines,
    diagnose,
    duration,
    goodput,
    rising_loss,
    state_of,
    teeth,
    wasted_iterations,
)
from mmstable.report.history import History, read_history
from mmstable.report.page import headline
from tests.report.event_files import (
    HEADER,
    end,
    explained,
    fault,
    header,
    heartbeat,
    scale,
    write_run,
    write_scalars,
)

RUN = '20260101_120000'


def history(tmp_path: Path, *records: dict) -> History:
    write_run(tmp_path, *records)
    return read_history(tmp_path)


def found(tmp_path: Path, *records: dict) -> dict[str, Finding]:
    return by_id(history(tmp_path, *records))


def by_id(read: History) -> dict[str, Finding]:
    return {one.id: one for one in diagnose(read)}


def test_nothing_is_wrong_with_a_healthy_run(tmp_path):
    beats = [heartbeat(i, 1.0 / i) for i in range(10, 1000, 10)]
    read = history(tmp_path, *beats, end(1000))

    assert diagnose(read) == []
    assert headline(read, []) == (
        'Nothing is wrong: 1000 steps, none skipped, no alarm.'
    )


def test_too_little_is_said_to_be_too_little(tmp_path):
    read = history(tmp_path, end(3))
    assert 'Too little has happened' in headline(read, diagnose(read))


@pytest.mark.parametrize(
    ('bad', 'severity'),
    [(60, Severity.ERROR), (20, Severity.WARNING), (3, Severity.HINT)],
)
def test_skip_rate(tmp_path, bad, severity):
    step = 1000 // bad
    faults = [fault(1 + i * step) for i in range(bad)]
    one = found(tmp_path, *faults, heartbeat(1000))['skip_rate']
    assert one.severity is severity
    assert f'{bad} of 1000 steps were skipped' in one.what
    assert 'Spread evenly' in one.why


def test_a_growing_skip_rate_is_a_warning(tmp_path):
    faults = [fault(i) for i in range(990, 998)]
    one = found(tmp_path, *faults, heartbeat(1000))['skip_rate']
    assert one.severity is Severity.WARNING
    assert 'It gets worse: 0 bad steps' in one.why


def test_teeth_are_counted_at_the_level_that_holds():
    assert teeth([512, 1024, 512, 1024, 512]) == (2, 512)
    assert teeth([1024, 512, 256]) == (0, None)
    assert teeth([]) == (0, None)


def sawtooth() -> list[dict]:
    records = []
    for i in range(4):
        records += [
            scale(100 * i + 10, 512.0, 1024.0),
            scale(100 * i + 11, 1024.0, 512.0),
        ]
    return [scale(1, 1024.0, 512.0), *records, end(1000)]


def test_sawtooth_gets_settings_that_exist(tmp_path):
    one = found(tmp_path, *sawtooth())['scale_sawtooth']

    assert 'grew 4 times' in one.what
    lines = config_lines(one.change)
    assert lines == (
        'optim_wrapper = dict(loss_scale=dict(init_scale=512.0, '
        'growth_interval=8000, _delete_=True))'
    )
    base = tmp_path / 'base.py'
    base.write_text('optim_wrapper = dict(type="X", loss_scale=1024.)\n')
    leaf = tmp_path / 'leaf.py'
    leaf.write_text(f"_base_ = './base.py'\n{lines}\n")
    policy = ScalePolicy.from_config(
        dict(Config.fromfile(leaf).optim_wrapper.loss_scale)
    )
    assert (policy.init_scale, policy.growth_interval) == (512.0, 8000)


@pytest.mark.parametrize(
    ('verdict', 'severity'),
    [
        ('domain_error', Severity.ERROR),
        ('fp16_overflow', Severity.WARNING),
        ('bad_weights', Severity.ERROR),
    ],
)
def test_module_and_line(tmp_path, verdict, severity):
    records = [fault(5, 'nan_loss'), explained(5, verdict), heartbeat(50)]
    one = found(tmp_path, *records)['fault_place']
    assert one.severity is severity
    assert 'head.loss_dice' in one.what
    assert one.source == 'losses/dice.py:61: overlap / total'
    lines = config_lines(one.change)
    wanted = "optim_wrapper = dict(fp32_modules=['head.loss_dice'])"
    assert lines == (wanted if verdict == 'fp16_overflow' else '')


def test_bad_weights_that_a_rollback_has_mended_are_a_warning(tmp_path):
    back = dict(
        event='intervention',
        iteration=5,
        time=1006.0,
        action='rollback',
        restored=3,
    )
    records = [fault(5), explained(5, 'bad_weights'), back, heartbeat(50)]
    one = found(tmp_path, *records)['fault_place']
    assert one.severity is Severity.WARNING


def test_samples_under_suspicion(tmp_path):
    one = found(tmp_path, explained(5, 'bad_input'))['data_suspects']
    assert '1 sample is under suspicion' in one.what
    assert 'data/0113.png' in one.why


def test_one_innocent_sample_is_not_accused(tmp_path):
    assert 'data_suspects' not in found(tmp_path, explained(5, 'exploding'))


def test_work_that_was_done_again(tmp_path):
    write_run(tmp_path, heartbeat(500))
    again = header(iteration=100, time=3000.0)
    write_run(tmp_path, end(1000), name='20260101_130000', start=again)
    (one,) = [
        one
        for one in diagnose(read_history(tmp_path))
        if one.id == 'wasted_work'
    ]
    assert one.severity is Severity.WARNING
    assert '400 done again' in one.why
    # 100 s of work: no reason to save more often.
    assert one.change == {}


def test_hours_that_were_done_again_call_for_more_checkpoints(tmp_path):
    write_run(tmp_path, heartbeat(9000))
    again = header(iteration=100, time=30000.0)
    write_run(tmp_path, end(9900), name='20260101_130000', start=again)
    one = by_id(read_history(tmp_path))['wasted_work']
    assert config_lines(one.change) == (
        'default_hooks = dict(checkpoint=dict(interval=2400, by_epoch=False))'
    )


def test_a_run_that_was_killed_is_known_by_its_log(tmp_path):
    write_run(tmp_path, heartbeat(100))
    line = dict(lr=0.1, loss=0.5, iter=150, step=150)
    write_scalars(tmp_path, line, name=RUN)
    again = header(iteration=100, time=3000.0)
    write_run(tmp_path, end(1000), name='20260101_130000', start=again)
    one = by_id(read_history(tmp_path))['wasted_work']
    assert '50 done again' in one.why


def back(iteration: int, restored: int | None, action='rollback') -> dict:
    return dict(
        event='intervention',
        iteration=iteration,
        time=1000.0 + iteration,
        action=action,
        fault='nan_loss',
        reason='10 in a row',
        since=iteration - 9,
        restored=restored,
    )


def test_what_was_undone_twice_counts_once(tmp_path):
    skipped = [fault(i, 'nan_loss') for i in (*range(21, 31), 55)]
    records = [*skipped, back(30, 10), back(40, 0), heartbeat(60)]
    read = history(tmp_path, *records)
    assert wasted_iterations(read) == (1, 40, 0)
    one = by_id(read)['wasted_work']
    assert one.what.startswith('41 iterations (68.3%, about 10 s)')
    # A short run: nobody misses ten seconds.
    assert one.severity is Severity.HINT


def test_several_steps_of_an_iteration_are_one_iteration(tmp_path):
    wrappers = dict.fromkeys(
        ('generator', 'discriminator'), HEADER['wrappers']['optim_wrapper']
    )
    records = [fault(i) for i in range(20)]
    write_run(
        tmp_path, *records, heartbeat(100), start=header(wrappers=wrappers)
    )
    assert wasted_iterations(read_history(tmp_path)) == (10, 0, 0)


def test_a_guard_that_gives_up_is_told_first(tmp_path):
    records = [back(30, 10), back(40, 0), back(50, None, 'stop')]
    one = found(tmp_path, *records, end(50, 'stopped'))['bad_end']
    assert one.severity is Severity.ERROR
    assert 'nan_loss since iteration 41, and 2 rollbacks did' in one.what
    assert '--before-iter 41' in one.fix


def test_who_stops_a_run_by_hand_knows_it(tmp_path):
    records = [heartbeat(40), end(50, 'stopped')]
    assert 'bad_end' not in found(tmp_path, *records)


@pytest.mark.parametrize(
    ('event', 'error'),
    [('hang', 'TrainingHangs'), ('out_of_memory', 'TrainingOutOfMemory')],
)
def test_an_end_that_is_explained_is_told_once(tmp_path, event, error):
    trace = f'  File "a.py", line 1\nmmstable.errors.{error}: x: y\nAdvice'
    known = dict(event=event, iteration=9, time=1.0, rung='stop')
    got = found(tmp_path, known, end(10, 'exception', traceback=trace))
    assert 'bad_end' not in got
    assert got[event].severity is Severity.ERROR
    alone = end(10, 'exception', traceback=trace)
    assert 'x: y' in found(tmp_path / 'alone', alone)['bad_end'].why


def test_a_batch_that_does_not_fit_is_not_helped_by_skipping(tmp_path):
    records = [
        dict(event='out_of_memory', iteration=i, time=1.0, rung=rung, **more)
        for i, rung, more in (
            (1, 'skip', dict(report='run/iter_1.txt')),
            (2, 'stop', {}),
        )
    ]
    one = found(tmp_path, *records, end(2, 'exception'))['out_of_memory']
    assert 'What was done: 1 skip, 1 stop' in one.why
    assert one.fix.startswith('See run/iter_1.txt, or')
    one = found(tmp_path / 'no_file', *records[1:], end(2))['out_of_memory']
    assert one.fix.startswith('Ask what fits')


def test_memory_that_grows(tmp_path):
    beats = [
        heartbeat(i, host_memory=(1 << 30) + i * (1 << 20))
        for i in range(0, 1000, 10)
    ]
    one = found(tmp_path, *beats, end(1000))['memory_growth']
    assert one.severity is Severity.WARNING
    assert 'About 1000 MiB in 1000 iterations' in one.why


def test_waiting_for_data(tmp_path):
    lines = [
        dict(lr=0.1, loss=0.5, time=0.5, data_time=0.31, iter=i, step=i)
        for i in range(10, 200, 10)
    ]
    write_scalars(tmp_path, *lines, name=RUN)
    one = found(tmp_path, end(200))['slow_phase']
    assert '62% of the time' in one.what
    assert one.severity is Severity.WARNING
    # Who knows how many there are.
    assert one.change == {}


def test_milliseconds_of_a_short_run_do_not_matter(tmp_path):
    lines = [
        dict(lr=0.1, loss=0.5, time=0.005, data_time=0.003, iter=i, step=i)
        for i in range(10, 200, 10)
    ]
    write_scalars(tmp_path, *lines, name=RUN)
    profile = dict(event='iteration_profile', iteration=9, time=1.0)
    profile |= dict(phases={'data': 0.003}, causes=['data'], text='data')
    assert 'slow_phase' not in found(tmp_path, end(200))
    assert 'slow_phase' not in found(tmp_path, profile, end(200))


def test_a_profile_says_more_than_the_log(tmp_path):
    profile = dict(event='iteration_profile', iteration=9, time=1.0)
    profile |= dict(phases={'data': 0.1, 'forward': 0.7, 'step': 0.2})
    profile |= dict(causes=['module'], text='forward of backbone takes 70 %')
    one = found(tmp_path, profile, end(200))['slow_phase']
    assert one.what == '70% of the time of an iteration goes to: forward.'
    assert one.why == 'forward of backbone takes 70 %'
    # Not the largest phase, but what was found to be the cause.
    other = {**profile, 'causes': ['step', 'rare']}
    one = found(tmp_path / 'step', other, end(200))['slow_phase']
    assert one.what == '20% of the time of an iteration goes to: step.'
    for cause, what in [
        ('validation', 'goes to validation'),
        ('rare', 'between the iterations'),
        ('<b>', 'between the iterations'),
    ]:
        other = {**profile, 'causes': [cause]}
        one = found(tmp_path / what, other, end(200))['slow_phase']
        assert what in one.what
    quiet = {**profile, 'causes': []}
    assert 'slow_phase' not in found(tmp_path / 'quiet', quiet, end(200))


def test_a_loss_that_rises(tmp_path):
    beats = [heartbeat(i, abs(i - 500) / 500 + 0.2) for i in range(0, 1000, 5)]
    one = found(tmp_path, *beats, end(1000))['rising_loss']
    assert 'The loss rises' in one.what


def test_checkpoints_that_were_not_saved(tmp_path):
    failed = dict(event='checkpoint_failed', time=1.0, name='iter_9.pth')
    failed |= dict(reason='no space: 9 MiB needed, 0 MiB free')
    one = found(tmp_path, failed | dict(iteration=9), end(50))['unsaved']
    assert one.severity is Severity.WARNING
    assert one.what == (
        '1 checkpoint was not saved, at last iter_9.pth at iteration 9.'
    )
    assert one.why == 'no space: 9 MiB needed, 0 MiB free'
    # Nothing is left of the end of the run.
    late = [failed | dict(iteration=i) for i in (9, 50)]
    one = found(tmp_path / 'end', *late, end(50))['unsaved']
    assert one.severity is Severity.ERROR


def test_what_machines_do(tmp_path):
    records = [
        dict(event='hang', iteration=1, time=1.0, phase='data', seconds=70.0),
        dict(event='out_of_memory', iteration=2, time=1.0, phase='forward')
        | dict(rung='skip'),
        dict(event='low_headroom', iteration=3, time=1.0, problem='overflow')
        | dict(module='head', share=0.8),
        dict(event='replicas_diverged', iteration=4, time=1.0, ranks=[3])
        | dict(name='w'),
        dict(event='injected_fault', iteration=5, time=1.0, kind='nan_loss'),
    ]
    got = found(tmp_path, *records, end(1000))
    assert "1 time, at last in the phase 'data' for 70 s" in got['hang'].what
    assert got['out_of_memory'].severity is Severity.WARNING
    assert 'head uses 80%' in got['low_headroom'].what
    assert 'Ranks 3' in got['replicas_diverged'].what
    assert 'injected on purpose' in got['injected_faults'].what


@pytest.mark.parametrize(
    ('records', 'state'),
    [
        ([end(10)], 'finished'),
        ([end(10, 'stopped')], 'stopped'),
        ([end(10, 'exception')], 'exception'),
        ([], 'silent'),
        ([dict(heartbeat(9), time='now')], 'running'),
        ([end(10, 'a word of tomorrow')], 'stopped'),
    ],
)
def test_how_a_run_ended(tmp_path, records, state):
    for record in records:
        if record['time'] == 'now':
            record['time'] = time.time()
    assert state_of(history(tmp_path, *records).starts[-1]) == state


def test_an_exception_is_told_by_its_last_line(tmp_path):
    trace = 'Traceback (most recent call last):\n  x\nKeyError: 3\n'
    last = end(10, 'exception', traceback=trace)
    one = found(tmp_path, last)['bad_end']
    assert one.why == 'KeyError: 3'
    # To do the same again would not help, as a rule.
    assert one.fix.startswith('Fix the error above (for transient errors')


def test_all_is_said_in_both_languages(tmp_path):
    read = history(tmp_path, fault(5), explained(5, 'bad_input'), *sawtooth())
    with speaking('zh_cn'):
        chinese = diagnose(read)
    english = diagnose(read)
    assert [one.id for one in chinese] == [one.id for one in english]
    for one, other in zip(chinese, english):
        assert one.what != other.what


@pytest.mark.parametrize('check', CHECKS)
def test_no_check_finds_anything_in_a_run_that_has_just_begun(check, tmp_path):
    fresh = header(time=time.time())
    write_run(tmp_path, start=fresh)
    assert check(read_history(tmp_path)) is None


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [(4.2, '4 s'), (125, '2 min 05 s'), (7500, '2 h 05 min')],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_what_was_wrong_at_the_start_is_not_forgotten(tmp_path):
    line = 'warning: optim_wraper: unknown key `optim_wraper` is ignored'
    rows = [heartbeat(50 * n) for n in range(1, 5)]
    write_run(tmp_path, *rows, end(200), start=header(warnings=[line]))
    history = read_history(tmp_path)
    found = diagnose(history)
    assert [one.id for one in found] == ['start_warnings']
    assert line in found[0].why
    assert headline(history, found) == '1 finding needs your attention.'


def test_goodput_counts_what_was_lost_and_the_time_between(tmp_path):
    # 100 iterations of a second each, in 100 s; then 50 are repeated.
    first = [heartbeat(n) | {'iteration_time': 1.0} for n in (50, 100)]
    write_run(tmp_path, *first, name='a')
    history = read_history(tmp_path)
    assert goodput(history) == pytest.approx(1.0)
    rows = [heartbeat(100) | {'iteration_time': 1.0, 'time': 1300.0}]
    write_run(
        tmp_path, *rows, start=header(iteration=50, time=1250.0), name='b'
    )
    again = read_history(tmp_path)
    assert goodput(again) == pytest.approx(100 / 300)


def test_no_advice_to_add_what_the_run_has(tmp_path):
    rows = [heartbeat(10 * n, loss=1.0 if n < 30 else 9.0) for n in range(60)]
    write_run(tmp_path, *rows)
    one = rising_loss(read_history(tmp_path))
    assert 'DivergenceGuardHook' in one.fix
    changes = ['  hooks added: DivergenceGuardHook']
    write_run(tmp_path, *rows, start=header(changes=changes))
    one = rising_loss(read_history(tmp_path))
    assert 'DivergenceGuardHook' not in one.fix
