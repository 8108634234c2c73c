"""Runs that are started again."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from mmstable.cli import supervise
from mmstable.cli import supervise as supervisor_module
from mmstable.cli.main import main
from mmstable.cli.supervise import (
    End,
    RestartPolicy,
    Supervisor,
    describe_end,
    is_final,
    shell_code,
    was_stopped,
)
from mmstable.errors import (
    CheckFailed,
    CheckpointError,
    PeerFailedError,
    TrainingDiverged,
    TrainingHangs,
    TrainingOutOfMemory,
    UsageError,
    WorkDirInUse,
)
from mmstable.messages import _
from tests.patience import wait_until


@pytest.mark.parametrize(
    'error',
    [
        UsageError,
        CheckFailed,
        CheckpointError,
        TrainingDiverged,
        TrainingOutOfMemory,
        WorkDirInUse,
    ],
)
def test_what_a_person_has_to_decide_is_final(error):
    assert is_final(error.exit_code)
    assert not was_stopped(error.exit_code)


@pytest.mark.parametrize('code', [-15, -2, 130, 143, 129, 140, 152, 25])
def test_what_was_stopped_stays_so(code):
    assert was_stopped(code)
    assert is_final(code)


@pytest.mark.parametrize(
    'code',
    [1, 137, -9, -11, -6, PeerFailedError.exit_code, TrainingHangs.exit_code],
)
def test_what_may_go_better_next_time(code):
    assert not is_final(code)


def test_ends_in_words():
    assert 'out of memory' in describe_end(-9)
    assert describe_end(-11) == 'killed by SIGSEGV'
    assert describe_end(23) == 'it hung (exit code 23)'
    assert describe_end(1) == 'exit code 1'
    assert 'holds the GIL' in describe_end(-9, is_stuck=True)
    assert (shell_code(-9), shell_code(3)) == (137, 3)


def test_two_restarts_without_progress_are_enough():
    policy = RestartPolicy(9, None)
    assert policy.why_not(None) is None
    first = policy.take()
    assert policy.why_not(None) is None
    assert policy.take() == 2 * first
    assert 'The last 2 restarts brought no new' in policy.why_not(None)


def test_progress_counts_anew():
    policy = RestartPolicy(9, 10)
    seconds = []
    for iteration in (10, 10, 20, 20, 30, 30):
        assert policy.why_not(iteration) is None
        seconds.append(policy.take())
    assert [one / seconds[0] for one in seconds] == [1, 2, 1, 2, 1, 2]
    assert policy.why_not(30) is not None


def test_restarts_are_used_up():
    policy = RestartPolicy(1, None)
    assert policy.why_not(2) is None
    policy.take()
    assert policy.why_not(4) == 'All restarts (1) are used up.'


class Scripted(Supervisor):
    """Runs a short script; every start is taken for progress.

    Args:
        script: What to run.
        folder: Where.
    """

    said: list[str] = []

    def __init__(self, script: str, folder: Path) -> None:
        self.starts = 0
        program = [sys.executable, '-c', textwrap.dedent(script)]
        super().__init__(program, ['config.py'], [folder])

    def _train(self, *args):
        self.starts += 1
        return super()._train(*args)

    def _newest(self):
        return None


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    monkeypatch.setattr(supervise, '_SHORTEST', 0.01)


@pytest.fixture(autouse=True)
def noted(monkeypatch):
    said: list[str] = []

    def tell(message: str, **fields: object) -> None:
        said.append(_(message, **fields))

    monkeypatch.setattr(Scripted, 'said', said)
    monkeypatch.setattr(supervise, 'tell', tell)


def test_a_crash_and_a_kill_are_followed_by_a_start(tmp_path):
    supervisor = Scripted(
        """
        import os, signal
        count = int(os.environ['MMSTABLE_RESTARTS'])
        print(os.environ['MMSTABLE_RESTARTED_AFTER'])
        if count == 0:
            raise SystemExit(1)
        if count == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert supervisor.run(5) == 0
    assert supervisor.starts == 3
    assert supervisor.said == [
        'the run ended: exit code 1. Restart 1 of 5 in 0 s, from where it was '
        'started from',
        'the run ended: killed by SIGKILL (out of memory? see `dmesg`). '
        'Restart 2 of 5 in 0 s, from where it was started from',
    ]


@pytest.mark.parametrize('code', [2, 3, 4, 5])
def test_a_mistake_is_not_repeated(tmp_path, code):
    supervisor = Scripted(f'raise SystemExit({code})', tmp_path)
    assert supervisor.run(5) == code
    assert supervisor.starts == 1
    (line,) = supervisor.said
    assert line.endswith('To start it again would not help.')


def test_no_progress_ends_it(tmp_path):
    supervisor = Scripted('raise SystemExit(1)', tmp_path)
    assert supervisor.run(9) == 1
    assert supervisor.starts == 3
    assert 'brought no new checkpoint' in supervisor.said[-1]


