"""``mmstable report`` from the command line."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mmstable.cli.main import main
from mmstable.cli.report import follow
from mmstable.io.process import ProcessIdentity
from tests.patience import wait_until
from tests.report.event_files import (
    end,
    explained,
    fault,
    header,
    heartbeat,
    hostile_records,
    write_run,
)


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    records = [fault(5, 'nan_loss'), explained(5, 'domain_error')]
    write_run(tmp_path / 'work', *records, end(1000))
    return tmp_path / 'work'


def test_it_writes_a_page_and_prints_a_summary(work_dir, capsys):
    assert main(['report', str(work_dir)]) == 0
    captured = capsys.readouterr()
    page = work_dir / 'stability_report.html'
    assert page.read_text(encoding='utf-8').startswith('<!doctype html>')
    assert 'head.loss_dice' in captured.out
    assert 'losses/dice.py:61: overlap / total' in captured.out
    assert captured.out.endswith('1 finding needs your attention.\n')
    assert f'mmstable report: written to {page}' in captured.err


def test_it_speaks_chinese(work_dir, capsys):
    assert main(['report', str(work_dir), '--lang', 'zh_cn']) == 0
    captured = capsys.readouterr()
    assert '有 1 条诊断需要处理。' in captured.out
    assert '已写入' in captured.err
    page = (work_dir / 'stability_report.html').read_text(encoding='utf-8')
    assert '"language":"zh_cn"' in page


def test_output_may_be_a_file_or_a_folder(work_dir, tmp_path, capsys):
    assert main(['report', str(work_dir), '-o', str(tmp_path)]) == 0
    assert (tmp_path / 'stability_report.html').is_file()
    assert main(['report', str(work_dir), '-o', str(tmp_path / 'a.html')]) == 0
    assert (tmp_path / 'a.html').is_file()
    assert not (work_dir / 'stability_report.html').exists()


def test_json(work_dir, capsys):
    assert main(['report', str(work_dir), '--json']) == 0
    (read,) = json.loads(capsys.readouterr().out)
    assert read['figures']['state'] == 'finished'
    assert read['figures']['skipped'] == 1
    assert 'fault_place' in [one['id'] for one in read['findings']]


def test_two_are_compared(work_dir, tmp_path, capsys):
    write_run(tmp_path / 'other', end(50))
    assert main(['report', str(work_dir), str(tmp_path / 'other')]) == 0
    page = (work_dir / 'stability_report.html').read_text(encoding='utf-8')
    assert '"name":"other"' in page


def test_nothing_hostile_reaches_the_terminal(tmp_path, capsys):
    write_run(tmp_path, *hostile_records(), end(100))
    assert main(['report', str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert '\x1b' not in captured.out + captured.err
    assert '\u202e' not in captured.out + captured.err


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['nothing'], "mmstable report: error: there is no folder or file 'n"),
        (['.'], "mmstable report: error: '.' has no event file of mmstable"),
        (['.'] * 7, 'mmstable report: error: at most 6 work directories'),
        (['.', '--serve'], 'mmstable report: error: unrecognized arguments'),
        (['.', '--follow', '--json'], 'mmstable report: error: argument '),
        ([], 'mmstable report: error: the following arguments are required'),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(['report', *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith(message)
    assert captured.err.count('\n') == 1


def test_a_page_that_cannot_be_written(work_dir, capsys):
    target = work_dir / '20260101_120000/stability/events.jsonl/x.html'
    assert main(['report', str(work_dir), '-o', str(target)]) == 2
    assert 'cannot write' in capsys.readouterr().err


def running() -> dict[str, Any]:
    """The start of a run whose process is alive: the one of the tests."""
    return header(**asdict(ProcessIdentity.of_this_process()))


def test_the_page_follows_the_run_until_it_ends(tmp_path, capsys):
    page = tmp_path / 'stability_report.html'

    def shows(iteration: int) -> bool:
        text = page.read_text(encoding='utf-8') if page.exists() else ''
        return f'"iterations":{iteration},' in text

    def log(record: dict[str, Any]) -> None:
        with events.open('a') as file:
            file.write(json.dumps(record) + '\n')

    events = write_run(tmp_path, heartbeat(50), start=running())
    follower = threading.Thread(
        target=follow, args=([str(tmp_path)], None, 0.01), daemon=True
    )
    follower.start()
    wait_until(lambda: shows(50))
    log(heartbeat(60))
    wait_until(lambda: shows(60))
    assert follower.is_alive()
    log(end(77))
    wait_until(lambda: not follower.is_alive())
    assert shows(77)
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.splitlines() == [
        f'mmstable report: writing {page} every 0.01 s until the run ends; '
        'Ctrl-C stops this',
        f'mmstable report: written to {page}',
    ]


def test_a_run_that_has_ended_is_not_waited_for(work_dir, capsys):
    assert main(['report', str(work_dir), '--follow']) == 0
    assert (work_dir / 'stability_report.html').is_file()
    first, last = capsys.readouterr().err.splitlines()
    assert 'every 30 s until the run ends' in first
    assert last.startswith('mmstable report: written to ')


def test_ctrl_c_ends_following(tmp_path, capsys, monkeypatch):
    write_run(tmp_path, heartbeat(50), start=running())
    page = tmp_path / 'stability_report.html'

    def interrupt(seconds):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(time, 'sleep', interrupt)
    assert main(['report', str(tmp_path), '--follow']) == 0
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f'mmstable report: writing {page} every 30 s')
    assert last == f'mmstable report: written to {page}'
    assert page.is_file()
