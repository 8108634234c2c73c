"""The hook: settings, events, messages, resume, exit code."""

from __future__ import annotations

import pytest

from mmstable.cli.main import main
from mmstable.events import Action
from mmstable.hooks import DivergenceGuardHook
from mmstable.report import GuardIntervention, read_events
from tests.guard.runs import FUSED, Blow, Poison, diagnosis, run, stopped
from tests.loops.runs import log_of
from tests.toys import Sabotage, assert_same


@pytest.mark.parametrize('action', ['warn', 'lower_lr'])
def test_milder_actions_leave_the_state_alone(tmp_path, action):
    runner = run(
        tmp_path,
        dict(actions=dict(nan_loss=action)),
        [Sabotage(loss=[6, 7])],
        iters=7,
    )
    (done,) = runner.diary.done
    assert done.action is Action(action)
    assert done.restored is None
    assert_same(runner.diary.states[7], runner.diary.states[5])


def test_overflows_at_the_start_are_the_scale_finding_its_level(tmp_path):
    wrapper = dict(FUSED, loss_scale=2.0**24)
    runner = run(tmp_path, wrapper=wrapper, iters=6)
    assert runner.optim_wrapper.skipped_steps > 2
    assert runner.diary.done == []


def test_everything_is_in_the_event_file(tmp_path):
    run(tmp_path, faults=[Blow([6])])
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    (event,) = (
        e for e in read_events(path) if isinstance(e, GuardIntervention)
    )
    assert (event.iteration, event.action, event.fault, event.restored) == (
        7,
        'rollback',
        'nan_loss',
        4,
    )


def test_chinese_is_spoken(tmp_path):
    runner = run(tmp_path, dict(lang='zh_cn'), [Blow([6])])
    text = log_of(runner)
    assert '已回滚到第 4 次迭代的状态（内存快照），数据位置不回滚' in text
    assert '学习率 x 0.5，1000 次迭代内恢复为 1。第 1/3 次回滚' in text


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(actions=dict(nan='warn')), '`actions`: no setting `nan`; there'),
        (
            dict(actions=dict(poisoned='skip')),
            r"`actions\['poisoned'\]` must be one of rollback, warn, stop, "
            "got 'skip'",
        ),
        (dict(window=5), '`window` must be an int of at least 20, got 5'),
        (dict(max_bad_rate=0), '`max_bad_rate` must be a finite'),
        (dict(lr_factor=2.0), 'number above 0 and at most 1'),
        (dict(snapshot_interval=0), '`snapshot_interval` must be an int'),
        (dict(max_rollbacks=-1), '`max_rollbacks` must be an int'),
        (dict(max_snapshot_memory='x'), 'must be a finite number of at'),
        (dict(spike=dict(sigma=3)), '`spike`: no setting `sigma`; there'),
        (
            dict(spike=dict(factor=1)),
            '`spike.factor` must be .* above 1',
        ),
        (dict(warmup=dict(start=1)), '`warmup`: no setting `start`; there'),
        (dict(warmup=dict(start_factor=1)), '`warmup.iters` must be an int'),
        (dict(warmup=3), '`warmup` must be a dict, got 3'),
        (dict(window=True), '`window` must be an int .* got True'),
        (dict(lr_recovery=False), '`lr_recovery` must be an int .* got Fal'),
        (dict(lang='fr'), '`lang` must be one of'),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DivergenceGuardHook(**settings)


def test_a_resumed_run_knows_how_often_it_went_back(tmp_path):
    first = run(
        tmp_path,
        dict(max_rollbacks=1),
        [Poison([6])],
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=8, by_epoch=False)
        ),
    )
    assert len(first.diary.done) == 1
    error = stopped(
        tmp_path / 'rest',
        dict(max_rollbacks=1),
        [Poison([10])],
        load_from=str(tmp_path / 'iter_8.pth'),
        resume=True,
    )
    assert '1 rollback did not help' in str(error)


def test_tools_train_returns_the_exit_code(tmp_path, capsys):
    config = tmp_path / 'config.py'
    config.write_text(
        """
custom_imports = dict(imports=['tests.guard.registered'])
work_dir = 'unused'
model = dict(type='GuardedToyModel')
train_dataloader = dict(
    batch_size=2, sampler=dict(type='InfiniteSampler'),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='GuardedToyData'))
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=20)
optim_wrapper = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=4, by_epoch=False),
    guard=dict(type='mmstable.DivergenceGuardHook', max_rollbacks=1))
custom_hooks = [
    dict(type='Poison', at=list(range(7, 99))),
    dict(type='mmstable.EmergencyCheckpointHook')]
"""
    )
    code = main(['train', str(config), '--work-dir', str(tmp_path / 'run')])
    assert code == 4
    (file,) = tmp_path.glob('run/*/stability/diagnosis.json')
    assert f'diverged; the reason is above, and in {file}' in (
        capsys.readouterr().err
    )
    assert diagnosis(tmp_path / 'run')['resume'].endswith(
        f'--resume-from {tmp_path}/run/iter_4.pth --override-lr-schedule '
        '--cfg-options optim_wrapper.optimizer.lr=0.05'
    )
    assert not list((tmp_path / 'run').glob('emergency*'))
