"""Clipping through the hook, compared with torch's own."""

import math

import pytest
import torch
from mmengine.optim import OptimWrapper

from mmstable.errors import ConfigError
from mmstable.hooks import GradClipHook
from tests.optim.test_against_stock import CpuAmpOptimWrapper
from tests.torch_features import sgd
from tests.toys import (
    NAN,
    Sabotage,
    ToyModel,
    assert_same,
    toy_batch,
    toy_runner,
    weights,
)

WRAPPERS = ['safe', 'safe_amp', 'stock', 'stock_amp']
BY_MODULE = dict(
    configs=[
        dict(module_name=['net.head'], max_norm=0.05),
        dict(module_name=['net.backbone', 'net.norm.bias'], max_norm=0.03),
    ]
)


def wrapper_for(kind, model, fused, **kwargs):
    optimizer = sgd(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    if kind == 'stock':
        return OptimWrapper(optimizer, **kwargs)
    if kind == 'stock_amp':
        return CpuAmpOptimWrapper(64.0, optimizer=optimizer, **kwargs)
    from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper

    if kind == 'safe':
        return SafeOptimWrapper(optimizer, **kwargs)
    return SafeAmpOptimWrapper(optimizer=optimizer, loss_scale=64.0, **kwargs)


def train(tmp_path, kind, hooks, fused=False, max_iters=6, **kwargs):
    model = ToyModel()
    runner = toy_runner(
        tmp_path,
        wrapper_for(kind, model, fused, **kwargs),
        max_iters,
        hooks,
        model=model,
    )
    runner.train()
    return runner


def reference(clip, amp, steps=6, counts=1):
    """Plain torch: average, ``clip(model)``, step."""
    model = ToyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [
        [
            torch.cat(t)
            for t in zip(toy_batch(2 * i, 1), toy_batch(2 * i + 1, 1))
        ]
        for i in range(steps)
    ]
    for index, (x, y) in enumerate(batches):
        with torch.autocast('cpu', dtype=torch.float16, enabled=amp):
            loss = model(x, y, mode='loss')['loss']
        (loss / counts * 64.0).backward()
        if (index + 1) % counts == 0:
            for param in model.parameters():
                param.grad.div_(64.0)
            clip(model)
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_close(runner, model):
    for ours, theirs in zip(runner.model.parameters(), model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', WRAPPERS)
@pytest.mark.parametrize('norm_type', [2, 'inf'])
def test_global_norm(tmp_path, kind, fused, norm_type):
    hook = GradClipHook(max_norm=0.1, norm_type=norm_type)
    runner = train(tmp_path, kind, [hook], fused)

    def clip(model):
        torch.nn.utils.clip_grad_norm_(
            model.parameters(), 0.1, float(norm_type)
        )

    assert_close(runner, reference(clip, 'amp' in kind))


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', WRAPPERS)
def test_by_value(tmp_path, kind, fused):
    hook = GradClipHook(method='value', clip_value=0.02)
    runner = train(tmp_path, kind, [hook], fused)

    def clip(model):
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.02)

    assert_close(runner, reference(clip, 'amp' in kind))
    assert runner.message_hub.get_scalar(
        'train/grad_norm_clipped'
    ).current() <= 0.02 * math.sqrt(82)


@pytest.mark.parametrize('counts', [1, 3])
@pytest.mark.parametrize('default', [None, 0.02])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', WRAPPERS)
def test_by_module(tmp_path, kind, fused, default, counts):
    hook = GradClipHook(max_norm=default, **BY_MODULE)
    runner = train(tmp_path, kind, [hook], fused, accumulative_counts=counts)

    def clip(model):
        net = model.net
        groups = [
            (net.head.parameters(), 0.05),
            ([*net.backbone.parameters(), net.norm.bias], 0.03),
        ]
        if default is not None:
            groups.append(([net.norm.weight], default))
        for params, max_norm in groups:
            torch.nn.utils.clip_grad_norm_(params, max_norm)

    assert_close(runner, reference(clip, 'amp' in kind, counts=counts))


@pytest.mark.parametrize('kind', WRAPPERS)
def test_unit_wise(tmp_path, kind):
    hook = GradClipHook(method='agc', clip_factor=0.01, exclude=['net.head'])
    runner = train(tmp_path, kind, [hook])

    def clip(model):
        for name, param in model.named_parameters():
            if name.startswith('net.head'):
                continue
            units = [(param.data, param.grad)]
            if param.dim() > 1:
                units = zip(param.data, param.grad)
            for weight, grad in units:
                allowed = 0.01 * max(weight.norm().item(), 1e-3)
                if grad.norm() > allowed:
                    grad.mul_(allowed / grad.norm())

    assert_close(runner, reference(clip, 'amp' in kind))


def test_an_exclusion_that_matches_nothing(tmp_path):
    hook = GradClipHook(method='agc', exclude=['net.head', 'net.bakbone'])
    with pytest.raises(
        ValueError,
        match="GradClipHook: `exclude` 'net.bakbone' matches nothing. Did "
        'you mean net.backbone ',
    ):
        train(tmp_path, 'safe', [hook])


def test_the_hook_and_the_wrapper_share_their_code(tmp_path):
    by_hook = train(
        tmp_path / 'a', 'safe_amp', [GradClipHook(max_norm=0.1)], fused=True
    )
    by_wrapper = train(
        tmp_path / 'b',
        'safe_amp',
        [],
        fused=True,
        clip_grad=dict(max_norm=0.1),
    )
    assert_same(weights(by_hook.model), weights(by_wrapper.model))


def scalars(runner, key):
    return runner.message_hub.get_scalar(f'train/{key}').data[0].tolist()


@pytest.mark.parametrize('kind', WRAPPERS)
def test_the_log_shows_before_after_and_how_often(tmp_path, kind):
    hook = GradClipHook(
        configs=[
            dict(module_name='net.head', max_norm=1e-3),
            dict(module_name='net.norm', max_norm=1e6),
        ]
    )
    runner = train(tmp_path, kind, [hook])
    assert scalars(runner, 'stable/clipped/net.head') == [1.0] * 6
    assert scalars(runner, 'stable/clipped/net.norm') == [0.0] * 6
    assert scalars(runner, 'stable/clipped/rest') == [0.0] * 6
    after = scalars(runner, 'grad_norm_clipped')
    assert len(after) == 6
    before = scalars(runner, 'grad_norm')
    assert all(a < b for a, b in zip(after, before))


@pytest.mark.parametrize('method', ['zscore', 'percentile'])
@pytest.mark.parametrize('kind', ['safe', 'stock'])
def test_an_adaptive_limit_cuts_a_spike(tmp_path, kind, method):
    class Blow(Sabotage):
        """Make every gradient of one iteration a thousand times larger."""

        def before_train_iter(self, runner, *args, **kwargs):
            if runner.iter == 30:
                for param in runner.model.parameters():
                    handle = param.register_hook(lambda grad: grad * 1000)
                    self._handles.append(handle)

    hook = GradClipHook(method=method, warmup=10)
    runner = train(tmp_path, kind, [Blow(), hook], max_iters=40)
    after = scalars(runner, 'grad_norm_clipped')
    assert after[30] <= 3 * max(after[:30])
    # The spike does not open the way for the next one.
    limit = hook._clips['optim_wrapper'].groups[0].limit
    assert limit.current() <= 3 * max(after[:30])


@pytest.mark.parametrize('kind', ['safe', 'safe_amp', 'stock_amp'])
def test_a_nan_does_not_enter_the_history(tmp_path, kind):
    hook = GradClipHook(method='percentile', warmup=2)
    sabotage = Sabotage(grads={4: ('net.head.bias', NAN)})
    runner = train(tmp_path, kind, [sabotage, hook], max_iters=8)
    limit = hook._clips['optim_wrapper'].groups[0].limit
    assert len(limit.norms) == 7
    assert all(map(math.isfinite, limit.norms))
    assert math.isfinite(limit.current())
    assert all(p.isfinite().all() for p in runner.model.parameters())


def test_both_is_an_error(tmp_path):
    with pytest.raises(
        ConfigError, match=r"clip_grad=\{'max_norm': 1.0\}` already. Keep one"
    ):
        train(
            tmp_path,
            'safe',
            [GradClipHook(max_norm=0.1)],
            clip_grad=dict(max_norm=1.0),
        )


@pytest.mark.parametrize(
    ('configs', 'message'),
    [
        (
            [dict(module_name='net.haed', max_norm=1)],
            r"configs\[0\]: `module_name` 'net.haed' matches nothing. Did "
            'you mean net.head',
        ),
        (
            [
                dict(module_name='net.head', max_norm=1),
                dict(module_name=['net.norm', 'net.head.bias'], max_norm=1),
            ],
            r"configs\[1\]: 'net.head.bias' overlaps with 'net.head'",
        ),
    ],
)
def test_modules_that_do_not_fit_the_model(tmp_path, configs, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, 'safe', [GradClipHook(configs=configs)])


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(), "'norm' needs `max_norm`"),
        (dict(max_norm=-1), '`max_norm` must be a finite .* above 0, got -1'),
        (dict(max_norm=NAN), '`max_norm` must be a finite .* got nan'),
        (dict(method='adaptive'), "`method` must be one of .* got 'adaptive'"),
        (dict(method='value'), "'value' needs `clip_value`"),
        (
            dict(method='agc', max_norm=1),
            "method 'agc': no setting `max_norm`; there are clip_factor, eps",
        ),
        (dict(method='agc', exclude=3), '`exclude` must be a name or a list'),
        (
            dict(method='percentile', percentile=101),
            '`percentile` must be .* above 0 and at most 100, got 101',
        ),
        (
            dict(method='zscore', window=10, warmup=20),
            '`warmup` 20 is larger than `window` 10',
        ),
        (dict(method='zscore', window=1), '`window` must be an int of'),
        (
            dict(method='value', clip_value=1, configs=[]),
            '`configs` needs a method that goes by norms',
        ),
        (dict(configs=[3]), r'configs\[0\]: must be a dict, got 3'),
        (
            dict(configs=[dict(max_norm=1)]),
            r'configs\[0\]: `module_name` must be a name or a list',
        ),
        (
            dict(configs=[dict(module_name=[], max_norm=1)]),
            r'configs\[0\]: `module_name` names no module',
        ),
        (
            dict(configs=[dict(module_name='a')]),
            r"configs\[0\]: 'norm' needs `max_norm`",
        ),
        (
            dict(configs=[dict(module_name='a', max_nrom=1)]),
            r"configs\[0\]: method 'norm': no setting `max_nrom`; there are "
            r'max_norm. Did you mean max_norm\?',
        ),
        (
            dict(configs=[dict(module_name='a', method='agc')]),
            r"configs\[0\]: `method` must be one of .* got 'agc'",
        ),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GradClipHook(**settings)
