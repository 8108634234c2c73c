"""The line that shows how far a training is."""

from __future__ import annotations

import argparse
import io
import sys

from mmstable.cli import progress
from mmstable.cli.train import _show_progress
from tests.cli.runs import Screen
from tests.loops.runs import iter_loop
from tests.toys import toy_runner


def train(tmp_path, monkeypatch, screen, quiet=False):
    monkeypatch.setattr(progress, '_SECONDS_BETWEEN', 0.0)
    runner_args = argparse.Namespace(quiet=quiet, launcher='none')
    with monkeypatch.context() as patch:
        # Not in a fixture: pytest sets its own before each test.
        patch.setattr(sys, 'stdout', screen)
        runner = toy_runner(tmp_path, train_cfg=iter_loop(6))
        _show_progress(runner, runner_args)
        runner.train()
    return screen.getvalue()


def test_one_line_that_makes_room_for_the_log(tmp_path, monkeypatch):
    text = train(tmp_path, monkeypatch, Screen())
    assert '6/6' in text
    assert 's/iteration' in text
    for line in text.split('\n'):
        # What is left on a line is what was written last.
        shown = line.rpartition(progress._CLEAR)[2]
        assert not ('INFO' in shown and 's/iteration' in shown)


def test_none_if_it_is_asked_to_be_quiet(tmp_path, monkeypatch):
    text = train(tmp_path, monkeypatch, Screen(), quiet=True)
    assert 'INFO' in text
    assert 's/iteration' not in text


def test_none_in_a_pipe(tmp_path, monkeypatch):
    text = train(tmp_path, monkeypatch, io.StringIO())
    assert 'INFO' in text
    assert 's/iteration' not in text
