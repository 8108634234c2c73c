"""What is printed last is what its reader needs next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmstable.cli.main import main
from mmstable.report import read_events
from tests.cli.runs import console_script, log_of, run

pytestmark = pytest.mark.usefixtures('in_project')

CONFIG = """
_base_ = './config.py'
custom_imports = dict(imports=['failing_project', 'toy_tool_project'])
model = dict(type='FailingModel', fail_at=10**6)
train_cfg = dict(
    type='mmstable.SafeIterBasedTrainLoop', max_iters=6, val_interval=5)
optim_wrapper = dict(type='mmstable.SafeOptimWrapper')
default_hooks = dict(checkpoint=dict(type='mmstable.SafeCheckpointHook'))
custom_hooks = [
    dict(type='mmstable.EmergencyCheckpointHook'),
    dict(type='mmstable.GradNanLoggerHook', max_lines=2),
    dict(type='mmstable.EventLogHook'),
]
val_cfg = dict(type='ValLoop')
val_dataloader = dict(
    batch_size=2,
    dataset=dict(type='ToyToolDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
val_evaluator = dict(type='SilentMetric')
"""
MODEL = """
import torch
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS, MODELS
from toy_tool_project import ToyToolModel


@MODELS.register_module(force=True)
class FailingModel(ToyToolModel):
    def __init__(self, fail_at, mode='loss', text='an own fault', nan_from=0):
        super().__init__()
        self.fail_at, self.mode, self.text = fail_at, mode, text
        self.nan_from, self.calls = nan_from, 0
        self.requires_grad_(mode != 'frozen')

    def forward(self, x, y, mode='loss'):
        self.calls += mode == 'loss'
        if self.calls >= self.fail_at and self.mode == 'exit':
            raise SystemExit('no more data')
        if self.calls >= self.fail_at and mode == self.mode:
            raise RuntimeError(self.text.replace('_', ' '))
        found = super().forward(x, y, mode)
        if mode == 'loss' and self.nan_from and self.calls >= self.nan_from:
            found['loss'] = found['loss'] * float('nan')
        return found


@METRICS.register_module(force=True)
class SilentMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return {}
"""
MEMORY = 'CUDA_out_of_memory._Tried_to_allocate_20_GiB'


@pytest.fixture(autouse=True)
def configs(project: Path) -> None:
    (project / 'failing_project.py').write_text(MODEL)
    (project / 'last.py').write_text(CONFIG)


def train(folder: Path, *options: str) -> int:
    words = ['train', 'last.py', '--work-dir', str(folder), '--as-is']
    return main([*words, '--cfg-options', *options])


def test_the_command_to_resume_is_last(project: Path, tmp_path: Path) -> None:
    words = ['train', 'last.py', '--work-dir', str(tmp_path)]
    door = [*console_script(tmp_path), *words]
    code, _, err = run([*door, '--cfg-options', 'model.fail_at=4'], project)
    assert code == 1
    *before, last = err.splitlines()
    begin = before.index('Traceback (most recent call last):')
    assert 'RuntimeError: an own fault' in before[begin:]
    assert last.startswith('Resume with: ')
    assert last.endswith(f'--resume-from {tmp_path}/emergency_iter_3.pth')


@pytest.mark.parametrize(
    ('mode', 'text', 'advice'),
    [
        ('loss', MEMORY, 'out of memory in training. Lower train_dataloader.'),
        ('predict', MEMORY, 'out of memory in validation, not in training. '),
        ('predict', 'x', 'this happened in validation, not in training.'),
    ],
)
def test_what_helps_is_said(
    tmp_path: Path,
    mode: str,
    text: str,
    advice: str,
) -> None:
    options = ['model.fail_at=4', f'model.mode={mode}', f'model.text={text}']
    options.append('train_cfg.oom.enabled=False')
    with pytest.raises(RuntimeError, match='memory|x') as raised:
        train(tmp_path, *options)
    told, last = raised.value.__notes__
    assert told.startswith(f'mmstable: {advice}')
    assert last.startswith('Resume with: ')
    assert advice in log_of(tmp_path)


def test_a_frozen_model(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='not require grad') as raised:
        train(tmp_path, 'model.mode=frozen')
    (told,) = raised.value.__notes__
    assert 'Is every parameter frozen (requires_grad=False)' in told


def test_a_text_that_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, 'model.mode=exit', 'model.fail_at=4') == 1
    assert capsys.readouterr().err.endswith('\nno more data\n')


def test_a_stop_tells_of_unprinted_steps_and_ends_the_file(
    tmp_path: Path,
) -> None:
    guard = 'mmstable.DivergenceGuardHook'
    options = [
        f'default_hooks.guard.type={guard}',
        'default_hooks.guard.max_consecutive_bad=5',
        'default_hooks.guard.max_rollbacks=0',
        'model.nan_from=1',
        'train_cfg.max_iters=9',
    ]
    assert train(tmp_path, *options) == 4
    log = log_of(tmp_path)
    unprinted = '4 more bad steps (NaN or Inf) between Iter 6 and Iter 9'
    assert f'{unprinted} not printed; loss_scale and culprits of' in log
    assert log.index(unprinted) < log.index('training is stopped at')
    (path,) = tmp_path.rglob('events.jsonl')
    end = list(read_events(path))[-1]
    assert (end.reason, end.iteration) == ('stopped', 9)


def test_a_wrapper_that_skips_nothing_is_not_said_to_skip(
    tmp_path: Path,
) -> None:
    options = [
        'optim_wrapper.type=OptimWrapper',
        'default_hooks.checkpoint.type=CheckpointHook',
        'custom_hooks.2.type=mmengine.SyncBuffersHook',
        'model.nan_from=2',
        'train_cfg.max_iters=8',
    ]
    assert train(tmp_path, *options) == 0
    log = log_of(tmp_path)
    assert 'Iter 2: loss is NaN or Inf, WEIGHTS UPDATED WITH IT' in log
    assert 'the weights were updated with NaN or Inf in iteration 2' in log
    assert 'The loss is finite' not in log
    # There is no event file.
    assert 'not printed\n' in log
    (path,) = tmp_path.rglob('scalars.json')
    scalars = map(json.loads, path.read_text().splitlines())
    last = [one for one in scalars if 'stable/bad_rate' in one][-1]
    assert last['stable/bad_rate'] == pytest.approx(7 / 8)
    assert 'stable/skip_rate' not in last
    assert 'stable/skipped' not in last
