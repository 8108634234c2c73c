"""Every config loads, and every combination of bases builds."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import HOOKS
from torch import nn

import mmstable
from tests.some_files import some_files

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'
BASE = CONFIGS / '_base_'
RUNTIMES = ['default_runtime_fp16', 'default_runtime_bf16']
SCHEDULES = [path.stem for path in some_files(BASE, 'schedules/schedule_*.py')]
PRESETS = [path.stem for path in some_files(BASE, 'loss_scale/*.py')]
SCALES = {
    'bf16': None,
    'conservative': 128.0,
    'dynamic': 65536.0,
    'fp16_1024': 1024.0,
    'fp16_2048': 2048.0,
    'fp16_4096': 4096.0,
    'fp16_512': 512.0,
}


def write_leaf(
    folder: Path, runtime: str, schedule: str, preset: str, more: str = ''
) -> Config:
    leaf = folder / 'leaf.py'
    leaf.write_text(
        f"""_base_ = [
    '{BASE}/{runtime}.py',
    '{BASE}/schedules/{schedule}.py',
    '{BASE}/loss_scale/{preset}.py',
]
optim_wrapper = dict(dtype=_base_.amp_dtype, loss_scale=_base_.loss_scale)
{more}
"""
    )
    return Config.fromfile(leaf)


@pytest.mark.parametrize(
    'path',
    some_files(CONFIGS, '**/*.py'),
    ids=lambda path: path.relative_to(CONFIGS).as_posix(),
)
def test_every_config_loads(path: Path) -> None:
    assert len(Config.fromfile(path)) > 0


def test_presets_are_all_covered() -> None:
    assert set(SCALES) == set(PRESETS)


@pytest.mark.parametrize(
    ('runtime', 'preset'), list(product(RUNTIMES, PRESETS))
)
def test_every_combination_builds(
    tmp_path: Path, runtime: str, preset: str
) -> None:
    for schedule in SCHEDULES:
        cfg = write_leaf(tmp_path, runtime, schedule, preset)
        wrapper = build_optim_wrapper(nn.Linear(2, 2), cfg.optim_wrapper)
        assert type(wrapper) is mmstable.SafeAmpOptimWrapper
        assert wrapper.clip_grad_kwargs['max_norm'] == 35


@pytest.mark.parametrize('preset', PRESETS)
def test_preset_gives_its_scale(tmp_path: Path, preset: str) -> None:
    runtime = RUNTIMES[preset == 'bf16']
    cfg = write_leaf(tmp_path, runtime, 'schedule_20k_fp16', preset)
    wrapper = build_optim_wrapper(nn.Linear(2, 2), cfg.optim_wrapper)
    assert wrapper.loss_scaler.get_scale() == (SCALES[preset] or 1.0)


@pytest.mark.parametrize(
    ('line', 'key', 'expected'),
    [
        ('clip_grad=dict(max_norm=1.0)', 'clip_grad.max_norm', 1.0),
        ('loss_scale=512', 'loss_scale', 512),
        ('loss_scale=dict(frozen=True)', 'loss_scale.init_scale', 1024.0),
    ],
)
def test_a_leaf_changes_one_value_in_one_line(
    tmp_path: Path, line: str, key: str, expected: float
) -> None:
    write_leaf(tmp_path, RUNTIMES[0], 'schedule_200k_fp16', 'fp16_1024')
    child = tmp_path / 'child.py'
    child.write_text(f"_base_ = './leaf.py'\noptim_wrapper = dict({line})\n")
    cfg = Config.fromfile(child)
    value = cfg.optim_wrapper
    for part in key.split('.'):
        value = value[part]
    assert value == expected
    assert cfg.optim_wrapper.clip_grad.norm_type == 2
    assert build_optim_wrapper(nn.Linear(2, 2), cfg.optim_wrapper)


def test_the_average_is_added_to_the_hooks_of_the_runtime(
    tmp_path: Path,
) -> None:
    leaf = tmp_path / 'leaf.py'
    leaf.write_text(
        f"""_base_ = ['{BASE}/{RUNTIMES[0]}.py', '{BASE}/ema.py']
