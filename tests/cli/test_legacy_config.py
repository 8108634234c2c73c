"""Configs of mmcv 1.x, trained with as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mmstable.cli.main import main
from tests.toys import read_saved

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
import json
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
from torch.utils.data import Dataset


@MODELS.register_module(force=True)
class OldNet(BaseModel):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.seen = None

    def forward(self, x, y, mode='loss'):
        out = self.head(torch.stack(x))
        self.seen = str(out.dtype)
        if mode == 'predict':
            return list(out)
        # Large gradients, but not too large for fp16 times 1024.
        return dict(loss=0.4 * (out.float() - torch.stack(y)).square().sum())


@DATASETS.register_module(force=True)
class OldData(Dataset):
    def __init__(self, length=8, test_mode=False):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((4,), 1.0 + index / 8), torch.full((2,), 5.0)


@METRICS.register_module(force=True)
class OldMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(len(data_samples))

    def compute_metrics(self, results):
        return dict(mIoU=float(sum(results)))


@HOOKS.register_module(force=True)
class Inspect(Hook):
    # After the optimizer, before the schedule moves on.
    priority = 'NORMAL'

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        wrapper = runner.optim_wrapper
        step = wrapper.last_step
        note = dict(
            iteration=step.iteration,
            wrapper=type(wrapper).__name__,
            optimizer=type(wrapper.optimizer).__name__,
            dtype=str(getattr(wrapper, 'cast_dtype', None)),
            output=runner.model.seen,
            loss_scale=step.loss_scale,
            grad_norm=step.grad_norm,
            clipped_norm=step.clipped_norm,
            outcome=step.outcome.value,
            lr=wrapper.param_groups[0]['lr'],
            loop=type(runner.train_loop).__name__,
            hooks=[type(hook).__name__ for hook in runner.hooks],
        )
        with open('notes.jsonl', 'a') as file:
            print(json.dumps(note), file=file)
"""
# The pair of files from a guide against NaN in fp16.
RUNTIME = """
log_config = dict(
    interval=50,
    hooks=[
        dict(type='TextLoggerHook', by_epoch=False),
        # dict(type='TensorboardLoggerHook')
    ])
dist_params = dict(backend='nccl')
log_level = 'INFO'
load_from = None
resume_from = None
workflow = [('train', 1)]
cudnn_benchmark = True
fp16 = dict(loss_scale=1024.0)
"""
SCHEDULE = """
optimizer = dict(
    type='AdamW', lr=3e-4, betas=(0.9, 0.999), weight_decay=0.01)
optimizer_config = dict(
    grad_clip=dict(max_norm=35, norm_type=2)
)
lr_config = dict(
    policy='poly', warmup='linear', warmup_iters=1500, warmup_ratio=1e-6,
    power=1.0, min_lr=0.0, by_epoch=False)
runner = dict(type='IterBasedRunner', max_iters=200000)
checkpoint_config = dict(by_epoch=False, interval=20000)
evaluation = dict(interval=20000, metric='mIoU')
"""
LEAF = """
_base_ = [
    './_base_/default_runtime_fp16.py',
    './_base_/schedules/schedule_200k_nuscenes_bs6.py',
]
# mmengine names a run by the second; several of one second would mix.
experiment_name = __import__('uuid').uuid4().hex
custom_imports = dict(imports=['old_project'], allow_failed_imports=False)
model = dict(type='OldNet')
data = dict(
    samples_per_gpu=6,
    workers_per_gpu=0,
    train=dict(type='OldData'),
    val=dict(type='OldData'),
)
custom_hooks = [dict(type='Inspect')]
"""
# No checkpoint until the end, and few iterations.
SHORT = ['runner.max_iters=6', 'lr_config.warmup_iters=3']


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    schedules = tmp_path / '_base_' / 'schedules'
    schedules.mkdir(parents=True)
    (tmp_path / 'old_project.py').write_text(PROJECT)
    (tmp_path / '_base_/default_runtime_fp16.py').write_text(RUNTIME)
    (schedules / 'schedule_200k_nuscenes_bs6.py').write_text(SCHEDULE)
    (tmp_path / 'old.py').write_text(LEAF)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'old_project', raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def notes(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / 'notes.jsonl').read_text().splitlines()
    return [json.loads(line) for line in lines]


def train(folder: Path, *options: str, more: tuple[str, ...] = ()) -> int:
    (folder / 'notes.jsonl').unlink(missing_ok=True)
    return main(['train', 'old.py', *more, '--cfg-options', *SHORT, *options])


