"""What every hook of mmstable promises, whatever it does."""

import copy
import inspect
import math

import pytest
from mmengine.hooks import Hook

import mmstable.hooks
from mmstable.registry import HOOKS
from tests.toys import NAN, Sabotage, assert_same, toy_runner, weights

# What a hook cannot do without.
NEEDED = {'GradClipHook': dict(method='percentile', warmup=2)}
# Both need checking: one steps ahead of the host, the other does not.
WRAPPERS = {
    'fused': dict(
        type='mmstable.SafeAmpOptimWrapper',
        loss_scale=64.0,
        optimizer=dict(type='AdamW', lr=0.01, fused=True),
    ),
    'plain': dict(
        type='mmstable.SafeOptimWrapper',
        optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
    ),
    'stock': dict(
        type='OptimWrapper',
        optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
    ),
}
NAMES = sorted(HOOKS.module_dict)


def config_of(name):
    return dict(type=f'mmstable.{name}', **copy.deepcopy(NEEDED.get(name, {})))


def run(work_dir, name, wrapper, max_iters=8, **kwargs):
    # mmengine's own wrapper would put the NaN into the weights.
    grads = {} if wrapper == 'stock' else {3: ('net.head.weight', NAN)}
    runner = toy_runner(
        work_dir,
        copy.deepcopy(WRAPPERS[wrapper]),
        max_iters,
        [Sabotage(grads=grads), config_of(name)],
        **kwargs,
    )
    runner.train()
    return runner


def test_every_hook_is_known():
    public = {
        name
        for name, value in vars(mmstable.hooks).items()
        if inspect.isclass(value) and issubclass(value, Hook)
    }
    assert public == set(NAMES)
    assert set(NEEDED) <= set(NAMES)


def scalars(runner):
    return {
        key: [x for x in buffer.data[0].tolist() if math.isfinite(x)]
        for key, buffer in runner.message_hub.log_scalars.items()
        if 'time' not in key
    }


@pytest.mark.parametrize('wrapper', WRAPPERS)
@pytest.mark.parametrize('name', NAMES)
def test_a_resume_half_way_ends_as_an_unbroken_run(tmp_path, name, wrapper):
    whole = run(tmp_path / 'whole', name, wrapper)
    run(
        tmp_path / 'part',
        name,
        wrapper,
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=4, by_epoch=False)
        ),
    )
    rest = run(
        tmp_path / 'rest',
        name,
        wrapper,
        load_from=str(tmp_path / 'part' / 'iter_4.pth'),
        resume=True,
    )
    assert_same(weights(rest.model), weights(whole.model))
    assert_same(
        rest.optim_wrapper.state_dict(), whole.optim_wrapper.state_dict()
    )
    assert scalars(rest) == scalars(whole)
    for hook_a, hook_b in zip(rest.hooks, whole.hooks):
        if hasattr(hook_a, 'state_dict'):
            assert_same(hook_a.state_dict(), hook_b.state_dict())


@pytest.mark.parametrize('name', NAMES)
def test_the_bare_name_works_too(name):
    from mmengine.registry import HOOKS as ROOT

    settings = config_of(name)
    hook = ROOT.build({**settings, 'type': name})
    assert type(hook) is HOOKS.get(name)


@pytest.mark.parametrize('name', NAMES)
def test_two_runs_in_one_process_do_not_mix(tmp_path, name):
    alone = run(tmp_path / 'alone', name, 'fused')
    run(tmp_path / 'other', name, 'plain', max_iters=5)
    again = run(tmp_path / 'again', name, 'fused')
    assert_same(weights(again.model), weights(alone.model))
    assert scalars(again) == scalars(alone)