custom_hooks = [*_base_.custom_hooks, _base_.ema_hook]
"""
    )
    runtime = Config.fromfile(BASE / f'{RUNTIMES[0]}.py')
    *others, average = Config.fromfile(leaf).custom_hooks
    assert others == runtime.custom_hooks
    assert type(HOOKS.build(average)) is mmstable.hooks.SafeEMAHook


STABILITY = [path.stem for path in some_files(BASE, 'stability/*.py')]


def write_stable_leaf(folder: Path, preset: str) -> Config:
    leaf = folder / 'leaf.py'
    leaf.write_text(
        f"""_base_ = [
    '{BASE}/{RUNTIMES[0]}.py',
    '{BASE}/schedules/schedule_20k_fp16.py',
    '{BASE}/stability/{preset}.py',
]
optim_wrapper = _base_.stability.optim_wrapper
default_hooks = dict(guard=_base_.stability.guard)
"""
    )
    return Config.fromfile(leaf)


@pytest.mark.parametrize('preset', STABILITY)
def test_every_stability_preset_builds(tmp_path: Path, preset: str) -> None:
    cfg = write_stable_leaf(tmp_path, preset)
    wrapper = build_optim_wrapper(nn.Linear(2, 2), cfg.optim_wrapper)
    assert type(wrapper) is mmstable.SafeAmpOptimWrapper
    guard = HOOKS.build(cfg.default_hooks.guard)
    assert type(guard) is mmstable.hooks.DivergenceGuardHook
    assert cfg.default_hooks.checkpoint.type == 'mmstable.SafeCheckpointHook'


def test_stability_presets_get_stricter(tmp_path: Path) -> None:
    names = ['default', 'safe', 'ultra_safe']
    cfgs = [write_stable_leaf(tmp_path, name) for name in names]
    guards = [cfg.default_hooks.guard for cfg in cfgs]
    for key in ('window', 'max_consecutive_bad', 'lr_factor'):
        values = [guard[key] for guard in guards]
        assert values == sorted(values, reverse=True)
    norms = [cfg.optim_wrapper.clip_grad.max_norm for cfg in cfgs]
    assert norms == sorted(norms, reverse=True)
    scales = [cfg.optim_wrapper.loss_scale.init_scale for cfg in cfgs]
    assert scales == sorted(scales, reverse=True)


def test_the_default_preset_spells_out_the_defaults() -> None:
    import inspect

    guard = dict(
        Config.fromfile(BASE / 'stability/default.py').stability.guard
    )
    guard.pop('type')
    defaults = inspect.signature(mmstable.hooks.DivergenceGuardHook).parameters
    assert guard == {name: defaults[name].default for name in guard}


@pytest.mark.parametrize('kind', ['iter', 'epoch'])
def test_schedules_wait_for_skipped_steps(kind: str) -> None:
    cfg = Config.fromfile(BASE / 'schedules' / f'{kind}_based_fp16.py')
    hook = HOOKS.build(cfg.default_hooks.param_scheduler)
    assert type(hook) is mmstable.hooks.SafeParamSchedulerHook


@pytest.mark.parametrize(
    ('schedule', 'key', 'length'),
    [
        ('schedule_20k_fp16', 'max_iters', 20_000),
        ('schedule_40k_fp16', 'max_iters', 40_000),
        ('schedule_80k_fp16', 'max_iters', 80_000),
        ('schedule_160k_fp16', 'max_iters', 160_000),
        ('schedule_200k_fp16', 'max_iters', 200_000),
        ('schedule_12e_fp16', 'max_epochs', 12),
        ('schedule_24e_fp16', 'max_epochs', 24),
        ('schedule_36e_fp16', 'max_epochs', 36),
        ('schedule_100e_fp16', 'max_epochs', 100),
        ('schedule_300e_fp16', 'max_epochs', 300),
    ],
)
def test_schedule_has_the_length_of_its_name(
    schedule: str, key: str, length: int
) -> None:
    cfg = Config.fromfile(BASE / 'schedules' / f'{schedule}.py')
    assert cfg.train_cfg[key] == length
