"""The advice of a run that was stopped works when it is followed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from mmstable.cli.main import main
from tests.cli.runs import log_of
from tests.toys import read_saved

pytestmark = pytest.mark.usefixtures('in_project')

CONFIG = """
_base_ = './config.py'
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=8)
optim_wrapper = dict(
    type='mmstable.SafeOptimWrapper',
    optimizer=dict(lr=0.1, momentum=0.9, weight_decay=0.01),
)
param_scheduler = [
    dict(type='PolyLR', power=1.0, by_epoch=False, begin=0, end=17)]
default_hooks = dict(
    checkpoint=dict(type='mmstable.SafeCheckpointHook'),
    guard=dict(
        type='mmstable.DivergenceGuardHook', actions=dict(poisoned='stop')
    ),
)
"""
FAULT = """
_base_ = './steady.py'
custom_hooks = [dict(
    type='mmstable.FaultInjectorHook', enabled=True,
    faults=[dict(kind='nan_weight', param='head.bias', at=6)])]
"""


def rates(folder: Path, iteration: int) -> dict[str, float]:
    saved = read_saved(folder / f'iter_{iteration}.pth')
    return saved['optimizer']['param_groups'][0]


@pytest.fixture
def configs(project: Path) -> None:
    (project / 'steady.py').write_text(CONFIG)
    (project / 'fault.py').write_text(FAULT)


@pytest.mark.usefixtures('configs')
def test_the_printed_command_halves_the_rate(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, 'argv', ['mmstable'])
    assert main(['train', 'fault.py', '--work-dir', str(tmp_path)]) == 4
    (path,) = tmp_path.rglob('diagnosis.json')
    found = json.loads(path.read_text())
    # What the config has, not what the schedule has made of it.
    assert 'optimizer.lr is 0.1 in the config: try 0.05)' in found['text']
    assert f'learning rate by: {found["resume"]} .' in log_of(tmp_path)
    words = shlex.split(found['resume'])
    assert '--override-lr-schedule' in words
    # Whatever else was wrong is mended, too.
    (project / 'fault.py').write_text(CONFIG)
    assert words[:2] == ['mmstable', 'train']
    assert main(words[1:]) == 0
    assert rates(tmp_path, 8)['lr'] == pytest.approx(0.05 * 8 / 16)
    log = log_of(tmp_path)
    assert 'replace those of the checkpoint (in brackets): lr 0.05 (0.1)' in (
        log
    )


@pytest.mark.usefixtures('configs')
@pytest.mark.parametrize('override', [False, True])
def test_a_changed_config_is_noticed(tmp_path: Path, override: bool) -> None:
    work = ['--work-dir', str(tmp_path)]
    short = ['--cfg-options', 'train_cfg.max_iters=4']
    assert main(['train', 'steady.py', *work, *short]) == 0
    options = [
        'optim_wrapper.optimizer.lr=0.02',
        'optim_wrapper.optimizer.weight_decay=0.5',
        'optim_wrapper.clip_grad.max_norm=0.125',
    ]
    flag = ['--override-lr-schedule'] if override else []
    words = [*work, '--resume', *flag, '--cfg-options', *options]
    assert main(['train', 'steady.py', *words]) == 0
    log = log_of(tmp_path)
    assert 'lr 0.02 (0.1), weight_decay 0.5 (0.01)' in log
    assert ('resume with --override-lr-schedule' in log) is not override
    assert rates(tmp_path, 8)['lr'] == pytest.approx(
        (0.02 if override else 0.1) * 8 / 16
    )
    decay = rates(tmp_path, 8)['weight_decay']
    assert decay == (0.5 if override else 0.01)
    # Of clipping nothing is in a checkpoint: the config counts.
    assert 'clip max_norm=0.125' in log


@pytest.mark.usefixtures('configs')
def test_an_unchanged_config_is_not_mentioned(tmp_path: Path) -> None:
    work = ['--work-dir', str(tmp_path)]
    short = ['--cfg-options', 'train_cfg.max_iters=4']
    assert main(['train', 'steady.py', *work, *short]) == 0
    assert main(['train', 'steady.py', *work, '--resume']) == 0
    assert 'optimizer settings' not in log_of(tmp_path)
