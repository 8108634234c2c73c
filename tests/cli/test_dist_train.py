"""``mmstable dist-train``: several processes, several machines, restarts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from mmstable.cli import supervise
from mmstable.cli.main import build_parsers, main
from mmstable.cli.supervise import End
from mmstable.dist import store
from tests.cli.runs import ROOT, console_script, iterations, run
from tests.patience import wait_until

pytestmark = pytest.mark.usefixtures('in_project')


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


class Started:
    """Processes that end at once, and what was asked for."""

    found: list[tuple[list[str], list[dict[str, str]]]] = []
    ends: list[End] = []

    def __init__(
        self,
        command: Sequence[str],
        variables: Sequence[dict[str, str]],
        folder: Path,
    ) -> None:
        self.found.append((list(command), list(variables)))

    def wait(self) -> End:
        return self.ends.pop(0) if self.ends else End(0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Started, 'found', found)
    monkeypatch.setattr(Started, 'ends', [])
    monkeypatch.setattr(supervise, 'Processes', Started)
    for name in ('NNODES', 'NODE_RANK', 'MASTER_ADDR', 'OMP_NUM_THREADS'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PORT', free_port())
    return found


def test_one_machine(started: list[Any]) -> None:
    assert main(['dist-train', 'config.py', '3', '--amp', '--resume']) == 0
    ((command, variables),) = started
    assert command == [
        *(sys.executable, '-m', 'mmstable', 'train', 'config.py'),
        *('--launcher', 'pytorch', '--amp', '--resume'),
    ]
    assert [own['RANK'] for own in variables] == ['0', '1', '2']
    assert [own['LOCAL_RANK'] for own in variables] == ['0', '1', '2']
    (first, *others) = variables
    assert first['WORLD_SIZE'] == first['LOCAL_WORLD_SIZE'] == '3'
    assert first['MASTER_ADDR'] == '127.0.0.1'
    # The ranks meet at another port than the supervisors.
    assert first['MASTER_PORT'] not in ('0', os.environ['PORT'])
    assert {own['MASTER_PORT'] for own in others} == {first['MASTER_PORT']}
    assert first['OMP_NUM_THREADS'] == '1'


def test_every_attempt_has_its_number_and_its_store(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(supervise, '_SHORTEST', 0.01)
    failure = dict(rank=1, node='a', iteration=7, error='ValueError: no')
    Started.ends[:] = [End(1, failure=failure)]
    words = ['dist-train', 'config.py', '2', '--max-restarts', '3']
    assert main([*words, '--work-dir', 'w']) == 0
    assert [v[0]['MMSTABLE_RESTARTS'] for _, v in started] == ['0', '1']
    assert len({v[0]['MASTER_PORT'] for _, v in started}) == 2
    assert [v[1]['MMSTABLE_RESTARTED_AFTER'] for _, v in started] == [
        '',
        'rank 1 (a) failed: ValueError: no',
    ]
    assert '--max-restarts' not in started[0][0]
    assert 'Restart 1 of 3' in capsys.readouterr().err


def test_a_forged_plan_is_not_followed(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(store, '_REPORTED', set())
    monkeypatch.setattr(
        store, 'print_log', lambda line, **kwargs: said.append(line)
    )
    port = free_port()
    server = TCPStore(
        '127.0.0.1', int(port), is_master=True, wait_for_workers=False
    )
    first = PrefixStore('mmstable/0/supervisors', server)
    plan = dict(nodes=[[0, 2], [1, 2]], port=5, why='', code=0)
    first.set('attempt', '"0"')
    first.set('plan/0', json.dumps({**plan, 'nodes': [[1, -2]], 'more': 1}))

    def lead() -> None:
        wait_until(lambda: len(said) == 1)
        first.set('attempt', '0')
        wait_until(lambda: len(said) == 2)
        first.set('plan/0', json.dumps(plan))

    thread = threading.Thread(target=lead)
    thread.start()
    words = ['config.py', '2', '--nnodes', '2', '--node-rank', '1']
    words += ['--master-addr', '127.0.0.1', '--port', port]
    assert main(['dist-train', *words]) == 0
    thread.join()
    ((_, variables),) = started
    assert [own['RANK'] for own in variables] == ['2', '3']
    assert "under 'attempt' was not written by a rank" in said[0]
    assert "under 'plan/0' was not written by a rank" in said[1]


@pytest.mark.parametrize(
    'words',
    [
        ['config.py', '2', '--port', '{}', '--work-dir', 'a', '--seed=3'],
        ['config.py', '2', '--work-dir', 'a', '--port={}', '--seed=3'],
        ['config.py', '--port', '{}', '2', '--work-dir', 'a', '--seed=3'],
        ['--port=99', 'config.py', '2', '--work-dir', 'a', '--seed=3']
        + ['--port', '{}'],
    ],
)
def test_options_of_the_launcher_may_come_later(
    words: list[str], started: list[Any]
) -> None:
    port = free_port()
    assert main(['dist-train', *(word.format(port) for word in words)]) == 0
    ((command, variables),) = started
    again = variables[0]['MMSTABLE_DIST_TRAIN']
    assert again == f'mmstable dist-train config.py 2 --port {port}'
    assert command[5:] == [
        *('--launcher', 'pytorch', '--work-dir', 'a', '--seed=3')
    ]


def test_values_of_other_options_are_left_alone(started: list[Any]) -> None:
    options = ['--cfg-options', 'a.port=-1', 'b="--port 5"', '--seed', '-5']
    options += ['--nnodes', '1:1', '--resume']
    assert main(['dist-train', 'config.py', '2', *options]) == 0
    assert started[0][0][7:] == [*options[:5], '--resume']


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
        (['config.py', '2', '--nnodes', '3:2'], 'the fewest machines come'),
        (['config.py', '2', '--nnodes', '2:x'], 'from 1 on is expected, got'),
        (['config.py', '2', '--node-rank', '1'], 'it is 0 to 0'),
    ],
)
def test_a_mistake_is_told_once(
    words: list[str],
    message: str,
    started: list[Any],
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
    door = [*console_script(tmp_path), 'dist-train', '--port', free_port()]
    words = ['config.py', '2', '--work-dir', str(tmp_path / 'a b')]
    code, _, err = run([*door, *words], project)
    assert code == 0, err
    assert iterations(tmp_path / 'a b') == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ('code', 'is_crash'), [(-11, True), (-7, True), (-9, False), (9, False)]
)
def test_a_crash_names_the_doctor(
    code: int,
    is_crash: bool,
    started: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    Started.ends[:] = [End(code)]
    expected = abs(code) + 128 * (code < 0)
    assert main(['dist-train', 'config.py', '2']) == expected
    assert ('`mmstable doctor`' in capsys.readouterr().err) is is_crash


FAULT = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.dist import get_rank
from pathlib import Path


@HOOKS.register_module()
class FailOnce(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        flag = Path(runner.work_dir, 'failed')
        if runner.iter == 2 and get_rank() == 1 and not flag.exists():
            flag.touch()
            raise ValueError('a broken sample')
"""


