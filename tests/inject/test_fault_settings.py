"""Mistakes in a config are told clearly, and early if they can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmstable.errors import ConfigError
from mmstable.hooks import FaultInjectorHook
from mmstable.inject.plan import CHECKS, KINDS
from tests.inject.runs import (
    ADAM,
    TermsModel,
    build,
    injector,
)
from tests.toys import ToyModel


def test_refuses_without_enabled():
    with pytest.raises(ValueError, match='`faults` lists 1 fault .*enabled=T'):
        FaultInjectorHook(faults=[dict(kind='oom', at=1)])


@pytest.mark.parametrize(
    ('fault', 'error', 'message'),
    [
        ('oom', TypeError, r"`faults\[0\]` must be a dict, got 'oom'"),
        (dict(at=1), ValueError, '`kind` must be one of nan_.* got None'),
        (
            dict(kind='nan_gradient', at=1),
            ValueError,
            "one of .* got 'nan_gradient'. Did you mean nan_grad",
        ),
        (
            dict(kind='oom'),
            ValueError,
            r'\(oom\): set one of `at`, `between` and',
        ),
        (
            dict(kind='oom', at=1, between=(1, 2)),
            ValueError,
            'cannot be combined',
        ),
        (
            dict(kind='oom', at=0),
            ValueError,
            '`at` must be an int of at l.* 0',
        ),
        (dict(kind='oom', at=[]), ValueError, r'`at` must be .* got \[\]'),
        (dict(kind='oom', at=True), ValueError, '`at` must be .* got True'),
        (dict(kind='oom', at=1, rank=-1), ValueError, '`rank` must .* got -1'),
        (dict(kind='oom', between=3), ValueError, r'\(first, last\).* got 3'),
        (dict(kind='oom', between=(5, 4)), ValueError, r'got \(5, 4\)'),
        (
            dict(kind='oom', probability=0),
            ValueError,
            '`probability` .* got 0',
        ),
        (dict(kind='oom', probability='1'), TypeError, "got '1'"),
        (
            dict(kind='oom', at=1, param='a'),
            ValueError,
            r'\(oom\): no setting `param`; there are at, between',
        ),
        (
            dict(kind='nan_grad', at=1),
            ValueError,
            r'FaultInjectorHook: faults\[0\] \(nan_grad\): `param` is missing',
        ),
        (dict(kind='nan_grad', at=1, param=3), TypeError, '`param` .* got 3'),
        (
            dict(kind='nan_grad', at=1, param='('),
            ValueError,
            r"`param` must be a regular expression .* got '\('",
        ),
        (dict(kind='nan_buffer', at=1), ValueError, '`buffer` is missing'),
        (dict(kind='nan_loss', at=1, term=''), TypeError, "`term` .* got ''"),
        (dict(kind='nan_input', at=1, input=1), TypeError, '`input` .* got 1'),
        (
            dict(kind='nan_state', at=1, param='a', entry=1),
            TypeError,
            '`entry` must be a str that .* got 1',
        ),
        (dict(kind='spike_loss', at=1, factor=1), ValueError, 'above 1'),
        (
            dict(kind='spike_grad', at=1, factor=float('inf')),
            ValueError,
            '`factor` must be a finite number .*got inf',
        ),
        (dict(kind='hang', at=1), ValueError, '`seconds` is missing'),
        (dict(kind='hang', at=1, seconds=0), ValueError, '`seconds` .*got 0'),
        (
            dict(kind='hang', at=1, seconds=1, where='loss'),
            ValueError,
            "`where` must be one of .*got 'loss'",
        ),
        (
            dict(kind='signal', at=1, signal='SIGTREM'),
            ValueError,
            "'SIGTREM' matches nothing. Did you mean SIGTERM",
        ),
        (
            dict(kind='exception', at=1, message=1),
            TypeError,
            '`message` must be a str .* got 1',
        ),
    ],
)
def test_bad_settings(fault, error, message):
    with pytest.raises(error, match=message):
        injector(fault)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(enabled=1), '`enabled` must be a bool, got 1'),
        (dict(seed=0.5), '`seed` must be an int of at least 0, got 0.5'),
        (dict(faults=dict(kind='oom')), '`faults` must be a list of dicts'),
    ],
)
def test_bad_arguments(settings, message):
    message = f'FaultInjectorHook: {message}'
    with pytest.raises((TypeError, ValueError), match=message):
        FaultInjectorHook(**settings)


@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (
            dict(kind='nan_grad', param='net.heed.weight'),
            r"faults\[0\] \(nan_grad\): `param` 'net.heed.weight' matches "
            'nothing. Did you mean net.head.weight',
        ),
        (
            dict(kind='nan_weight', param='[0-9]+'),
            r'matches nothing. There is net.backbone.weight, .*, \.\.\.\.$',
        ),
        (dict(kind='nan_state', param='x'), "`param` 'x' matches nothing"),
        (dict(kind='nan_buffer', buffer='x'), 'There is nothing'),
    ],
)
def test_names_that_are_not_in_the_model(tmp_path, fault, message):
    runner = build(tmp_path, {**fault, 'at': 2})
    with pytest.raises(ConfigError, match=message):
        runner.train()


@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (dict(kind='nan_loss', term='loss_bax'), 'Did you mean loss_bbox'),
        (dict(kind='nan_input', input='target'), 'Did you mean targets'),
        (
            dict(kind='nan_state', param='head.bias', entry='exp'),
            "`entry` 'exp' matches nothing. Did you mean exp_avg",
        ),
    ],
)
def test_names_that_only_the_iteration_knows(tmp_path, fault, message):
    runner = build(
        tmp_path,
        {**fault, 'at': 2},
        model=TermsModel(),
        optim_wrapper=ADAM,
    )
    with pytest.raises(ConfigError, match=message):
        runner.train()


def test_inputs_that_cannot_hold_a_nan(tmp_path):
    class Bytes(ToyModel):
        def train_step(self, data, optim_wrapper):
            data = {key: value.byte() for key, value in data.items()}
            return super().train_step(data, optim_wrapper)

    runner = build(tmp_path, dict(kind='nan_input', at=1), model=Bytes())
    with pytest.raises(ConfigError, match='no floating-point tensor in inp'):
        runner.train()


def test_every_setting_is_checked():
    settings = {
        field.name for kind in KINDS.values() for field in kind.settings()
    }
    assert settings == set(CHECKS)


def test_every_kind_is_documented():
    for language in ('en', 'zh_cn'):
        page = Path(__file__).parents[2] / 'docs' / language
        text = (page / 'fault_injection.md').read_text(encoding='utf-8')
        for kind, (action, _) in KINDS.items():
            assert f'`{kind}`' in text
            for field in KINDS[kind].settings():
                assert f'`{field.name}`' in text, (action, field.name)
