"""``mmstable probe``, through the front door."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.cli.main import main
from mmstable.cli.probe import Rank, _rank_that_is_late
from mmstable.io.lock import NAME
from mmstable.probe import server
from mmstable.probe.server import ProbeServer
from tests.cli.runs import ROOT, start
from tests.patience import wait_until

STATUS = dict(
    pid=os.getpid(),
    host='here',
    rank=0,
    world_size=1,
    iteration=120,
    max_iters=1000,
    phase='data',
    line='',
    lr={'optim_wrapper': 0.001},
    lr_factors={'optim_wrapper': 0.1},
    clip={'optim_wrapper': None},
    loss_scale={'optim_wrapper': 512.0},
    skipped={'optim_wrapper': 1},
    checkpoint='',
    probing=False,
    traces=False,
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / 'sockets'
    monkeypatch.setenv(server.VARIABLE, str(path))
    return path


@pytest.fixture
def serve(tmp_path):
    """A process that answers what it is told to."""
    servers = []

    def begin(**answers):
        work_dir = str(tmp_path / 'run')
        Path(work_dir).mkdir(exist_ok=True)
        status = dict(STATUS, work_dir=work_dir, log_dir=work_dir)
        commands = dict(status=lambda request: {**status})
        for name, answer in answers.items():
            commands[name] = lambda request, answer=answer: answer
        servers.append(ProbeServer(commands, lambda: False))
        return work_dir

    yield begin
    for one in servers:
        one.close()


@pytest.mark.parametrize('target', ['folder', 'pid'])
def test_status(serve, target, capsys):
    work_dir = serve()
    target = work_dir if target == 'folder' else str(os.getpid())
    assert main(['probe', target]) == 0
    assert capsys.readouterr().out == (
        f'rank 0 (pid {os.getpid()}): iteration 120 of 1000, in '
        "'data'\n  optim_wrapper: lr 0.001 (x0.1 of the schedule), clip -, "
        'loss scale 512, 1 bad step skipped\n  no checkpoint yet\n'
    )


@pytest.mark.parametrize(
    ('probing', 'hint'),
    [
        (False, '--probe probing`, after'),
        (True, 'set PROBING_TORCH_PROFILING'),
    ],
)
def test_modules_that_nobody_measures(serve, probing, hint, capsys):
    status = dict(STATUS, work_dir='', log_dir='', probing=probing)
    serve(status=status, speed=0.5)
    assert main(['probe', str(os.getpid()), 'slow']) == 0
    out = capsys.readouterr().out
    assert '0.5' in out
    assert hint in out


def test_the_process_that_has_started_it(serve, capsys):
    serve()
    assert main(['probe', str(os.getppid()), 'ranks']) == 0
    assert 'iteration 120 of 1000' in capsys.readouterr().out


@pytest.mark.parametrize(
    'words',
    [
        ['RUN', 'lr', 'x0.5', '--lang', 'zh_cn'],
        ['RUN', 'lr', '--lang', 'zh_cn', 'x0.5'],
        ['RUN', '--lang', 'zh_cn', 'lr', 'x0.5'],
        ['--lang', 'zh_cn', 'RUN', '--rank', '0', 'lr', 'x0.5'],
        ['--lang=zh_cn', '--rank=0', 'RUN', 'lr', 'x0.5', '--quiet'],
    ],
)
def test_options_stand_where_they_like(serve, words, capsys):
    done = dict(done=True, value={'a': 0.5}, iteration=3, within=0)
    work_dir = serve(set_lr=done)
    words = [work_dir if word == 'RUN' else word for word in words]
    assert main(['probe', *words]) == 0
    assert capsys.readouterr().out == 'rank 0：已完成：a: 0.5\n'


@pytest.mark.parametrize('lang', ['en', 'zh_cn'])
def test_help_names_all_arguments(lang, capsys):
    assert main(['probe', '--help', '--lang', lang]) == 0
    out = capsys.readouterr().out
    usage = out.partition('\n\n')[0]
    assert usage.startswith('usage: mmstable probe [-h] [--rank N]')
    assert 'PID|WORK_DIR [RECIPE] [VALUE ...]' in ' '.join(usage.split())


@pytest.mark.parametrize(
    ('words', 'error'),
    [
        (['nowhere'], "'nowhere' is neither a process number nor a folder"),
        (['99999999'], "'99999999' is no run that can be looked into. Start"),
        (['.'], "'.' is no run that can be looked into. Start it with"),
        (['RUN', 'hnag'], "'hnag'"),
        (['RUN', 'nan', '3'], "'nan' takes no value, got 3"),
        (['RUN', 'lr', '1', '2'], "'lr' takes one value: lr 0.001, lr x0.1"),
        (['RUN', 'lr', 'low'], 'must be a number above 0, such as 0.001'),
        (['RUN', 'clip', 'low'], 'the clip limit must be a number above 0'),
        (['RUN', 'sql'], "'sql' takes one value: sql"),
        (['RUN', '--rank', '3'], 'no rank 3 on this machine, there is 0'),
    ],
)
def test_mistakes_are_one_line(serve, words, error, capsys):
    work_dir = serve()
    words = [work_dir if word == 'RUN' else word for word in words]
    assert main(['probe', *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith('mmstable probe: error: ')
    assert error in captured.err
    assert captured.err.count('\n') == 1


def test_what_a_run_cannot_do_is_told(serve, capsys):
    assert main(['probe', serve(), 'save']) == 1
    err = capsys.readouterr().err
    assert err.startswith('mmstable probe: error: `command` must be one of')


def test_a_run_on_another_machine_is_named(tmp_path, capsys):
    owner = dict(host='node7', pid=77, space='', born='')
    (tmp_path / NAME).write_text(json.dumps(owner))
    assert main(['probe', str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert 'though process 77 on node7 trains there' in err


@pytest.fixture
def silent(folder):
    """A socket of this process that nobody serves."""
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / f'{os.getpid()}-0123abcd.sock'))
        one.listen()
        yield one


def test_a_process_that_was_killed_is_not_asked(silent, tmp_path, capsys):
    silent.close()
    assert server.find_sockets(os.getpid())
    assert main(['probe', str(tmp_path)]) == 2
    assert 'is no run that can be' in capsys.readouterr().err


def test_a_process_that_does_not_answer(silent, monkeypatch, capsys):
    monkeypatch.setattr('mmstable.probe.server.ask.__defaults__', (1,))
    assert main(['probe', str(os.getpid())]) == 1
    err = capsys.readouterr().err
    assert 'does not answer (timed out)' in err
    assert 'py-spy dump' in err


def test_changes(serve, capsys):
    done = dict(done=True, value={'a': 0.5}, iteration=3, within=0)
    work_dir = serve(set_lr=done, save=done, set_clip={**done, 'within': 20})
    assert main(['probe', work_dir, 'lr', 'x0.5']) == 0
    assert main(['probe', work_dir, 'clip', '0.5']) == 0
    assert main(['probe', work_dir, 'save']) == 0
    assert capsys.readouterr().out.splitlines() == [
        'rank 0: done: a: 0.5',
        'all ranks will have it within 20 iterations: a: 0.5',
        'asked for after iteration 3; the log says what was saved, and where',
    ]


def test_stacks_are_those_of_the_rank_that_others_wait_for():
    def rank(number, iteration, phase):
        status = dict(rank=number, iteration=iteration, phase=phase)
        return Rank(number, Path(), status)

    waits, late = rank(0, 9, 'backward'), rank(1, 9, 'forward')
    assert _rank_that_is_late([waits, late]) is late
    behind = rank(1, 8, 'step')
    assert _rank_that_is_late([waits, behind]) is behind
    assert _rank_that_is_late([waits]) is waits


@pytest.mark.soak
def test_output_that_nobody_reads_is_no_error(serve):
    lines = ['x' * 100] * 10000
    work_dir = serve(stacks=dict(threads=[('main', lines)], children=[]))
    words = ' '.join([sys.executable, '-m', 'mmstable', 'probe', work_dir])
    done = subprocess.run(
        ['bash', '-c', f'{words} stacks | head -n 1; exit ${{PIPESTATUS[0]}}'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f'stacks of rank 0 (pid {os.getpid()}):\n'
    assert (done.returncode, done.stderr) == (141, '')


def test_a_run_with_the_option_probe_is_found(project, tmp_path, capfd):
    run = tmp_path / 'run'
    run.mkdir()
    words = ['train', 'config.py', '--probe', '--work-dir', str(run)]
    slow = ['--cfg-options', 'model.nap=0.05', 'train_cfg.max_iters=9999']
    # A checkpoint that is due anyway would be the one that is saved.
    slow.append('default_hooks.checkpoint.interval=9999')
    process = start(
        [sys.executable, '-m', 'mmstable', *words, *slow],
        project,
        # Not a copy of another interpreter.
        path=f'{project}:{ROOT}',
    )
    try:
        wait_until(lambda: main(['probe', str(run)]) == 0, 90, process=process)
        assert main(['probe', str(run), 'stop']) == 0
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert list(run.glob('emergency_iter_*.pth'))
    assert 'asked for after iteration' in capfd.readouterr().out
