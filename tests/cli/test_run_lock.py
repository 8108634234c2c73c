"""Two runs in one work dir."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mmstable.errors import WorkDirInUse
from mmstable.io import lock
from mmstable.io.lock import NAME, check_owned, locked, read_owner
from mmstable.io.process import ProcessIdentity
from tests.cli.runs import ROOT, start
from tests.cli.score_project import saved, train
from tests.patience import wait_until


def say_nothing(text: str) -> None:
    pass


def write(folder: Path, owner: ProcessIdentity) -> None:
    (folder / NAME).write_text(json.dumps(asdict(owner)))


def dead() -> ProcessIdentity:
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    return replace(ProcessIdentity.of_this_process(), pid=child.pid)


@pytest.mark.usefixtures('in_score_project')
def test_a_second_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = dict(train_cfg__max_iters=2)
    with locked([tmp_path], False, say_nothing):
        assert train(tmp_path, **short) == 5
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert (
            f"error: '{tmp_path}' is in use: process {os.getpid()} on "
        ) in error
        assert 'Choose another --work-dir, or stop that run.' in error
        assert saved(tmp_path) == []
        assert train(tmp_path, '--force', **short) == 0
    assert not (tmp_path / NAME).exists()
    assert train(tmp_path, '--resume') == 0
    assert not (tmp_path / NAME).exists()


@pytest.mark.usefixtures('in_score_project')
def test_runs_that_share_an_out_dir_are_refused(tmp_path: Path) -> None:
    out = dict(default_hooks__checkpoint__out_dir=tmp_path / 'out')
    with locked([tmp_path / 'out' / 'run'], False, say_nothing):
        assert train(tmp_path / 'a' / 'run', **out) == 5


def test_a_living_process_is_respected_and_a_killed_one_is_not(
    project: Path, in_project: None, tmp_path: Path
) -> None:
    words = ['train', 'config.py', '--work-dir', str(tmp_path)]
    slow = ['--cfg-options', 'model.nap=0.2', 'train_cfg.max_iters=1000']
    first = start(
        [sys.executable, '-m', 'mmstable', *words, *slow],
        project,
        path=f'{ROOT}:{project}',
    )
    from mmstable.cli.main import main

    try:
        wait_until((tmp_path / 'iter_2.pth').exists, process=first)
        assert main(words) == 5
        first.send_signal(signal.SIGKILL)
        first.communicate()
        assert (tmp_path / NAME).exists()
        assert main([*words, '--resume']) == 0
    finally:
        first.kill()
        first.communicate()


def test_a_lock_of_a_dead_process_is_taken_over_at_once(
    tmp_path: Path,
) -> None:
    write(tmp_path, dead())
    # Before it waits, it says so.
    said: list[str] = []
    with locked([tmp_path], False, said.append):
        assert read_owner(tmp_path / NAME).pid == os.getpid()
    assert said == []


def test_another_process_with_the_same_number_is_not_the_owner(
    tmp_path: Path,
) -> None:
    own = ProcessIdentity.of_this_process()
    if not own.born:
        pytest.skip('this system does not tell when a process began')
    # As in a container that was started again.
    for pid in (os.getpid(), os.getppid()):
        write(tmp_path, replace(own, pid=pid, born='1'))
        with locked([tmp_path], False, say_nothing):
            pass


@pytest.mark.parametrize('change', [dict(host='other'), dict(space='other')])
def test_an_owner_elsewhere_shows_life_or_is_gone(
    tmp_path: Path, change: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, 'PATIENCE', 0.6)
    write(tmp_path, replace(ProcessIdentity.of_this_process(), **change))
    lines: list[str] = []
    with locked([tmp_path], False, lines.append):
        pass
    assert 'waiting 0.6 s for a heartbeat' in lines[0]

    write(tmp_path, replace(ProcessIdentity.of_this_process(), **change))
    is_over = threading.Event()

    def touch() -> None:
        while not is_over.wait(0.1):
            os.utime(tmp_path / NAME)

    owner = threading.Thread(target=touch)
    owner.start()
    with (
        pytest.raises(WorkDirInUse, match='is in use'),
        locked([tmp_path], False, say_nothing),
    ):
        pass
    is_over.set()
    owner.join()


def test_a_lock_that_another_run_has_taken_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, 'BEAT', 0.05)
    check_owned(look=True)
    own = ProcessIdentity.of_this_process()
    with locked([tmp_path], False, say_nothing):
        check_owned(look=True)
        # A file that vanishes, as on a disk that is away, says nothing.
        (tmp_path / NAME).unlink()
        check_owned(look=True)
        write(tmp_path, replace(own, host='other', pid=7))
        before = (tmp_path / NAME).stat().st_mtime_ns
        with pytest.raises(WorkDirInUse, match='process 7 on other has taken'):
            check_owned(look=True)
        # The thread does not keep it alive, and notices by itself.
        time.sleep(0.2)
        assert (tmp_path / NAME).stat().st_mtime_ns == before
        with pytest.raises(WorkDirInUse, match='This run stops'):
            check_owned()
    # It belongs to the other run.
    assert read_owner(tmp_path / NAME).pid == 7
    check_owned(look=True)


@pytest.mark.parametrize('text', ['', '{}', '[]', '{"pid": "x"}', 'null'])
def test_a_lock_that_says_nothing_is_waited_for(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, 'PATIENCE', 0.3)
    (tmp_path / NAME).write_text(text)
    with locked([tmp_path], False, say_nothing):
        pass


def test_only_one_of_many_gets_a_stale_lock(tmp_path: Path) -> None:
    write(tmp_path, dead())
    won: list[int] = []
    barrier, release = threading.Barrier(8), threading.Event()

    def try_it(number: int) -> None:
        barrier.wait()
        try:
            with locked([tmp_path], False, say_nothing):
                won.append(number)
                release.wait(20)
        except WorkDirInUse:
            pass

    threads = [threading.Thread(target=try_it, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    # The last one alive may hold the lock, but not have said so yet.
    while sum(t.is_alive() for t in threads) > (1 if won else 0):
        time.sleep(0.01)
    assert len(won) == 1
    release.set()
    for thread in threads:
        thread.join()


def test_a_folder_that_cannot_be_locked_is_said(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    lines: list[str] = []
    with locked([tmp_path / 'file'], False, lines.append):
        pass
    assert f"cannot lock '{tmp_path}/file'" in lines[0]
