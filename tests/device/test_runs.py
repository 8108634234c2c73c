"""Whole runs on the simulated device."""

from __future__ import annotations

import pytest

from tests.device.runs import run_in_new_process

FUSED = 'mmstable.FusedAdamW'
EMA = dict(type='EMAHook')
FP16 = dict(
    optim_wrapper__type='mmstable.SafeAmpOptimWrapper',
    optim_wrapper__loss_scale=1024.0,
)


def inject(at, kind, **kwargs):
    return dict(type='InjectHook', at=at, kind=kind, **kwargs)


@pytest.mark.parametrize('optimizer', ['AdamW', FUSED])
def test_a_run_equals_the_run_on_a_cpu(tmp_path, device, cpu, optimizer):
    changes = dict(
        hooks=[EMA],
        # A device draws other random numbers.
        model__dropout=0.0,
        optim_wrapper__accumulative_counts=2,
        optim_wrapper__optimizer__type=optimizer,
    )
    there = device.train(tmp_path / 'device', **changes)
    here = cpu.train(tmp_path / 'cpu', **changes)
    assert there.state() == here.state()
    assert there.digest()['device'] == 'cuda:0'
    assert here.digest()['device'] == 'cpu'
    assert there.digest()['contexts'] == [0]


@pytest.mark.parametrize('changes', [{}, FP16], ids=['fp32', 'fp16'])
def test_a_resumed_run_equals_an_unbroken_one(
    tmp_path, device, whole, changes
):
    """With dropout, so that the device's generator has to be resumed."""
    fails = [EMA, inject(13, 'raise')]
    broken = device.train(tmp_path / 'broken', hooks=fails, **changes)
    assert broken.code == 1
    assert 'emergency_iter_13.pth' in broken.saved()
    rest = device.train(
        tmp_path / 'broken', '--resume', hooks=[EMA], **changes
    )
    assert rest.state() == whole([EMA], **changes).state()
    assert 'emergency_iter_13.pth' in rest.log


def test_nan_weights_are_rolled_back(tmp_path, device):
    run = device.train(tmp_path, hooks=[inject(15, 'nan_weight')], **FP16)
    assert run.digest()['finite']
    (done,) = run.events('intervention')
    assert (done['action'], done['source']) == ('rollback', 'memory')


def test_a_nan_is_explained_and_replayed(tmp_path, device):
    run = device.train(tmp_path, hooks=[inject(15, 'nan_input')])
    assert run.digest()['finite']
    (found,) = run.events('fault_explained')
    assert found['samples'] == [0]
    config = str(tmp_path / 'config.py')
    again = device.run(
        ['replay', found['bundle'], '--config', config], tmp_path / 'replay'
    )
    assert again.code == 0, again.log
    assert 'inputs[0]' in again.log.split('in the run:')[-1]


def test_a_batch_that_does_not_fit_is_trained_in_parts(tmp_path, device):
    run = device.train(tmp_path, hooks=[inject(15, 'oom', room=24000)])
    assert run.digest()['finite']
    (found,) = run.events('out_of_memory')
    assert found['phase'] in ('forward', 'backward')
    assert found['rung'] not in ('skip', 'stop')


def test_two_ranks_use_their_own_devices(tmp_path, device):
    runs = device.train_ranks(tmp_path, hooks=[EMA])
    digests = [runs[rank].digest(rank) for rank in range(2)]
    assert [one['contexts'] for one in digests] == [[0], [1]]
    assert digests[0]['weights'] == digests[1]['weights']


def test_a_stopped_run_is_saved_and_resumed(tmp_path, device):
    stopped = device.train(tmp_path, hooks=[inject(12, 'SIGTERM')], **FP16)
    assert stopped.code == 128 + 15
    assert stopped.saved('emergency*.pth') == ['emergency_iter_13.pth']
    assert device.train(tmp_path, '--resume', **FP16).digest()['finite']


def test_headroom_and_profile_read_the_device(tmp_path, device):
    hooks = [
        dict(type='mmstable.HeadroomHook', interval=5, max_share=1e-6),
        dict(
            type='mmstable.IterProfileHook', begin=5, interval=9, iterations=4
        ),
    ]
    run = device.train(tmp_path, hooks=hooks, **FP16)
    assert run.digest()['finite']
    assert run.events('low_headroom')
    (profile, *_) = run.events('iteration_profile')
    assert profile['gpu_busy'] == 97


def test_the_doctor_examines_all_devices(tmp_path, device):
    tests = ['--only', 'gpus', 'precision', '--json']
    run = device.run(['doctor', *tests], tmp_path)
    assert run.code == 0, run.log
    assert run.log.count('NVIDIA A100-SXM4-80GB') >= 8


@pytest.mark.soak
def test_the_self_test_of_a_device_passes(tmp_path):
    run = run_in_new_process(tmp_path, ['doctor', '--device'])
    assert run.code in (0, 8), run.log
    __, __, block = run.log.partition('To paste into an issue:')
    checks = 'wrapper rollback oom stacks lost snapshot explained resume'
    for one in checks.split():
        assert f'{one}: works' in block, run.log
    assert 'device: cuda:0' in block
