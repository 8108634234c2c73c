"""What protection changes in a config, and what it leaves alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import CheckpointHook, EMAHook
from mmengine.registry import HOOKS

from mmstable.cli.command import MEMORY, STABILITY
from mmstable.errors import UsageError
from mmstable.hooks import EventLogHook
from mmstable.optim.loss_scale import LossScaler, ScalePolicy
from mmstable.protection import (
    Group,
    Protection,
    apply_changes,
    find_changes,
)
from mmstable.settings import runtime_hooks

CONFIGS = Path(__file__).resolve().parents[2] / 'configs' / '_base_'
SGD = dict(type='SGD', lr=0.1)
PLAIN: dict[str, Any] = dict(
    train_cfg=dict(by_epoch=True, max_epochs=3, val_interval=2),
    val_cfg=dict(fp16=True),
    optim_wrapper=dict(optimizer=SGD, accumulative_counts=2),
    train_dataloader=dict(batch_size=8, num_workers=6),
)
AMP = dict(type='AmpOptimWrapper', optimizer=SGD)


@HOOKS.register_module()
class OwnCheckpointHook(CheckpointHook):
    """Somebody's own."""


@HOOKS.register_module()
class OwnEventLogHook(EventLogHook):
    """Somebody's, derived from ours."""


def protected(
    settings: dict[str, Any], *args: Any
) -> tuple[dict[str, Any], Protection]:
    before = copy.deepcopy(settings)
    found = find_changes(settings, *args)
    assert settings == before
    new = copy.deepcopy(settings)
    apply_changes(new, found.changes)
    assert find_changes(new, *args[:1]).changes == []
    return new, found


def kinds(settings: dict[str, Any]) -> list[str]:
    return [one['type'].rpartition('.')[2] for one in settings['custom_hooks']]


def test_the_names_of_the_presets_are_their_files() -> None:
    stability = {path.stem for path in CONFIGS.glob('stability/*.py')}
    memory = {path.stem for path in CONFIGS.glob('memory/*.py')} - {'loader'}
    assert (stability, memory) == (set(STABILITY), set(MEMORY))


def test_classes_are_replaced_and_arguments_kept() -> None:
    new, found = protected(PLAIN)
    assert new['train_cfg'] == dict(
        type='mmstable.SafeEpochBasedTrainLoop', max_epochs=3, val_interval=2
    )
    assert new['val_cfg'] == dict(type='mmstable.SafeValLoop', fp16=True)
    assert new['optim_wrapper'] == dict(
        PLAIN['optim_wrapper'], type='mmstable.SafeOptimWrapper'
    )
    assert new['default_hooks'] == dict(
        param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
        checkpoint=dict(type='mmstable.SafeCheckpointHook', interval=1),
        guard=dict(type='mmstable.DivergenceGuardHook'),
    )
    assert kinds(new) == [*runtime_hooks()]
    assert 'test_cfg' not in new
    assert found.left == []


@pytest.mark.parametrize(
    ('scale', 'becomes'),
    [
        # Fixed for mmengine: it may fall and come back, but never grow.
        (512.0, dict(init_scale=512.0, max_scale=512.0)),
        (0.5, dict(init_scale=0.5, max_scale=0.5)),
        ('dynamic', 'dynamic'),
        (dict(init_scale=0.5, enabled=True),) * 2,
    ],
)
def test_a_loss_scale_keeps_its_meaning(scale: Any, becomes: Any) -> None:
    wrapper = dict(
        type='AmpOptimWrapper',
        loss_scale=scale,
        optimizer=dict(type='SGD', lr=0.1),
    )
    new, _ = protected(dict(PLAIN, optim_wrapper=wrapper))
    assert new['optim_wrapper']['loss_scale'] == becomes
    policy = ScalePolicy.from_config(becomes)
    scaler = LossScaler(policy)
    scaler.note_bad_gradients()
    assert policy.min_scale <= scaler.get_scale() <= policy.init_scale
    for __ in range(3 * policy.growth_interval):
        scaler.note_clean_step()
    grown = scaler.get_scale() > policy.init_scale
    assert grown is not isinstance(scale, float)
    # A number is a start value for the safe wrapper itself.
    wrapper['type'] = 'mmstable.SafeAmpOptimWrapper'
    new, _ = protected(dict(PLAIN, optim_wrapper=wrapper))
    assert new['optim_wrapper']['loss_scale'] == scale


@pytest.mark.parametrize(
    'kind',
    ['EMAHook', 'mmengine.EMAHook', 'mmengine.hooks.EMAHook', EMAHook],
    ids=str,
)
def test_a_class_may_be_named_in_any_way(kind: Any) -> None:
    hook = dict(type=kind, momentum=0.1, priority=49)
    new, _ = protected(dict(PLAIN, custom_hooks=[hook]))
    assert new['custom_hooks'][0] == dict(hook, type='mmstable.SafeEMAHook')


