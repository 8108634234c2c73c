"""What every hook of mmstable promises, whatever it does."""

import copy
import inspect
import math

import pytest
import torch
from mmengine.hooks import Hook

import mmstable.hooks
from mmstable.registry import HOOKS
from mmstable.report import StepFault, read_events
from tests.optim.test_against_stock import CpuAmpOptimWrapper
from tests.toys import (
    INF,
    NAN,
    Sabotage,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)

# What a hook cannot do without.
NEEDED = {
    'GradClipHook': dict(method='percentile', warmup=2),
    # Once imported, `probing` stays in the process.
    'LiveProbeHook': dict(use_probing=False),
}
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
# What takes the place of a default hook of mmengine.
DEFAULTS = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
    ),
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
)
REPLACING = ('SafeCheckpointHook', 'SafeParamSchedulerHook')


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


def stock_amp(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return CpuAmpOptimWrapper(64.0, optimizer=optimizer)


ALL_AT_ONCE = {
    **{
        key: lambda _, key=key: copy.deepcopy(WRAPPERS[key])
        for key in WRAPPERS
    },
    'stock_amp': stock_amp,
}


@pytest.mark.parametrize('wrapper', ALL_AT_ONCE)
def test_all_hooks_together_agree_on_a_fault(tmp_path, wrapper):
    model, told = ToyModel(), Told()
    # One that hooks disagree about would be told or counted twice.
    runner = toy_runner(
        tmp_path,
        ALL_AT_ONCE[wrapper](model),
        6,
        [
            Sabotage(grads={3: ('net.head.weight', INF)}),
            *(config_of(name) for name in NAMES if name not in REPLACING),
            told,
        ],
        model=model,
        default_hooks=DEFAULTS,
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=6)
        ],
    )
    runner.train()
    # mmengine's own wrapper puts it into the weights: every step after that
    # is bad, until the guard has rolled back.
    bad = [3, 4, 5, 6] if wrapper == 'stock' else [3]
    assert told.steps == [1, 2, 3, 4, 5, 6]
    assert told.bad[0] == bad[0]
    assert set(told.bad) <= set(bad)
    path = next(tmp_path.glob('*/stability/events.jsonl'))
    events = list(read_events(path))
    faults = [e for e in events if isinstance(e, StepFault)]
    assert [e.iteration for e in faults] == told.bad
    totals = events[-1].wrappers['optim_wrapper']
    skipped = [e for e in faults if e.skipped]
    assert totals.skipped == len(skipped)
    assert totals.applied + totals.skipped == 6
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert log.count('Iter 3: gradient of') == 1
    if wrapper != 'stock':
        assert all(p.isfinite().all() for p in model.parameters())


class Told(Hook):
    """Notes the iterations of the steps that it is told of."""

    def __init__(self) -> None:
        self.steps, self.bad = [], []

    def after_step(self, runner, name, report):
        self.steps.append(report.iteration)

    def after_bad_step(self, runner, report):
        self.bad.append(report.iteration)
