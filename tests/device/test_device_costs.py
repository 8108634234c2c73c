"""Kernel launches and host waits of an iteration, counted."""

from __future__ import annotations

import pytest

# As many as ResNet-50 has.
NORMS = dict(model__depth=53, model__width=2)
# Before the first line of the log, without a validation and a checkpoint.
COUNT = dict(type='CountHook', first=4, last=8)


def per_iteration(run, name):
    counts = run.counts()
    return counts[name] / counts['iterations']


# No overflow, which is a step of its own kind.
FP16 = dict(
    optim_wrapper__type='AmpOptimWrapper', optim_wrapper__loss_scale=128.0
)
FUSED = dict(optim_wrapper__optimizer__fused=True)


@pytest.mark.parametrize(
    ('settings', 'limit'),
    [
        ({}, 4),
        (FP16, 4),
        # torch itself subtracts the flag that withholds a step from all step
        # counters, in 4 launches; without it the host would have to wait.
        (FUSED, 8),
        ({**FUSED, **FP16}, 4),
    ],
    ids=['fp32', 'fp16', 'fused-fp32', 'fused-fp16'],
)
def test_an_iteration_launches_as_little_as_stock(
    tmp_path, device, settings, limit
):
    changes = dict(NORMS, hooks=[COUNT], train_cfg__max_iters=9, **settings)
    stock = device.train_stock(tmp_path / 'stock', **changes)
    safe = device.train(tmp_path / 'safe', **changes)
    places = safe.counts()['kernel_places']
    launches = per_iteration(safe, 'kernels') - per_iteration(stock, 'kernels')
    assert launches <= limit, {
        k: v for k, v in places.items() if 'mmstable' in k
    }
    waits = safe.counts()['sync_places']
    more = per_iteration(safe, 'syncs') - per_iteration(stock, 'syncs')
    assert more <= 0, waits
    assert safe.counts()['races'] == 0


@pytest.mark.parametrize(
    'case',
    [
        'own_generator_only',
        'snapshots_take_what_they_need',
        'a_checkpoint_is_written_from_a_snapshot',
    ],
)
def test_no_more_is_read_or_taken_than_needed(tmp_path, device, case):
    device.call(case, tmp_path)


def test_snapshots_are_copied_beside_the_training(tmp_path, device):
    """Steps, averages and validations wait for the copy, the host never."""
    guard = dict(type='mmstable.DivergenceGuardHook', snapshot_interval=3)
    count = dict(type='CountHook', first=4, last=23)
    hooks = [guard, dict(type='EMAHook'), count]
    run = device.train(
        tmp_path / 'run',
        hooks=hooks,
        optim_wrapper__accumulative_counts=2,
        train_cfg__val_interval=6,
        # A checkpoint waits for its snapshot.
        default_hooks__checkpoint__interval=1000,
    )
    assert run.counts()['races'] == 0
    places = run.counts()['sync_places']
    assert not [one for one in places if 'state/' in one], places