@pytest.mark.dist
@pytest.mark.soak
def test_two_machines_start_again_together(
    project: Path, tmp_path: Path
) -> None:
    (project / 'fail_once.py').write_text(FAULT)
    (project / 'failing.py').write_text(
        "_base_ = ['config.py']\n"
        "custom_imports = dict(imports=['toy_tool_project', 'fail_once'])\n"
        "custom_hooks = [dict(type='FailOnce')]\n"
    )
    words = ['failing.py', '1', '--nnodes', '2', '--port', free_port()]
    words += ['--max-restarts', '2', '--work-dir', str(tmp_path / 'work')]
    machines = [
        subprocess.Popen(
            [sys.executable, '-m', 'mmstable', 'dist-train', *words]
            + ['--node-rank', str(number)],
            cwd=project,
            env={**os.environ, 'PYTHONPATH': f'{project}:{ROOT}'},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [one.communicate(timeout=120)[0] for one in machines]
    codes = [one.returncode for one in machines]
    assert codes == [0, 0], ''.join(outputs)[-5000:]
    # Both name the same failure.
    for output in outputs:
        assert 'the run ended: rank 1' in output
        assert 'failed: ValueError: a broken sample' in output
    assert 'Restart 1 of 2' in outputs[0]
    assert 'resuming from' in outputs[0]
    assert (tmp_path / 'work' / 'iter_4.pth').is_file()
