"""The ready files for schedulers, and what they rely on."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmstable import errors
from mmstable.cli import train
from mmstable.cli.main import build_parser, main
from mmstable.cli.supervise import is_final, was_stopped
from mmstable.errors import EXIT_CODES, exit_code_for
from mmstable.hooks import emergency_checkpoint_hook
from tests.golden.outside import exit_codes

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'examples/schedulers'
FINAL = {2, 3, 4, 5, 9, 10}


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding='utf-8'))


def check_command(command: list[str]) -> Any:
    """Parse the command as mmstable would."""
    at = command.index('mmstable')
    name, *words = command[at + 1 :]
    args = build_parser(name).parse_args(words)
    if name == 'dist-train':
        build_parser('train').parse_args(
            [args.config, *_without_launcher(args.options)]
        )
    return args


def _without_launcher(words: list[str]) -> list[str]:
    text = shlex.join(words)
    return shlex.split(
        re.sub(r'--(nnodes|node-rank|master-addr|port) \S+', '', text)
    )


def shell(container: dict[str, Any]) -> list[str]:
    assert container['command'] == ['sh', '-c']
    # A variable of the machine's number.
    (script,) = container['args']
    return shlex.split(re.sub(r'"\$\w+"', '1', script))


def test_the_final_exit_codes() -> None:
    codes = {code for code in exit_codes().values() if is_final(code)}
    # Commands other than `train` have codes of their own.
    run = {code for code in codes if code and not was_stopped(code)}
    assert run == FINAL


def test_kubernetes() -> None:
    job = load('job.yaml')
    rules = job['spec']['podFailurePolicy']['rules']
    pod = job['spec']['template']['spec']
    (container,) = pod['containers']
    by_code = [one for one in rules if 'onExitCodes' in one]
    for rule in by_code:
        assert rule['onExitCodes']['containerName'] == container['name']
    failing, ignored = (one['onExitCodes']['values'] for one in by_code)
    assert by_code[0]['action'] == 'FailJob'
    assert set(failing) == FINAL
    assert by_code[1]['action'] == 'Ignore'
    assert not FINAL & set(ignored)
    # A job with a policy may not restart containers by itself.
    assert pod['restartPolicy'] == 'Never'
    args = check_command(container['command'])
    assert args.resume == 'auto'
    (heartbeat,) = container['env']
    assert heartbeat['name'] == 'MMSTABLE_HEARTBEAT_FILE'
    for probe in ('startupProbe', 'livenessProbe'):
        assert heartbeat['value'] in str(container[probe]['exec']['command'])


def test_the_liveness_probe_tells_old_from_new(tmp_path: Path) -> None:
    job = load('job.yaml')
    (container,) = job['spec']['template']['spec']['containers']
    *start, script = container['livenessProbe']['exec']['command']
    path = tmp_path / 'heartbeat'
    command = [*start, script.replace('/tmp/heartbeat', str(path))]
    assert subprocess.run(command, check=False).returncode != 0
    path.write_text('inf data')
    assert subprocess.run(command, check=False).returncode == 0
    os.utime(path, (1, 1))
    assert subprocess.run(command, check=False).returncode != 0


def test_kubeflow() -> None:
    job = load('pytorchjob.yaml')
    for replica in job['spec']['pytorchReplicaSpecs'].values():
        assert replica['restartPolicy'] == 'ExitCode'
        (container,) = replica['template']['spec']['containers']
        # The operator looks for this name.
        assert container['name'] == 'pytorch'
        command = shell(container)
        assert '--exit-codes kubeflow' in shlex.join(command)
        assert check_command(command).processes == 8


def test_volcano() -> None:
    job = load('volcano.yaml')
    (task,) = job['spec']['tasks']
    aborted = {
        one['exitCode']
        for one in task['policies']
        if one['action'] == 'AbortJob'
    }
    assert aborted == FINAL
    (container,) = task['template']['spec']['containers']
    check_command(shell(container))
    assert task['replicas'] == job['spec']['minAvailable'] == 2


def test_slurm() -> None:
    path = FOLDER / 'train.sbatch'
    subprocess.run(['bash', '-n', str(path)], check=True)
    text = path.read_text(encoding='utf-8')
    options = re.findall(r'^#SBATCH --([a-z-]+)', text, re.M)
    assert {'requeue', 'time', 'signal', 'nodes'} <= set(options)
    script = text.rpartition('exec srun')[2].replace('\\\n', ' ')
    args = check_command(shlex.split(script))
    assert (args.launcher, args.resume, args.requeue) == (
        *('slurm', 'auto', True),
    )


@pytest.mark.parametrize(
    ('code', 'expected'),
    [
        (0, 0),
        *((code, code) for code in (1, *sorted(FINAL))),
        *((code, 138) for code in (12, 20, 21, 22, 23, 24, 25)),
        *((code, 138) for code in (129, 130, 138, 140, 143, 152)),
    ],
)
def test_exit_codes_of_kubeflow(
    code: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(EXIT_CODES, raising=False)
    assert exit_code_for(code) == code
    monkeypatch.setenv(EXIT_CODES, 'kubeflow')
    assert exit_code_for(code) == expected


@pytest.mark.parametrize(
    ('text', 'seconds'),
    [('23h50m', 85800), ('90m', 5400), ('1d2h', 93600), ('600s', 600)],
)
def test_times(text: str, seconds: int) -> None:
    args = build_parser('train').parse_args(['c.py', '--max-time', text])
    assert args.max_time == seconds


@pytest.mark.parametrize('text', ['', '5', 'h', '5x', '-5m', '1.5h'])
def test_what_is_no_time(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['train', 'c.py', f'--max-time={text}']) == 2
    assert 'a time is expected, as 23h50m or 90m' in capsys.readouterr().err


def test_the_nearest_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = emergency_checkpoint_hook._stop_time
    monkeypatch.setattr(emergency_checkpoint_hook.time, 'time', lambda: 1000)
    for name in emergency_checkpoint_hook.DEADLINES:
        monkeypatch.delenv(name, raising=False)
    assert stop() == float('inf')
    monkeypatch.setenv('SLURM_JOB_END_TIME', '11000')
    # A minute for the last save.
    assert stop() == 11000 - 60
    monkeypatch.setenv('MMSTABLE_DEADLINE', '1100')
    assert stop() == 1100 - 5
    monkeypatch.setenv('SLURM_JOB_END_TIME', 'unknown')
    assert stop() == 1100 - 5


def test_a_job_goes_back_into_the_queue(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / 'scontrol'
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    monkeypatch.setenv('SLURM_JOB_ID', '77')
    train._requeue()
    assert (tmp_path / 'asked').read_text() == 'requeue 77\n'
    assert 'job 77 is in the queue again' in capsys.readouterr().err
    program.write_text('#!/bin/sh\nexit 1\n')
    train._requeue()
    assert '--requeue: job 77: ' in capsys.readouterr().err


def test_restart_codes_are_no_final_ones() -> None:
    for code in errors._RESUMABLE:
        assert code not in FINAL
