"""Runs that were killed, and runs that only say nothing for a while."""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmstable.cli.main import main
from mmstable.report import diagnosis
from tests.cli.runs import ROOT, start
from tests.patience import wait_until

SLOW = ['--cfg-options', 'model.nap=0.1', 'train_cfg.max_iters=1000']
# As `mmstable train` is called, and so to be called again.
CALL = 'python -m mmstable train config.py --work-dir'


@contextmanager
def training(
    project: Path, work_dir: Path, *options: str
) -> Iterator[subprocess.Popen[str]]:
    words = ['train', 'config.py', '--work-dir', str(work_dir), *options]
    command = [sys.executable, '-m', 'mmstable', *words, *SLOW]
    process = start(command, project, path=f'{ROOT}:{project}')
    try:
        yield process
    finally:
        for child in children(process):
            child.kill()
        process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return []


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    wait_until(path.exists, process=process)


def reported(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(['report', str(work_dir), '--json']) == 0
    (read,) = json.loads(capsys.readouterr().out)
    return read


def page_of(work_dir: Path) -> Any:
    text = (work_dir / 'stability_report.html').read_text(encoding='utf-8')
    data = re.search(r'<script[^>]*application/json[^>]*>(.*?)</script>', text)
    assert data is not None
    return json.loads(data[1])


def test_a_living_run_is_running_and_a_killed_one_is_called_so_at_once(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with training(project, tmp_path) as process:
        wait_for(tmp_path / 'iter_6.pth', process)
        # As in the middle of a long validation, however long it is.
        process.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(diagnosis, '_SILENCE', 0.0)
            read = reported(tmp_path, capsys)
        assert read['figures']['state'] == 'running'
        assert not [o for o in read['findings'] if o['id'] == 'bad_end']
        process.send_signal(signal.SIGKILL)
        # Nobody has asked yet how it ended.
        deadline = time.monotonic() + 10
        read = reported(tmp_path, capsys)
        while read['figures']['state'] == 'running':
            assert time.monotonic() < deadline
            read = reported(tmp_path, capsys)
    figures = read['figures']
    assert figures['state'] == 'killed'
    # A nap of 0.1 s in each iteration, but no record of any of them.
    assert 0.5 < figures['duration'] < 60
    (one,) = (one for one in read['findings'] if one['id'] == 'bad_end')
    assert one['severity'] == 'error'
    done = figures['iterations']
    assert done >= 6
    assert one['what'] == f'The run was killed after iteration {done}.'
    assert f'Process {process.pid} on {platform.node()} is' in one['why']
    assert f'{CALL} {tmp_path} {" ".join(SLOW)} --resume auto' in one['fix']
    assert '1 finding needs your attention.' in read['headline']

    assert main(['report', str(tmp_path), '--lang', 'zh_cn']) == 0
    text = capsys.readouterr().out
    assert '被杀死，无结束记录' in text
    assert f'运行在第 {done} 次迭代后被杀死。' in text
    assert f'恢复这次训练：{CALL} ' in text


@pytest.mark.soak
def test_the_page_of_a_run_that_was_killed_too_often(
    project: Path, tmp_path: Path
) -> None:
    with training(project, tmp_path, '--max-restarts', '1') as process:
        for name in ('iter_2.pth', 'iter_8.pth'):
            wait_for(tmp_path / name, process)
            children(process)[0].kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 137
    assert 'All restarts (1) are used up.' in err
    (work,) = page_of(tmp_path)['works']
    assert work['figures']['state'] == 'killed'
    assert work['figures']['starts'] == 2
    assert work['figures']['duration'] > 0.5
    for lang, why in (('en', 'find out why'), ('zh_cn', '查明原因')):
        words = work['words'][lang]
        fixes = {one['id']: one['fix'] for one in words['findings']}
        assert why in fixes['bad_end']
        assert fixes['bad_end'].endswith('--resume auto')
        assert words['worst'] == 'error'
    entries = work['story']['entries']
    ends = [one['word'] for one in entries if one['kind'] == 'end']
    assert ends == ['killed', 'killed']
