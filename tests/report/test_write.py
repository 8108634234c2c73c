"""The page that a run leaves behind when it ends, or dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.hooks import Hook

import mmstable.loops  # noqa: F401  (registers the loops)
from mmstable.report import page
from mmstable.report.page import REPORT_NAME, write_if_quick
from tests.report.event_files import heartbeat, write_run
from tests.toys import Sabotage, toy_runner

HOOK = dict(type='mmstable.EventLogHook', interval=2)


class Fails(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 3:
            raise RuntimeError('it went wrong')


class Listens(Hook):
    """Notes which files there are when the page is about to be written."""

    def __init__(self):
        self.seen = []

    def after_exception(self, runner, exception):
        self.seen = [path.name for path in Path(runner.work_dir).iterdir()]


def test_a_run_that_ends_leaves_its_page(tmp_path):
    hooks = [Sabotage(loss=[2]), HOOK]
    runner = toy_runner(tmp_path, max_iters=5, hooks=hooks)
    runner.train()
    page = Path(runner.work_dir, REPORT_NAME).read_text(encoding='utf-8')
    assert '"state":"finished"' in page
    assert '"fault":"nan_loss"' in page
    assert '"net.backbone"' in page


def test_a_run_that_dies_saves_first_and_leaves_its_page(tmp_path):
    listens = Listens()
    runner = toy_runner(
        tmp_path,
        # The event file's hook comes first of all in every stage.
        hooks=[
            HOOK,
            Fails(),
            dict(type='mmstable.EmergencyCheckpointHook'),
            listens,
        ],
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=6),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=100,
                by_epoch=False,
            )
        ),
    )
    with pytest.raises(RuntimeError, match='it went wrong'):
        runner.train()
    assert 'emergency_iter_4.pth' in listens.seen
    page = Path(runner.work_dir, REPORT_NAME).read_text(encoding='utf-8')
    assert '"state":"exception"' in page
    assert 'RuntimeError: it went wrong' in page
    assert '"word":"emergency"' in page


def test_no_page_is_written_if_nobody_wants_it(tmp_path):
    runner = toy_runner(
        tmp_path, max_iters=3, hooks=[{**HOOK, 'report': False}]
    )
    runner.train()
    assert not Path(runner.work_dir, REPORT_NAME).exists()


def test_a_test_run_draws_nothing(tmp_path):
    runner = toy_runner(tmp_path, max_iters=3, hooks=[HOOK])
    runner.train()
    page = Path(runner.work_dir, REPORT_NAME)
    page.unlink()
    runner.call_hook('after_run')
    assert not page.exists()


def test_a_page_that_fails_is_no_failure_of_the_run(tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError('no picture today')

    monkeypatch.setattr(page, 'write_if_quick', fail)
    runner = toy_runner(tmp_path, max_iters=3, hooks=[HOOK])
    runner.train()
    assert runner.iter == 3


def test_too_much_for_two_seconds_is_left_to_the_command(tmp_path):
    write_run(tmp_path, *(heartbeat(i) for i in range(20_000)))
    assert write_if_quick(tmp_path) is None
    assert not (tmp_path / REPORT_NAME).exists()


@pytest.mark.parametrize('make', [lambda p: None, lambda p: p.mkdir()])
def test_a_folder_without_events_gets_none(tmp_path, make):
    make(tmp_path / 'x')
    assert write_if_quick(tmp_path / 'x') is None
