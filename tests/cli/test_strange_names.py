"""A work directory whose name is hard to print and to type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.cli.main import main
from tests.cli.conftest import TOY

ROOT = Path(__file__).resolve().parents[2]
NAME = "a b'c\x1b[31m\u202e"
CONFIG = """
experiment_name = __import__('uuid').uuid4().hex
custom_imports = dict(imports=['strange_names_project'])
model = dict(type='StrangeModel')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='StrangeDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=4)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=4, by_epoch=False
    ),
)
fail_at = int(__import__('os').environ.get('FAIL_AT', '0'))
custom_hooks = [
    dict(type='mmstable.EmergencyCheckpointHook'),
    dict(type='StrangeFailAt', iteration=fail_at),
]
"""
FAIL_AT = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class StrangeFailAt(Hook):
    def __init__(self, iteration):
        self.iteration = iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == self.iteration:
            raise RuntimeError('a fault')
"""
# Names of its own: the registries are those of all tests.
PROJECT = TOY.replace('ToyTool', 'Strange') + FAIL_AT


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, str]]:
    """A folder to work in, and the environment to run commands there."""
    (tmp_path / 'strange_names_project.py').write_text(PROJECT)
    (tmp_path / 'my config.py').write_text(CONFIG)
    # What pip installs; here without installing anything.
    command = tmp_path / 'bin' / 'mmstable'
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m mmstable "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path, {
        **os.environ,
        'PATH': f'{command.parent}:{os.environ["PATH"]}',
        'PYTHONPATH': f'{tmp_path}:{ROOT}',
    }


@pytest.mark.soak
def test_the_printed_command_goes_on_with_the_run(
    project: tuple[Path, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, environment = project
    monkeypatch.setattr(sys, 'argv', ['mmstable'])
    monkeypatch.setenv('FAIL_AT', '3')
    with pytest.raises(RuntimeError, match='a fault'):
        main(['train', 'my config.py', '--work-dir', NAME])
    out = capsys.readouterr().out
    (line,) = re.findall('^.*mmstable: training failed.*$', out, re.M)
    assert (folder / NAME / 'emergency_iter_2.pth').is_file()
    assert line.isprintable()
    assert r'\x1b[31m\u202e/emergency_iter_2.pth. Resume with: ' in line

    command = line.partition('Resume with: ')[2]
    done = subprocess.run(
        ['bash', '-c', command],
        cwd=folder,
        env={**environment, 'FAIL_AT': '0'},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / NAME / 'iter_4.pth').is_file()
    report = re.findall('.*mmstable: resumed from .*', done.stdout)
    assert len(report) == 1
    assert report[0].isprintable()


def test_what_train_says_of_strange_names_is_printable(
    project: tuple[Path, dict[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = project
    (folder / NAME).mkdir()
    (folder / NAME / 'iter_3\x1b[2J.pth').write_bytes(b'no checkpoint')
    assert main(['train', 'my config.py', '--work-dir', NAME, '--resume']) != 1
    assert main(['train', f'{NAME}.py']) == 2
    lines = capsys.readouterr().err.splitlines()
    ours = [line for line in lines if line.startswith('mmstable train')]
    assert len(ours) > 1
    assert all(line.isprintable() for line in ours)
