"""Sticky errors: the device fails in every call until the process ends."""

from __future__ import annotations

import re

import pytest

from mmstable.errors import DeviceLost, PeerFailedError
from tests.device.runs import train_in_new_process
from tests.device.test_runs import EMA, FP16, inject

GUARD = {
    'type': 'mmstable.DivergenceGuardHook',
    'snapshot_interval': 5,
}
# A CPU replay in another process takes seconds.
UNEXPLAINED = dict(type='mmstable.FaultForensicsHook', max_per_fault=0)
# No regular checkpoint is newer than the snapshots.
RARE = dict(default_hooks__checkpoint__interval=1000)


@pytest.mark.parametrize(
    ('words', 'changes', 'late'),
    [
        ('device-side assert triggered', {}, False),
        ('an illegal memory access was encountered', FP16, True),
    ],
    ids=['assert', 'access'],
)
def test_the_newest_snapshot_is_saved(
    tmp_path, device, whole, words, changes, late
):
    fault = inject(18, 'break', words=words, after=7, late=late)
    run = device.train(
        tmp_path, hooks=[EMA, GUARD, UNEXPLAINED, fault], **changes, **RARE
    )
    assert run.code == DeviceLost.exit_code, run.log
    assert run.saved('emergency*.pth') == ['emergency_iter_15.pth']
    assert 'of iteration 15, is saved' in run.log
    assert f'CUDA error: {words}' in run.log
    (end,) = run.events('run_end')
    assert end['reason'] == 'exception'
    assert end['iteration'] == 18
    # Only the call that has found out.
    assert re.search(r'^refused calls: (\d+)$', run.log, re.M)[1] == '1'
    hooks = [EMA, GUARD, UNEXPLAINED]
    rest = device.train(tmp_path, '--resume', hooks=hooks, **changes, **RARE)
    assert rest.state() == whole(hooks, **changes, **RARE).state()


def test_without_snapshots_the_last_checkpoint_is_named(tmp_path, device):
    fault = inject(18, 'break', after=7)
    run = device.train(tmp_path, hooks=[UNEXPLAINED, fault])
    assert run.code == DeviceLost.exit_code
    assert run.saved('*.pth') == ['iter_10.pth']
    assert 'no snapshot is newer' in run.log
    assert 'iter_10.pth' in run.log.partition('no snapshot is newer')[2]


@pytest.mark.parametrize('lost', [0, 1])
def test_another_rank_saves_the_present_state(tmp_path, device, lost):
    fault = inject(13, 'break', after=20, rank=lost)
    ranks = dict(type='mmstable.RankFailureHook')
    hooks = [ranks, UNEXPLAINED]
    runs = device.train_ranks(tmp_path, hooks=[*hooks, fault], **RARE)
    codes = [PeerFailedError.exit_code] * 2
    codes[lost] = DeviceLost.exit_code
    assert [run.code for run in runs] == codes, runs[0].log + runs[1].log
    reason = f'rank {lost} (.*) failed after iteration 13: AcceleratorError'
    assert re.search(reason, runs[1 - lost].log)
    assert 'device-side assert' in runs[1 - lost].log
    assert runs[0].saved('emergency*.pth') == ['emergency_iter_13.pth']
    assert 'refused calls: 1\n' in runs[lost].log
    if lost == 0:
        # One resume shows that the file is complete.
        return
    rest = device.train_ranks(tmp_path, '--resume', hooks=hooks, **RARE)
    whole = device.train_ranks(tmp_path / 'whole', hooks=hooks, **RARE)
    # Buffers are those of the rank that has saved.
    for name in ('weights', 'optimizer'):
        assert rest[0].digest()[name] == whole[0].digest()[name]


def test_a_supervised_run_is_restarted_from_the_snapshot(tmp_path, device):
    hooks = [GUARD, UNEXPLAINED, inject(18, 'break', after=7)]
    run = train_in_new_process(
        tmp_path, '--max-restarts', '1', hooks=hooks, **RARE
    )
    assert run.digest()['finite']
    assert 'the device was lost (exit code 24)' in run.log
    assert 'from emergency_iter_15.pth' in run.log


def test_a_device_side_assert_is_explained_on_the_cpu(tmp_path, device):
    """Twice: the sample is named, then left out."""
    changes = dict(RARE, train_dataloader__dataset__bad_label=40)
    hooks = [GUARD]
    run = device.train(tmp_path, hooks=hooks, **changes)
    assert run.code == DeviceLost.exit_code, run.log
    assert 'CUDA error: device-side assert triggered' in run.log
    (found,) = run.events('fault_explained')
    assert (found['fault'], found['verdict']) == ('crash', 'out_of_range')
    assert 'dataset_index=40' in found['sample_names'][0]
    words = f'label 21 of sample {found["samples"][0]} (dataset_index=40)'
    assert f'{words}; classes are 0..1' in found['text']
    assert 'project.py' in found['lines'][0]
    assert re.search(r'^refused calls: (\d+)$', run.log, re.M)[1] == '1'
    again = device.train(tmp_path, '--resume', hooks=hooks, **changes)
    assert again.code == DeviceLost.exit_code
    assert 'not the first error of dataset_index=40' in again.log
    (path,) = tmp_path.glob('work/*/stability/skip_list.json')
    inner = dict(type='Noise', bad_label=40)
    rest = device.train(
        tmp_path,
        '--resume',
        hooks=hooks,
        train_dataloader__dataset=dict(
            _delete_=True,
            type='mmstable.SkipSamples',
            dataset=inner,
            skip_list=str(path),
        ),
        **RARE,
    )
    assert rest.digest()['finite']