@pytest.mark.parametrize('scope', ['mmengine', 'mmstable', 'mmseg', None])
@pytest.mark.parametrize('prefix', ['', 'mmstable.', 'mmstable.hooks.'])
def test_a_hook_that_is_there_is_not_added(
    scope: str | None, prefix: str
) -> None:
    mine = dict(type=f'{prefix}EventLogHook', interval=7)
    settings = dict(PLAIN, custom_hooks=(mine,), default_scope=scope)
    new, _ = protected(settings)
    assert new['custom_hooks'][0] == mine
    assert sorted(kinds(new)) == sorted(runtime_hooks())


def test_a_hook_by_class_or_of_a_derived_class_is_there() -> None:
    hooks = [dict(type='OwnEventLogHook')]
    new, _ = protected(dict(PLAIN, custom_hooks=hooks))
    assert 'EventLogHook' not in kinds(new)
    named = dict(log=dict(type=EventLogHook))
    new, _ = protected(dict(PLAIN, default_hooks=named))
    assert 'EventLogHook' not in kinds(new)


def test_what_others_derived_is_left_alone_and_named() -> None:
    checkpoint = dict(type='OwnCheckpointHook', interval=5)
    wrapper = dict(type='ApexOptimWrapper', optimizer=SGD)
    settings = dict(
        PLAIN,
        default_hooks=dict(checkpoint=checkpoint),
        optim_wrapper=wrapper,
    )
    new, found = protected(settings)
    assert new['default_hooks']['checkpoint'] == checkpoint
    assert new['optim_wrapper'] == wrapper
    assert found.left == [
        'optim_wrapper (ApexOptimWrapper)',
        'default_hooks.checkpoint (OwnCheckpointHook)',
    ]


def test_what_is_switched_off_stays_off() -> None:
    off = dict(checkpoint=None, param_scheduler=None, guard=None)
    new, _ = protected(dict(PLAIN, default_hooks=off, val_cfg=None))
    assert new['default_hooks'] == off
    assert new['val_cfg'] is None


def test_somebody_elses_guard_is_no_guard() -> None:
    mine = dict(type='SyncBuffersHook')
    new, _ = protected(dict(PLAIN, default_hooks=dict(guard=mine)))
    assert new['default_hooks']['guard'] == mine
    assert kinds(new)[-1] == 'DivergenceGuardHook'


def test_options_of_the_guard_are_enough() -> None:
    hooks = dict(guard=dict(max_rollbacks=1))
    new, _ = protected(dict(PLAIN, default_hooks=hooks))
    assert new['default_hooks']['guard'] == dict(
        type='mmstable.DivergenceGuardHook', max_rollbacks=1
    )


def test_each_wrapper_of_several_is_replaced() -> None:
    wrapper = dict(constructor='Mine', gen=AMP, dis=dict(optimizer=SGD))
    new, _ = protected(dict(PLAIN, optim_wrapper=wrapper))
    found = new['optim_wrapper']
    assert found['gen']['type'] == 'mmstable.SafeAmpOptimWrapper'
    assert found['dis']['type'] == 'mmstable.SafeOptimWrapper'
    assert 'type' not in found


@pytest.mark.parametrize('preset', ['safe', 'ultra_safe'])
def test_a_preset_sets_its_numbers(preset: str) -> None:
    new, _ = protected(dict(PLAIN, optim_wrapper=AMP), preset)
    wrapper = new['optim_wrapper']
    assert wrapper['clip_grad']['max_norm'] <= 1
    assert wrapper['loss_scale']['init_scale'] <= 256
    assert '_delete_' not in str(new)
    assert new['default_hooks']['guard']['max_consecutive_bad'] <= 5


@pytest.mark.parametrize(
    ('clip', 'kept'),
    [
        (dict(max_norm=0.1), True),
        (dict(max_norm=0.1, norm_type=1), False),
        (dict(max_norm=35, norm_type=2), False),
        (dict(type='value', clip_value=0.1), False),
        (None, False),
    ],
)
def test_a_preset_never_clips_less(clip: Any, kept: bool) -> None:
    wrapper = dict(optimizer=SGD, clip_grad=clip)
    new, _ = protected(dict(PLAIN, optim_wrapper=wrapper), 'safe')
    assert (new['optim_wrapper']['clip_grad'] == clip) is kept
    # Without fp16 there is nothing to scale.
    assert 'loss_scale' not in new['optim_wrapper']


def test_the_default_preset_sets_no_number() -> None:
    new, _ = protected(dict(PLAIN, optim_wrapper=AMP))
    assert set(new['optim_wrapper']) == set(AMP)


def test_who_only_observes_replaces_nothing() -> None:
    new, _ = protected(PLAIN, 'observe_only')
    for key, value in PLAIN.items():
        assert new[key] == value
    assert set(new['default_hooks']) == {'guard'}
    actions = new['default_hooks']['guard']['actions']
    assert set(actions.values()) == {'warn'}
    assert not {'EmergencyCheckpointHook', 'RankFailureHook'} & set(kinds(new))
    assert {'EventLogHook', 'FaultForensicsHook'} <= set(kinds(new))


