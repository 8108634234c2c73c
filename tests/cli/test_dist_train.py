"""``mmstable dist-train``: torchrun without a checkout."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)

from mmstable.cli.main import build_parsers, main
from tests.cli.runs import console_script, iterations, run

pytestmark = pytest.mark.usefixtures('in_project')


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of torchrun."""
    found: list[list[str]] = []
    monkeypatch.setattr(torch.distributed.run, 'main', found.append)
    for name in ('NNODES', 'NODE_RANK', 'MASTER_ADDR', 'PORT'):
        monkeypatch.delenv(name, raising=False)
    return found


def test_one_machine(started: list[list[str]]) -> None:
    assert main(['dist-train', 'config.py', '8', '--amp', '--resume']) == 0
    assert started == [
        ['--nnodes=1', '--node_rank=0', '--master_addr=127.0.0.1']
        + ['--master_port=29500', '--nproc_per_node=8', '-m', 'mmstable']
        + ['train', 'config.py', '--launcher', 'pytorch', '--amp', '--resume']
    ]


def test_several_machines(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('MASTER_ADDR', 'node1')
    words = ['--nnodes', '2', '--node-rank', '1', '--port', '1234']
    language = ['--lang', 'zh_cn']
    assert main(['dist-train', *words, *language, 'config.py', '4']) == 0
    assert started[0][:5] == [
        '--nnodes=2',
        '--node_rank=1',
        '--master_addr=node1',
        '--master_port=1234',
        '--nproc_per_node=4',
    ]
    assert started[0][-2:] == language


@pytest.mark.parametrize(
    'words',
    [
        ['config.py', '2', '--port', '1234', '--work-dir', 'a', '--seed=3'],
        ['config.py', '2', '--work-dir', 'a', '--port=1234', '--seed=3'],
        ['config.py', '--port', '1234', '2', '--work-dir', 'a', '--seed=3'],
        ['--port=99', 'config.py', '2', '--work-dir', 'a', '--seed=3']
        + ['--port', '1234'],
    ],
)
def test_options_of_torchrun_may_come_later(
    words: list[str], started: list[list[str]]
) -> None:
    assert main(['dist-train', *words]) == 0
    assert started[0][3:5] == ['--master_port=1234', '--nproc_per_node=2']
    rest = ['--launcher', 'pytorch', '--work-dir', 'a', '--seed=3']
    assert started[0][7:] == ['train', 'config.py', *rest]


def test_values_of_other_options_are_left_alone(
    started: list[list[str]],
) -> None:
    options = ['--cfg-options', 'a.port=-1', 'b="--port 5"', '--seed', '-5']
    options += ['--nnodes', '2', '--resume']
    assert main(['dist-train', 'config.py', '2', *options]) == 0
    assert started[0][0] == '--nnodes=2'
    assert started[0][11:] == [*options[:5], '--resume']


def test_no_option_means_two_things() -> None:
    parsers = build_parsers()[1]
    launch = set(parsers['dist-train'].options())
    both = launch & set(parsers['train'].options())
    assert both == {'-h', '--help', '--lang', '--quiet'}


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['config.py'], 'arguments are required: PROCESSES (see --help)'),
        (['config.py', '0'], "a number from 1 on is expected, got '0'"),
        (['config.py', '2', '--sead', '1'], 'unrecognized arguments: --sead'),
        (['config.py', '2', '--prt', '1'], 'Did you mean --port'),
        (['config.py', '2', '--port', 'x'], "from 1 on is expected, got 'x'"),
        (['confg.py', '2'], 'Did you mean config.py?'),
    ],
)
def test_a_mistake_is_told_once(
    words: list[str],
    message: str,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(['dist-train', *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count('\n') == 1
    assert not started


def test_a_port_that_is_taken_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as other:
        other.bind(('127.0.0.1', 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(['dist-train', 'config.py', '2', '--port', port]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f'port {port} is taken' in last
    assert last.startswith('mmstable dist-train: error: ')


@pytest.mark.dist
def test_two_processes_train(project: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    door = [*console_script(tmp_path), 'dist-train', '--port', str(port)]
    words = ['config.py', '2', '--work-dir', str(tmp_path / 'a b')]
    code, _, err = run([*door, *words], project)
    assert code == 0, err
    assert iterations(tmp_path / 'a b') == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ('code', 'is_crash'), [(-11, True), (-7, True), (-15, False), (9, False)]
)
def test_a_crash_names_the_doctor(
    code: int,
    is_crash: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def crash(words: list[str]) -> None:
        failure = ProcessFailure(0, 1234, code, '/no/error/file')
        raise ChildFailedError('mmstable', {1: failure})

    monkeypatch.setattr(torch.distributed.run, 'main', crash)
    assert main(['dist-train', 'config.py', '2']) == abs(code) + 128 * (
        code < 0
    )
    assert ('`mmstable doctor`' in capsys.readouterr().err) is is_crash
