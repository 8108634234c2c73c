"""``mmstable.protect(cfg)``, as a notebook would call it."""

from __future__ import annotations

import pytest
from mmengine.config import Config

import mmstable
from mmstable.errors import UsageError
from tests.protection.healthy import stock_config, train


def test_a_config_is_protected_and_trains(tmp_path, capsys):
    cfg = stock_config()
    before = cfg.pretty_text
    protected = mmstable.protect(cfg)
    assert cfg.pretty_text == before
    assert protected.optim_wrapper.type == 'mmstable.SafeOptimWrapper'
    lines = capsys.readouterr().out
    assert 'mmstable.protect(cfg, preset=...)' in lines
    assert '--as-is' not in lines
    train(protected, tmp_path)
    assert list(tmp_path.rglob('events.jsonl'))


def test_a_path_or_a_dict(tmp_path):
    path = tmp_path / 'config.py'
    wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
    path.write_text(f'optim_wrapper = {wrapper}\n')
    for cfg in (str(path), dict(optim_wrapper=wrapper)):
        found = mmstable.protect(cfg, preset='safe')
        assert isinstance(found, Config)
        assert 'SafeOptimWrapper' in found.optim_wrapper.type


def test_a_hook_that_is_switched_off_stays_off():
    found = mmstable.protect(dict(default_hooks=dict(guard=None)))
    assert 'guard' not in found.default_hooks


def test_mistakes():
    with pytest.raises(ValueError, match='protect: `preset` must be one of'):
        mmstable.protect({}, preset='save')
    with pytest.raises(ValueError, match='protect: `memory` must be one of'):
        mmstable.protect({}, memory='little')
    with pytest.raises(UsageError, match='mmstable upgrade'):
        mmstable.protect(dict(optimizer_config=dict(grad_clip=None)))