@pytest.mark.parametrize('preset', STABILITY)
@pytest.mark.parametrize('wrapper', [AMP, dict(optimizer=SGD)])
def test_every_hook_of_every_preset_can_be_built(
    preset: str, wrapper: dict[str, Any]
) -> None:
    new, _ = protected(dict(PLAIN, optim_wrapper=wrapper), preset)
    for hook in [*new['custom_hooks'], new['default_hooks']['guard']]:
        assert HOOKS.build(dict(hook))


def test_memory_keeps_the_samples_of_a_step() -> None:
    new, _ = protected(PLAIN, 'default', 'conservative')
    assert new['train_dataloader'] == dict(
        batch_size=2,
        num_workers=4,
        prefetch_factor=2,
        persistent_workers=False,
    )
    assert new['optim_wrapper']['accumulative_counts'] == 8
    assert new['optim_wrapper']['type'] == 'mmstable.SafeOptimWrapper'
    assert kinds(new)[0] == 'SafeActivationCheckpointHook'


def test_memory_takes_bf16_and_leaves_loaders_without_workers() -> None:
    data = dict(batch_size=3, num_workers=0)
    settings = dict(PLAIN, train_dataloader=data)
    new, _ = protected(settings, 'default', 'max_saving')
    # Three samples cannot be halved.
    assert new['train_dataloader'] == data
    assert new['optim_wrapper']['accumulative_counts'] == 2
    assert new['optim_wrapper']['type'] == 'mmstable.SafeAmpOptimWrapper'
    assert new['optim_wrapper']['dtype'] == 'bfloat16'


@pytest.mark.parametrize(
    ('wrapper', 'message'),
    [
        (dict(a=AMP, b=AMP), 'one optimizer wrapper, and the config has 2'),
        (dict(AMP, type='ApexOptimWrapper'), 'not ApexOptimWrapper'),
    ],
)
def test_memory_is_refused(wrapper: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_changes(dict(PLAIN, optim_wrapper=wrapper), 'default', 'balanced')


def test_back_ends_are_queued_once() -> None:
    backends = [dict(type='LocalVisBackend'), dict(type='W', name='mine')]
    visualizer = dict(type='Visualizer', vis_backends=backends)
    new, _ = protected(dict(PLAIN, visualizer=visualizer))
    first, second = new['visualizer']['vis_backends']
    assert (first['name'], second['name']) == ('LocalVisBackend', 'mine')
    assert first['backend'] == backends[0]


def test_of_engines_the_optimizer_is_left_alone() -> None:
    strategy = dict(type='DeepSpeedStrategy')
    new, found = protected(dict(PLAIN, strategy=strategy))
    assert found.strategy == 'DeepSpeedStrategy'
    assert new['optim_wrapper'] == PLAIN['optim_wrapper']
    assert 'checkpoint' not in new.get('default_hooks', {})
    hooks = [one.word for one in found.changes if one.group is Group.HOOK]
    assert hooks == [
        *('EventLogHook', 'MemoryGuardHook', 'EmergencyCheckpointHook'),
        *('RankFailureHook', 'HangWatchdogHook', 'EngineHook'),
    ]
    (first, *_) = found.lines('title')
    assert 'DeepSpeedStrategy owns optimizer' in first
    assert 'Not protected: bad steps' in first


@pytest.mark.parametrize('strategy', ['SingleDeviceStrategy', None])
def test_a_strategy_saves_its_own_checkpoints(strategy) -> None:
    settings = dict(PLAIN, runner_type='mmengine.FlexibleRunner')
    if strategy is not None:
        settings.update(strategy=dict(type=strategy))
    new, found = protected(settings)
    assert 'checkpoint' not in new['default_hooks']
    assert new['optim_wrapper']['type'] == 'mmstable.SafeOptimWrapper'
    assert found.left == ['default_hooks.checkpoint (CheckpointHook)']


def test_fsdp_gets_checkpoints_that_can_be_resumed() -> None:
    strategy = dict(type='FSDPStrategy', model_wrapper=dict())
    runner = 'FlexibleRunner'
    new, _ = protected(dict(PLAIN, strategy=strategy, runner_type=runner))
    assert new['strategy']['type'] == 'mmstable.SafeFSDPStrategy'
    hook = new['default_hooks']['checkpoint']
    assert hook['type'] == 'mmstable.SafeCheckpointHook'


@pytest.mark.parametrize(
    'broken',
    [
        dict(custom_hooks=dict(type='EMAHook')),
        dict(custom_hooks='EMAHook'),
        dict(default_hooks=[dict(type='EMAHook')]),
        dict(custom_hooks=['EMAHook', None, 3]),
        dict(custom_hooks=[dict(type='NoSuchHook'), dict()]),
        dict(optim_wrapper=None),
        dict(optim_wrapper='OptimWrapper'),
        dict(optim_wrapper=dict(type='NoSuchWrapper', optimizer=SGD)),
        dict(train_cfg=None),
        dict(train_cfg=dict(max_epochs=3)),
        dict(visualizer='Visualizer'),
        dict(default_scope='nowhere'),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_left_to_others(broken: dict) -> None:
    protected({**PLAIN, **broken})
