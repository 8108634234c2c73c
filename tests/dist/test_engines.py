"""DeepSpeedStrategy of FlexibleRunner, with a stand-in for DeepSpeed.

mmengine's own strategy runs; the package ``deepspeed`` below ``engine`` has
the interface that it uses.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmstable.hooks.engine_hook import (
    EngineHook,
    mark_complete,
    newest_complete,
)
from mmstable.report import RunEnd, read_events
from tests.patience import wait_until
from tests.loops.runs import iter_loop, log_of
from tests.toys import (
    NAN,
    ToyData,
    ToyModel,
    assert_same,
    toy_runner,
)

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / 'tests/dist/engine'
MODULE = """
import os, time
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS


@DATASETS.register_module()
class EngineData(torch.utils.data.Dataset):
    metainfo = dict()

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return dict(inputs=torch.full((8,), index / 64))


@MODELS.register_module()
class EngineModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(8, 1), 0

    def forward(self, inputs, mode='tensor'):
        self.calls += 1
        time.sleep(float(os.environ.get('PAUSE', '0')))
        loss = self.layer(inputs).square().mean()
        fault, _, call = os.environ.get('FAULT', ':').partition(':')
        if call == str(self.calls):
            if fault == 'raise':
                raise ValueError('a broken sample')
            loss = loss * float('nan')
        return dict(loss=loss)
"""
CONFIG = """
custom_imports = dict(imports=['engine_module'])
model = dict(type='EngineModel')
train_dataloader = dict(
    batch_size=4, num_workers=0, collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='EngineData'))
train_cfg = dict(by_epoch=False, max_iters=24)
optim_wrapper = dict(
    type='DeepSpeedOptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=8),
    logger=dict(type='LoggerHook', interval=1))
log_processor = dict(by_epoch=False)
runner_type = 'FlexibleRunner'
strategy = dict(type='DeepSpeedStrategy')
env_cfg = dict(dist_cfg=dict(backend='gloo'))
randomness = dict(seed=3)
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('engine')
    (folder / 'engine_module.py').write_text(MODULE)
    (folder / 'config.py').write_text(CONFIG)
    return folder


def start(folder: Path, work_dir: str, *options: str, **env: str):
    return subprocess.Popen(
        [sys.executable, '-m', 'mmstable', 'train', 'config.py']
        + ['--work-dir', work_dir, *options],
        cwd=folder,
        env={
            **os.environ,
            'PYTHONPATH': f'{ENGINE}:{folder}:{ROOT}',
            'OMP_NUM_THREADS': '1',
            **env,
        },
        stdout=(folder / f'{work_dir}.log').open('a'),
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(folder: Path, work_dir: str, *options: str, **env: str):
    code = start(folder, work_dir, *options, **env).wait(timeout=120)
    return code, (folder / f'{work_dir}.log').read_text()


def weights(path: Path):
    file = path / 'mp_rank_00_model_states.pt'
    return torch.load(file, weights_only=False)['module']


@pytest.mark.soak
def test_what_is_protected_is_said_and_done(folder):
    code, output = train(folder, 'whole', FAULT='nan:5')
    assert code == 0, output[-3000:]
    assert 'DeepSpeedStrategy owns optimizer, loss scale' in output
    assert re.search(r'Iter 5: the engine skipped the step .* 512', output)
    assert 'Iter 5: not finite: loss' in output
    assert newest_complete(folder / 'whole').name == 'iter_24.pth'


@pytest.mark.soak
def test_a_signal_and_an_exception_are_saved_by_the_strategy(folder):
    code, output = train(folder, 'unbroken')
    assert code == 0, output[-3000:]
    run = start(folder, 'broken', PAUSE='0.2')
    log = folder / 'broken.log'
    wait_until(lambda: 'Iter(train) [11/24]' in log.read_text(), 120)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 143, log.read_text()[-3000:]
    (saved,) = (folder / 'broken').glob('emergency_iter_*.pth')
    assert saved.is_dir()
    code, output = train(folder, 'broken', '--resume', FAULT='raise:3')
    assert code == 1
    assert f"resuming from '{saved}'" in output
    assert 'ValueError: a broken sample' in output
    assert len([*(folder / 'broken').glob('emergency_iter_*.pth')]) == 2
    events = max((folder / 'broken').glob('*/stability/events.jsonl'))
    (end,) = (e for e in read_events(events) if isinstance(e, RunEnd))
    assert end.reason == 'exception'
    code, output = train(folder, 'broken', '--resume')
    assert code == 0, output[-3000:]
    assert_same(
        weights(folder / 'broken' / 'iter_24.pth'),
        weights(folder / 'unbroken' / 'iter_24.pth'),
    )


@pytest.mark.soak
def test_a_folder_that_was_cut_off_is_not_resumed(folder):
    code, output = train(folder, 'cut', CUT_SAVE='iter_16.pth')
    assert code == 9
    assert (folder / 'cut' / 'iter_16.pth').is_dir()
    code, output = train(folder, 'cut', '--resume')
    assert code == 0, output[-3000:]
    assert f"resuming from '{folder}/cut/iter_8.pth'" in output


class NamedData(ToyData):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        item['inputs'] = item['inputs'] * (NAN if index == 1 else 1.0)
        return dict(item, img_path=f'{index}.png')


class AnyInputs(ToyModel):
    def forward(self, inputs, targets, img_path, mode='tensor'):
        return super().forward(inputs, targets, mode)


def test_a_loss_that_is_not_finite_names_the_data(tmp_path):
    loader = torch.utils.data.DataLoader(NamedData(4), batch_size=2)
    runner = toy_runner(
        tmp_path,
        dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1)),
        model=AnyInputs(),
        hooks=[EngineHook()],
        train_dataloader=loader,
        train_cfg=iter_loop(2),
    )
    runner.train()
    log = log_of(runner)
    assert 'Iter 1: not finite: loss' in log
    assert 'The data holds NaN or Inf: img_path=1.png.' in log
    # The update has left NaN in the weights.
    assert 'The data is finite: img_path=2.png, img_path=3.png.' in log


def test_complete_folders(tmp_path):
    for number in (8, 16, 24):
        one = tmp_path / f'iter_{number}.pth'
        one.mkdir()
        (one / 'model.pt').write_bytes(b'content')
        (one / 'optimizer.pt').write_bytes(b'content')
        if number < 24:
            mark_complete(one, number)
    # The last one was being written.
    assert newest_complete(tmp_path).name == 'iter_16.pth'
    (tmp_path / 'iter_16.pth' / 'model.pt').write_bytes(b'con')
    assert newest_complete(tmp_path).name == 'iter_8.pth'
    (tmp_path / 'iter_8.pth' / 'optimizer.pt').unlink()
    assert newest_complete(tmp_path) is None
    (tmp_path / 'iter_8.pth' / 'mmstable_complete.json').write_text('[')
    assert newest_complete(tmp_path) is None
