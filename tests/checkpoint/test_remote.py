"""Runs whose checkpoints are behind a back-end of mmengine."""

from __future__ import annotations

import sys

import pytest

from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.checkpoint.folders import RemotePath
from mmstable.checkpoint.loading import BadCheckpoint, load_checkpoint
from mmstable.errors import CheckpointError
from tests.checkpoint import standin
from tests.cli.runs import ROOT, run
from tests.hooks.test_safe_checkpoint_hook import (
    checkpoints,
    hook_of,
    log_of,
    train,
)
from tests.toys import assert_same, weights


@pytest.fixture(autouse=True)
def bucket(tmp_path, monkeypatch):
    folder = tmp_path / 'bucket'
    monkeypatch.setenv(standin.VARIABLE, str(folder))
    monkeypatch.setattr(standin.StandInBackend, 'damaged', [])
    return folder


REMOTE = dict(out_dir='standin://runs')
FOLDER = RemotePath('standin://runs/work')


def test_a_run_is_saved_found_and_resumed(tmp_path, bucket):
    whole = train(tmp_path / 'whole', max_iters=8)
    train(tmp_path / 'work', checkpoint=dict(max_keep_ckpts=2, **REMOTE))
    assert checkpoints(bucket / 'runs/work') == ['iter_4.pth', 'iter_6.pth']
    assert checkpoints(tmp_path / 'work') == []
    # On another machine: nothing is left but the bucket.
    found = find_checkpoint(tmp_path / 'other', others=[FOLDER]).found
    assert str(found.path) == 'standin://runs/work/iter_6.pth'
    rest = train(
        tmp_path / 'work',
        max_iters=8,
        load_from=str(found.path),
        resume=True,
        checkpoint=REMOTE,
    )
    assert_same(weights(rest.model), weights(whole.model))
    assert checkpoints(bucket / 'runs/work')[-1] == 'iter_8.pth'


def test_the_pointer_is_followed(tmp_path):
    train(tmp_path / 'work', checkpoint=REMOTE)
    pointer = tmp_path / 'work/last_checkpoint'
    assert pointer.read_text() == 'standin://runs/work/iter_6.pth'
    assert find_checkpoint(tmp_path / 'work').found.iteration == 6


def test_damage_is_found_after_the_download(tmp_path, bucket):
    train(tmp_path / 'work', checkpoint=REMOTE)
    path = bucket / 'runs/work/iter_6.pth'
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    search = find_checkpoint(tmp_path / 'work', others=[FOLDER])
    assert search.found.iteration == 4
    assert 'iter_6.pth: corrupt: its SHA-256' in search.skipped[0]
    with pytest.raises(BadCheckpoint, match='corrupt'):
        load_checkpoint(RemotePath('standin://runs/work/iter_6.pth'))


def test_files_of_mmengine_are_found_newest_first(tmp_path, bucket):
    stock = dict(type='CheckpointHook', **REMOTE)
    train(tmp_path / 'work', checkpoint=stock, max_iters=12)
    (tmp_path / 'work/last_checkpoint').unlink()
    (bucket / 'runs/work/iter_12.pth').write_bytes(b'cut off')
    search = find_checkpoint(tmp_path / 'work', others=[FOLDER])
    assert search.found.iteration == 10
    assert search.skipped[0].startswith('iter_12.pth: ')


def test_a_damaged_upload_is_repeated(tmp_path, bucket):
    standin.StandInBackend.damaged += ['iter_4.pth']
    runner = train(tmp_path / 'work', checkpoint=REMOTE)
    assert 'its content is not as uploaded' in log_of(runner)
    found = find_checkpoint(tmp_path / 'work', 5, [FOLDER]).found
    assert found.iteration == 4


def test_two_damaged_uploads_leave_the_older_one(tmp_path, bucket):
    standin.StandInBackend.damaged += 2 * ['iter_4.pth']
    one = dict(max_keep_ckpts=1, **REMOTE)
    runner = train(tmp_path / 'work', checkpoint=one, max_iters=5)
    log = log_of(runner)
    assert 'iter_4.pth is not saved: its content is not as uploaded' in log
    assert checkpoints(bucket / 'runs/work') == ['iter_4.pth', 'iter_5.pth']


def test_a_network_that_is_down_does_not_start_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(standin.StandInBackend, 'is_down', True)
    with pytest.raises(CheckpointError, match='cannot be listed: Runtime'):
        find_checkpoint(tmp_path, others=[FOLDER])


def test_an_emergency_goes_there_too(tmp_path, bucket):
    from tests.hooks.test_safe_checkpoint_hook import At, emergency

    runner = train(
        tmp_path / 'work', At(_3=emergency), max_iters=3, checkpoint=REMOTE
    )
    assert runner.saved == 'standin://runs/work/emergency_iter_3.pth'
    found = find_checkpoint(tmp_path / 'work', others=[FOLDER]).found
    assert found.iteration == 3
    assert hook_of(runner).last_ckpt


TOYS = """
from mmengine.registry import DATASETS, MODELS
from tests.toys import ToyData, ToyModel

DATASETS.register_module(module=ToyData)
MODELS.register_module(module=ToyModel)
"""
CONFIG = """
custom_imports = dict(imports=['tests.checkpoint.standin', 'remote_toys'])
default_scope = 'mmengine'
model = dict(type='ToyModel')
train_dataloader = dict(
    batch_size=2, num_workers=0, collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler'), dataset=dict(type='ToyData'))
train_cfg = dict(by_epoch=False, max_iters=6)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(checkpoint=dict(
    type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False,
    out_dir='standin://runs'))
"""


def test_the_command_resumes_from_there(tmp_path, bucket):
    train(tmp_path / 'work', max_iters=4, checkpoint=REMOTE)
    path = tmp_path / 'config.py'
    (tmp_path / 'remote_toys.py').write_text(TOYS)
    path.write_text(CONFIG)
    work = ['--work-dir', str(tmp_path / 'work'), '--resume']
    command = [sys.executable, '-m', 'mmstable', 'train', str(path), *work]
    code, out, err = run(command, ROOT, path=f'{ROOT}:{tmp_path}')
    said = out + err
    assert code == 0, said
    assert 'resumed from standin://runs/work/iter_4.pth' in said
    assert checkpoints(bucket / 'runs/work') == [
        'iter_2.pth',
        'iter_4.pth',
        'iter_6.pth',
    ]
