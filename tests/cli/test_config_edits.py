"""What `mmstable train` changes in a config before it is built."""

from __future__ import annotations

import pytest
from mmengine.config import Config
from mmengine.optim import OptimWrapper

from mmstable.cli import config as edits
from mmstable.errors import UsageError
from mmstable.protection import drop_absent_hooks

SAFE_AMP = 'mmstable.SafeAmpOptimWrapper'


def test_none_switches_a_hook_off():
    cfg = Config(
        dict(default_hooks=dict(guard=None, logger=None, timer=dict(type='T')))
    )
    drop_absent_hooks(cfg)
    # mmengine lets go of its own by itself.
    assert cfg.default_hooks == dict(logger=None, timer=dict(type='T'))


def test_a_config_without_hooks_is_left_alone():
    cfg = Config(dict(model=dict(type='M')))
    drop_absent_hooks(cfg)
    assert 'default_hooks' not in cfg


@pytest.mark.parametrize(
    'kind',
    [
        None,
        'OptimWrapper',
        'AmpOptimWrapper',
        'mmengine.AmpOptimWrapper',
        'mmstable.SafeOptimWrapper',
        OptimWrapper,
    ],
)
def test_amp_replaces_plain_wrappers(kind: object) -> None:
    wrapper = dict(optimizer=dict(type='SGD'), accumulative_counts=3)
    if kind is not None:
        wrapper['type'] = kind
    cfg = Config(dict(optim_wrapper=wrapper))
    edits.enable_amp(cfg)
    assert cfg.optim_wrapper.type == SAFE_AMP
    assert cfg.optim_wrapper.accumulative_counts == 3


def test_amp_replaces_each_wrapper_of_several() -> None:
    one = dict(type='OptimWrapper', optimizer=dict(type='SGD'))
    wrapper = dict(constructor='Mine', generator=one, critic=dict(one))
    cfg = Config(dict(optim_wrapper=wrapper))
    edits.enable_amp(cfg)
    assert cfg.optim_wrapper.generator.type == SAFE_AMP
    assert cfg.optim_wrapper.critic.type == SAFE_AMP
    assert 'type' not in cfg.optim_wrapper


def test_amp_keeps_a_fixed_loss_scale_from_growing() -> None:
    wrapper = dict(type='AmpOptimWrapper', loss_scale=512.0)
    cfg = Config(dict(optim_wrapper=wrapper))
    edits.enable_amp(cfg)
    fixed = dict(init_scale=512.0, max_scale=512.0)
    assert cfg.optim_wrapper.loss_scale == fixed


def test_amp_refuses_other_wrappers() -> None:
    cfg = Config(dict(optim_wrapper=dict(type='ApexOptimWrapper')))
    with pytest.raises(UsageError, match=r"--amp: .*got 'ApexOptimWrapper'"):
        edits.enable_amp(cfg)
    with pytest.raises(UsageError, match='has no `optim_wrapper`'):
        edits.enable_amp(Config())


def test_seed_keeps_other_randomness() -> None:
    cfg = Config(dict(randomness=dict(seed=1, diff_rank_seed=True)))
    edits.set_seed(cfg, 5, deterministic=True)
    assert cfg.randomness == dict(
        seed=5, diff_rank_seed=True, deterministic=True
    )


def test_no_validate_removes_what_needs_a_metric() -> None:
    cfg = Config(
        dict(
            val_cfg=dict(type='ValLoop'),
            val_dataloader=dict(batch_size=1),
            val_evaluator=dict(type='Acc'),
            default_hooks=dict(checkpoint=dict(save_best='auto', interval=1)),
        )
    )
    edits.disable_validation(cfg)
    assert cfg.val_cfg is cfg.val_dataloader is cfg.val_evaluator is None
    assert cfg.default_hooks.checkpoint == dict(interval=1)


@pytest.mark.parametrize(
    ('hooks', 'kind', 'expected'),
    [
        ([], 'socket', {}),
        ([], 'probing', dict(use_probing=True)),
        ([dict(patience=1.0)], 'socket', dict(patience=1.0)),
        ([dict(use_probing=True)], 'socket', dict(use_probing=True)),
        (
            [dict(use_probing=False, patience=1.0)],
            'probing',
            dict(use_probing=True, patience=1.0),
        ),
    ],
)
def test_probe_adds_the_hook_once(hooks, kind, expected):
    name = 'mmstable.LiveProbeHook'
    cfg = Config(dict(custom_hooks=[dict(type=name, **h) for h in hooks]))
    edits.add_probe(cfg, kind)
    assert cfg.custom_hooks == [dict(type=name, **expected)]
