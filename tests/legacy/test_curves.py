"""Learning rates and momenta equal those of mmcv 1.7.2, everywhere.

The curves were recorded from mmcv by ``record_mmcv_curves.py``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import ConfigDict

from mmstable.legacy.schedules import LR_POLICIES, MOMENTUM_POLICIES
from mmstable.legacy.translate import translate
from mmstable.optim import SafeOptimWrapper
from mmstable.registry import PARAM_SCHEDULERS
from tests.legacy.record_mmcv_curves import build_optimizer

RECORDED = json.loads(Path(__file__).with_name('mmcv_curves.json').read_text())
EPOCHS, LENGTH = (RECORDED['recorded'][key] for key in ('epochs', 'length'))
ITERS = EPOCHS * LENGTH
CURVES = RECORDED['curves']
# Nothing is trained here.
pytestmark = pytest.mark.filterwarnings('ignore:Detected call of')


def old_config(curve: dict[str, Any]) -> dict[str, Any]:
    runner = dict(type=curve['runner'], max_epochs=EPOCHS)
    if curve['runner'] == 'IterBasedRunner':
        runner = dict(type=curve['runner'], max_iters=ITERS)
    return {'runner': runner, curve['key']: curve['config']}


def build(config: dict[str, Any], wrapper: Any, total: dict) -> Any:
    """What ``Runner.build_param_scheduler`` does."""
    config = ConfigDict(config)
    key = 'max_epochs' if config.get('by_epoch', True) else 'max_iters'
    config.setdefault('end', total[key])
    return PARAM_SCHEDULERS.build(
        config, default_args=dict(optimizer=wrapper, epoch_length=LENGTH)
    )


def follow(curve: dict[str, Any], restart: int | None = None) -> list[Any]:
    """The values of all iterations, by the translated config."""
    wrapper = SafeOptimWrapper(build_optimizer(curve['optimizer']))
    translation = translate(old_config(curve))
    configs = translation.settings['param_scheduler'] or []
    total = dict(max_epochs=EPOCHS, max_iters=ITERS)
    schedulers = [build(one, wrapper, total) for one in configs]
    rows: list[list[float]] = [[] for _ in wrapper.param_groups]
    for iteration in range(ITERS):
        if iteration == restart:
            states = [one.state_dict() for one in schedulers]
            state = wrapper.state_dict()
            wrapper = SafeOptimWrapper(build_optimizer(curve['optimizer']))
            # In the order of mmengine.
            schedulers = [build(one, wrapper, total) for one in configs]
            wrapper.load_state_dict(state)
            for one, saved in zip(schedulers, states):
                one.load_state_dict(saved)
        for group, row in zip(wrapper.param_groups, rows):
            row.append(read(group, curve['key']))
        for one in schedulers:
            if not one.by_epoch or (iteration + 1) % LENGTH == 0:
                one.step()
    return rows


def read(group: dict[str, Any], key: str) -> float:
    if key == 'lr_config':
        return group['lr']
    return group['betas'][0] if 'betas' in group else group['momentum']


@pytest.mark.parametrize(
    ('key', 'policy'),
    sorted({(one['key'], one['config']['policy']) for one in CURVES}),
)
def test_every_iteration_is_as_in_mmcv(key: str, policy: str) -> None:
    for curve in CURVES:
        if (curve['key'], curve['config']['policy']) != (key, policy):
            continue
        rows = follow(curve)
        assert len(rows[0]) == len(curve['values'][0]) == ITERS
        for row, recorded in zip(rows, curve['values']):
            for value, wanted in zip(row, recorded):
                assert math.isclose(value, wanted, rel_tol=1e-12), curve


def test_a_resumed_schedule_goes_on_as_if_nothing_was() -> None:
    for curve in CURVES[::9]:
        assert follow(curve, restart=11) == follow(curve), curve


def test_every_policy_and_warmup_was_recorded() -> None:
    assert RECORDED['recorded']['mmcv'] == '1.7.2'
    found = Counter(
        (
            curve['key'],
            curve['config']['policy'],
            curve['config'].get('warmup'),
        )
        for curve in CURVES
    )
    for kind, policies in (
        ('lr_config', LR_POLICIES),
        ('momentum_config', MOMENTUM_POLICIES),
    ):
        for policy in policies:
            for warmup in (None, 'constant', 'linear', 'exp'):
                assert found[kind, policy, warmup] >= 1
    by_epoch = {
        (curve['config']['policy'], curve['config']['warmup'])
        for curve in CURVES
        if curve['config'].get('warmup_by_epoch')
    }
    assert len(by_epoch) == 3 * len(LR_POLICIES)


def test_a_saved_schedule_loads_under_the_guard(tmp_path: Path) -> None:
    wrapper = SafeOptimWrapper(build_optimizer('SGD'))
    config = ConfigDict(
        type='mmstable.PolicyLR',
        policy='cyclic',
        target_ratio=(4, 1e-3),
        by_epoch=False,
    )
    scheduler = build(config, wrapper, dict(max_iters=ITERS))
    torch.save(scheduler.state_dict(), tmp_path / 'state.pth')
    state = torch.load(tmp_path / 'state.pth', weights_only=True)
    assert state['policy'] == 'cyclic'