@pytest.mark.parametrize('name', ['SIGTERM', 'SIGHUP', 'SIGINT'])
def test_signals_reach_the_run(tmp_path, name):
    supervisor = Scripted(
        f"""
        import signal, sys, time
        from pathlib import Path
        signal.signal(signal.{name}, lambda *args: sys.exit(128 + args[0]))
        Path({str(tmp_path)!r}, 'ready').touch()
        # One nap could begin right after the signal has come.
        for _ in range(1200):
            time.sleep(0.05)
        """,
        tmp_path,
    )
    number = getattr(signal, name)

    def send():
        wait_until((tmp_path / 'ready').exists)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    before = signal.getsignal(number)
    assert supervisor.run(5) == 128 + number
    thread.join()
    assert supervisor.starts == 1
    assert signal.getsignal(number) is before


def test_a_signal_during_a_start_is_not_lost(tmp_path, monkeypatch):
    supervisor = Scripted('import time; time.sleep(60)', tmp_path)
    start = supervisor_module.Processes

    def start_and_send(*args):
        one = start(*args)
        signal.raise_signal(signal.SIGTERM)
        return one

    monkeypatch.setattr(supervisor_module, 'Processes', start_and_send)
    assert supervisor.run(5) == 128 + signal.SIGTERM


def test_a_run_without_a_heartbeat_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, '_GRACE', 0.2)
    supervisor = Scripted(
        """
        import os, time
        from pathlib import Path
        if os.environ['MMSTABLE_RESTARTS'] == '0':
            Path(os.environ['MMSTABLE_SUPERVISOR_FILE']).write_text('0.5 step')
            time.sleep(60)
        """,
        tmp_path,
    )
    assert supervisor.run(1) == 0
    assert supervisor.said[0].startswith('the run ended: no heartbeat')


def test_a_stopped_run_is_left_alone(tmp_path, monkeypatch):
    # Stopped for twice as long as it may be silent, and looked at often: a
    # busy machine delays the looks as well.
    monkeypatch.setattr(supervise, '_INTERVAL', 0.05)
    monkeypatch.setattr(supervise, '_GRACE', 0.5)
    supervisor = Scripted(
        """
        import os, signal, subprocess, sys
        from pathlib import Path
        life = Path(os.environ['MMSTABLE_SUPERVISOR_FILE'])
        subprocess.Popen([sys.executable, '-c', (
            'import os, signal, time; from pathlib import Path\\n'
            f'stat = Path("/proc/{os.getpid()}/stat")\\n'
            'while ") T " not in stat.read_text(): time.sleep(0.01)\\n'
            f'time.sleep(2); os.kill({os.getpid()}, signal.SIGCONT)')])
        life.write_text('0.5 step')
        os.kill(os.getpid(), signal.SIGSTOP)
        life.unlink()
        """,
        tmp_path,
    )
    assert supervisor.run(0) == 0
    assert supervisor.said == []


def test_arguments_of_later_starts(tmp_path, monkeypatch):
    supervisor = Scripted('', tmp_path)
    supervisor._words = ['c.py', '--load-from', 'w.pth', '--seed', '1']
    assert supervisor._arguments() == supervisor._words
    saved = tmp_path / 'iter_2.pth'
    saved.touch()

    class Found:
        path, iteration = saved, 2

    monkeypatch.setattr(supervisor, '_newest', lambda: Found)
    assert supervisor._arguments() == [
        *('c.py', '--seed', '1', '--resume', 'auto')
    ]


def test_ranks_are_restarted_by_another_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('RANK', '0')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'c.py').touch()
    words = ['train', 'c.py', '--launcher', 'pytorch', '--max-restarts', '3']
    assert main(words) == 2
    err = capsys.readouterr().err
    assert '`mmstable dist-train CONFIG N --max-restarts 3`' in err


def test_the_same_failure_twice_is_enough():
    failure = dict(rank=1, node='a', iteration=7, error='ValueError: no')
    end = End(1, failure=failure)
    policy = RestartPolicy(9, 0)
    assert policy.why_not(5, end) is None
    policy.take()
    # Another iteration, or another error, is another failure.
    assert policy.why_not(6, End(1, failure={**failure, 'iteration': 8})) is (
        None
    )
    assert policy.why_not(7, end) is None
    # A lost rank says nothing about the run.
    lost = End(1, failure={**failure, 'iteration': -1})
    assert policy.why_not(8, lost) is None
    assert policy.why_not(9, lost) is None
    assert policy.why_not(10, end) is None
    assert 'failed twice in the same way' in policy.why_not(11, end)
    assert str(end) == 'rank 1 (a) failed: ValueError: no'


def test_a_number_of_restarts(capsys):
    assert main(['train', 'c.py', '--max-restarts', 'x']) == 2
    assert "a number from 0 on is expected, got 'x'" in capsys.readouterr().err


def test_a_bad_config_is_told_without_a_start(tmp_path, capsys):
    words = ['train', str(tmp_path / 'none.py'), '--max-restarts', '3']
    assert main(words) == 2
    assert 'no config file' in capsys.readouterr().err