@pytest.mark.soak
def test_clipping_and_fp16_are_really_on(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools/train.py'), 'old.py']
        + ['--cfg-options', *SHORT],
        env={**os.environ, 'PYTHONPATH': f'{folder}:{ROOT}'},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = notes(folder)
    assert [one['iteration'] for one in found] == [1, 2, 3, 4, 5, 6]
    for one in found:
        assert one['wrapper'] == 'SafeAmpOptimWrapper'
        assert one['optimizer'] == 'AdamW'
        assert one['dtype'] == one['output'] == 'torch.float16'
        assert one['loss_scale'] == 1024.0
        assert one['outcome'] == 'applied'
        assert one['grad_norm'] > 50
        assert one['clipped_norm'] == pytest.approx(35, rel=1e-3)
        assert one['loop'] == 'SafeIterBasedTrainLoop'
        assert 'SafeCheckpointHook' in one['hooks']
    # Linear warm-up to the polynomial, as in mmcv.
    factors = [1e-6, 1 / 3 + 2e-6 / 3, 2 / 3 + 1e-6 / 3, 1, 1, 1]
    assert [one['lr'] for one in found] == pytest.approx(
        [3e-4 * (1 - n / 6) * factor for n, factor in enumerate(factors)],
        rel=1e-12,
    )
    assert (folder / 'work_dirs/old/iter_6.pth').exists()
    told = [x for x in done.stderr.splitlines() if x.startswith('mmstable ')]
    assert told[0] == (
        'mmstable train: this config has keys of mmcv 1.x, translated for '
        'this run:'
    )
    assert (
        'mmstable train:   fp16, optimizer, optimizer_config -> '
        'optim_wrapper, custom_hooks'
    ) in told
    assert any('evaluation.metric: ' in line for line in told)


def test_a_skipped_step_is_told(folder: Path) -> None:
    (folder / 'old.py').write_text(
        LEAF.replace(
            "[dict(type='Inspect')]",
            "[dict(type='Inspect'), dict(\n"
            "    type='FaultInjectorHook', enabled=True,\n"
            "    faults=[dict(kind='nan_loss', at=3)])]",
        )
    )
    assert train(folder) == 0
    assert [one['outcome'] for one in notes(folder)].count('skipped') == 1
    (log,) = folder.rglob('*.log')
    assert 'Iter 3: loss is NaN or Inf' in log.read_text()
    assert len([*folder.rglob('events.jsonl')]) == 1


def test_options_may_be_old_or_new(folder: Path) -> None:
    assert train(folder, 'fp16.loss_scale=64.', 'seed=3') == 0
    assert notes(folder)[0]['loss_scale'] == 64.0
    clip = 'optim_wrapper.clip_grad.max_norm=2'
    assert train(folder, 'optimizer.type=Adam', clip) == 0
    assert notes(folder)[0]['optimizer'] == 'Adam'
    assert notes(folder)[0]['clipped_norm'] == pytest.approx(2, rel=1e-3)


def test_the_upgraded_config_trains_the_same(folder: Path) -> None:
    assert train(folder, 'seed=3') == 0
    old = notes(folder)
    assert main(['upgrade', 'old.py', '-o', 'new.py']) == 5
    (folder / 'notes.jsonl').unlink()
    options = ['train_cfg.max_iters=6', 'param_scheduler.0.warmup_iters=3']
    command = ['train', 'new.py', '--seed', '3', '--cfg-options', *options]
    assert main(command) == 0
    assert notes(folder) == old


def test_a_checkpoint_of_mmcv_is_resumed_where_it_was(folder: Path) -> None:
    assert train(folder, 'checkpoint_config.interval=4', 'seed=3') == 0
    whole = notes(folder)
    checkpoint = read_saved(folder / 'work_dirs/old/iter_4.pth')
    optimizer = checkpoint['optimizer']
    # What mmcv 1.x has in a file, and nothing more.
    torch.save(
        dict(
            meta=dict(
                epoch=1, iter=4, fp16=dict(loss_scaler=dict(scale=1024.0))
            ),
            state_dict=checkpoint['state_dict'],
            optimizer={k: optimizer[k] for k in ('state', 'param_groups')},
        ),
        folder / 'mmcv.pth',
    )
    assert train(folder, 'resume_from=mmcv.pth', 'seed=3') == 0
    rest = notes(folder)
    assert [one['iteration'] for one in rest] == [5, 6]
    for one, other in zip(rest, whole[4:]):
        assert one['lr'] == other['lr']
        assert one['loss_scale'] == other['loss_scale']


def error_of(folder: Path, capsys: Any, *options: str) -> str:
    assert train(folder, *options) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    return [line for line in lines if line.startswith('mmstable')][-1]


def test_a_run_that_would_differ_does_not_start(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'old.py').write_text(
        LEAF + "lr_config = dict(_delete_=True, policy='YOLOX')\n"
    )
    line = error_of(folder, capsys)
    assert "differently: lr_config.policy: unknown policy 'YOLO" in line
    assert 'mmstable upgrade OLD.py -o NEW.py' in line
    assert not (folder / 'work_dirs').exists()


def test_the_length_must_be_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'old.py').write_text("optimizer = dict(type='SGD', lr=1)\n")
    assert main(['train', 'old.py']) == 2
    assert 'mmcv has `runner` or `total_epochs` for it' in (
        capsys.readouterr().err
    )


def test_runs_by_epoch_save_and_validate_as_before(folder: Path) -> None:
    (folder / 'old.py').write_text(
        LEAF
        + """
runner = dict(_delete_=True, type='EpochBasedRunner', max_epochs=3)
lr_config = dict(_delete_=True, policy='step', step=[1, 2], warmup='exp',
                 warmup_iters=1)
checkpoint_config = dict(_delete_=True, interval=1, max_keep_ckpts=2)
fp16 = None
evaluation = dict(_delete_=True, interval=2, save_best='mIoU', rule='greater')
val_evaluator = dict(type='OldMetric')
"""
    )
    assert main(['train', 'old.py']) == 0
    found = notes(folder)
    assert found[0]['wrapper'] == 'SafeOptimWrapper'
    assert found[0]['loop'] == 'SafeEpochBasedTrainLoop'
    assert [one['lr'] for one in found] == pytest.approx(
        [3e-5, 3e-4, 3e-5, 3e-5, 3e-6, 3e-6], rel=1e-12
    )
    saved = sorted(path.name for path in folder.rglob('*epoch_*.pth'))
    assert saved == ['best_mIoU_epoch_2.pth', 'epoch_2.pth', 'epoch_3.pth']
