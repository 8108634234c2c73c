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

from mmstable.cli.main import main
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
    ('words', 'message'),
    [
        (['config.py'], 'the following arguments are required: N'),
        (['config.py', '0'], "a number from 1 on is expected, got '0'"),
        (['config.py', '2', '--sead', '1'], 'unrecognized arguments: --sead'),
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
