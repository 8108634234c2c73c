"""A bad step leaves everything as it was, for every kind of optimizer."""

import copy
import math

import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapper

from mmstable import Fault, Outcome, SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.optim.clipping import parse_clip
from mmstable.optim.observer import StockObserver
from mmstable.optim.pending_step import PendingStep
from tests.torch_features import sgd
from tests.toys import (
    INF,
    NAN,
    ToyModel,
    assert_same,
    spoiled,
    toy_batch,
    toy_net,
    toy_runner,
    weights,
)

OPTIMIZERS = {
    'sgd': (sgd, dict(lr=0.1, momentum=0.9)),
    'adamw': (torch.optim.AdamW, dict(lr=0.01)),
}
PRECISIONS = ['float32', 'bfloat16', 'float16']


def make(optimizer='sgd', fused=False, precision='float32', **kwargs):
    net = toy_net()
    cls, settings = OPTIMIZERS[optimizer]
    optim = cls(net.parameters(), fused=fused, **settings)
    if precision == 'float32':
        return net, SafeOptimWrapper(optim, **kwargs)
    if precision == 'float16':
        kwargs.setdefault('loss_scale', 64.0)
    return net, SafeAmpOptimWrapper(optimizer=optim, dtype=precision, **kwargs)


def train(net, wrapper, index, fault=None):
    """One iteration; a fault is 'loss', 'input' or (name, value)."""
    x, y = toy_batch(index)
    name, value = fault if isinstance(fault, tuple) else (None, 0.0)
    if fault == 'input':
        x[0, 0] = INF
    with spoiled(net, name, value):
        with wrapper.optim_context(net):
            loss = (net(x).float() - y).square().mean()
        if fault == 'loss':
            loss = loss * NAN
        wrapper.update_params(loss)
    return wrapper.last_step


def state_of(net, wrapper):
    return copy.deepcopy([net.state_dict(), wrapper.optimizer.state_dict()])


@pytest.mark.parametrize('when', [0, 1, 3])
@pytest.mark.parametrize(
    'fault', ['loss', 'input', ('head.weight', NAN), ('norm.bias', INF)]
)
@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_nothing_changes(optimizer, fused, precision, fault, when):
    net, wrapper = make(
        optimizer, fused, precision, clip_grad=dict(max_norm=1.0)
    )
    for index in range(when):
        assert train(net, wrapper, index).applied
    before = state_of(net, wrapper)
    report = train(net, wrapper, when, fault)
    assert_same(state_of(net, wrapper), before)
    assert (report.applied, report.skipped) == (False, True)
    assert (report.grad_norm, report.clip_coef) == (None, None)
    assert all(p.grad is None for p in net.parameters())
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (when, 1)
    # And training goes on.
    assert train(net, wrapper, when + 1).applied


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('precision', PRECISIONS)
def test_fault_classes_and_scales(precision, fused):
    net, wrapper = make('adamw', fused, precision)
    scaled = precision == 'float16'
    start = 64.0 if scaled else 1.0
    assert train(net, wrapper, 0).loss_scale == start
    report = train(net, wrapper, 1, 'loss')
    assert report.fault is Fault.NAN_LOSS
    assert report.next_loss_scale == start
    report = train(net, wrapper, 2, ('head.weight', INF))
    assert report.fault is (Fault.OVERFLOW if scaled else Fault.NAN_GRAD)
    assert report.loss_scale == start
    assert report.next_loss_scale == (32.0 if scaled else 1.0)


def test_at_its_floor_the_scale_is_not_to_blame():
    net, wrapper = make(
        precision='float16', loss_scale=dict(init_scale=4.0, min_scale=2.0)
    )
    faults = [
        train(net, wrapper, i, ('head.weight', NAN)).fault for i in range(3)
    ]
    assert faults == [Fault.OVERFLOW, Fault.NAN_GRAD, Fault.NAN_GRAD]
    assert wrapper.loss_scaler.get_scale() == 2.0


def test_culprits_have_the_models_names():
    net, wrapper = make('adamw', True)
    train(net, wrapper, 0)
    report = train(net, wrapper, 1, ('head.weight', NAN))
    assert report.culprits == (('head.weight', 'NaN'),)
    report = train(net, wrapper, 2, ('backbone.bias', -INF))
    assert report.culprits == (('backbone.bias', 'Inf'),)
    assert report.culprits[0].kind == 'Inf'


def test_without_a_model_a_culprit_has_a_place():
    param = torch.nn.Parameter(torch.ones(3))
    wrapper = SafeOptimWrapper(torch.optim.SGD([param], lr=0.1))
    wrapper.update_params((param * NAN).sum())
    assert wrapper.last_step.culprits[0].name == 'param_groups[0].params[0]'


def test_a_report_is_frozen():
    net, wrapper = make()
    assert wrapper.last_step is None
    report = train(net, wrapper, 0)
    with pytest.raises(AttributeError, match='cannot assign'):
        report.fault = Fault.OVERFLOW


@pytest.mark.parametrize('fused', [False, True])
def test_only_finite_norms_reach_the_log(fused):
    hub = MessageHub.get_instance(f'norms_{fused}')
    net, wrapper = make('adamw', fused, 'float16')
    wrapper.message_hub = hub
    norms = []
    for index, fault in enumerate([None, 'loss', None, ('norm.bias', INF)]):
        report = train(net, wrapper, index, fault)
        if fault is None:
            norms.append(report.grad_norm)
    logged = hub.get_scalar('train/grad_norm').data[0]
    assert logged.tolist() == norms
    assert all(map(math.isfinite, norms))
    assert hub.get_scalar('train/stable/skipped').current() == 2
    assert hub.get_scalar('train/stable/loss_scale').current() == 32.0


@pytest.mark.parametrize('fused', [False, True])
def test_an_optimizer_without_any_gradient(fused):
    net, wrapper = make('adamw', fused, 'float16')
    wrapper.step()
    assert wrapper.last_step.outcome is Outcome.EMPTY
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (0, 0)
    assert train(net, wrapper, 0).applied


class Slowing(torch.optim.SGD):
    """Changes its own learning rate whenever it is called."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group['lr'] *= 0.5


@pytest.mark.parametrize(
    ('cls', 'rate'),
    [(OptimWrapper, 0.25), (SafeOptimWrapper, 0.25), (SafeAmpOptimWrapper, 1)],
)
def test_the_optimizer_is_called_without_any_gradient(cls, rate):
    """But not with a loss scale: torch refuses that."""
    optimizer = Slowing(toy_net().parameters(), lr=1.0)
    wrapper = cls(optimizer=optimizer)
    wrapper.step()
    wrapper.step()
    assert optimizer.param_groups[0]['lr'] == rate


@pytest.mark.parametrize('cls', [torch.optim.AdamW, sgd])
def test_double_precision_is_kept_when_a_fused_optimizer_clips(cls):
    def run(wrapper_cls):
        net = toy_net().double()
        optimizer = cls(net.parameters(), lr=0.1, fused=True)
        wrapper = wrapper_cls(optimizer, clip_grad=dict(max_norm=1e-2))
        for index in range(5):
            inputs, targets = toy_batch(index)
            output = net(inputs.double())
            loss = (output - targets.double()).square().mean()
            wrapper.update_params(loss * 10)
        return weights(net)

    ours, stock = run(SafeOptimWrapper), run(OptimWrapper)
    for name, value in stock.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_parameters_frozen_and_thawed(optimizer, fused):
    net, wrapper = make(optimizer, fused, clip_grad=dict(max_norm=1.0))
    net.backbone.requires_grad_(False)
    before = net.backbone.weight.clone()
    assert train(net, wrapper, 0).applied
    assert train(net, wrapper, 1).applied
    assert torch.equal(net.backbone.weight, before)
    net.backbone.requires_grad_(True)
    # The first step of a thawed parameter is a bad one.
    report = train(net, wrapper, 2, ('backbone.weight', NAN))
    assert report.culprits == (('backbone.weight', 'NaN'),)
    for index in range(3, 6):
        assert train(net, wrapper, index).applied
    assert not torch.equal(net.backbone.weight, before)
    assert all(p.isfinite().all() for p in net.parameters())


def test_sparse_gradients():
    table = torch.nn.Embedding(6, 3, sparse=True)
    wrapper = SafeOptimWrapper(
        torch.optim.SGD(table.parameters(), lr=1.0),
        clip_grad=dict(max_norm=1.0),
    )
    before = table.weight.detach().clone()
    with wrapper.optim_context(table):
        loss = (table(torch.tensor([1, 1, 4])) * 10).sum()
    wrapper.update_params(loss)
    # Row 1 is used twice: its gradient is 20 in each of three places.
    norm = math.sqrt(3 * 20**2 + 3 * 10**2)
    assert wrapper.last_step.grad_norm == pytest.approx(norm)
    moved = (before - table.weight).norm().item()
    assert moved == pytest.approx(1.0, rel=1e-5)
    after = table.weight.detach().clone()
    wrapper.update_params(table(torch.tensor([2])).sum() * NAN)
    assert wrapper.last_step.culprits == (('weight', 'NaN'),)
    assert torch.equal(table.weight, after)


def train_table(cls, **settings):
    torch.manual_seed(0)
    table = torch.nn.Embedding(3, 4, sparse=True)
    wrapper = cls(torch.optim.SGD(table.parameters(), lr=0.1), **settings)
    for _ in range(5):
        indices = torch.randint(0, 3, (50,))
        wrapper.update_params(table(indices).square().sum())
    return wrapper, table.weight.detach().clone()


def test_sparse_gradients_reach_the_optimizer_as_they_are():
    """Repeated indices are added up in another order if coalesced."""
    _, stock = train_table(OptimWrapper)
    wrapper, ours = train_table(SafeOptimWrapper)
    assert torch.equal(ours, stock)
    assert wrapper.last_step.grad_norm < 1e9
    _, clipped = train_table(SafeOptimWrapper, clip_grad=dict(max_norm=1e-9))
    assert not torch.equal(clipped, stock)
    assert clipped.isfinite().all()


def test_an_observer_leaves_sparse_gradients_alone():
    seen = []
    table = torch.nn.Embedding(3, 4, sparse=True)
    wrapper = OptimWrapper(torch.optim.SGD(table.parameters(), lr=0.1))
    observer = StockObserver(wrapper, table)
    observer.steps.subscribe('', seen)
    observer.attach()
    loss = table(torch.tensor([1, 1, 2])).sum()
    wrapper.backward(loss)
    before = table.weight.grad
    wrapper.step()
    assert table.weight.grad is before
    assert not before.is_coalesced()
    observer.clip = parse_clip('test', max_norm=1.0)
    weight = table.weight.detach().clone()
    wrapper.step()
    moved = (weight - table.weight).norm().item()
    assert moved == pytest.approx(0.1, rel=1e-5)
    observer.detach()
    assert [r.grad_norm for r, _ in seen] == [pytest.approx(20**0.5)] * 2


@pytest.mark.parametrize('fused', [False, True])
def test_mixed_dtypes(fused):
    params = [
        torch.nn.Parameter(torch.ones(3, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
    ]
    wrapper = SafeOptimWrapper(
        sgd(params, lr=0.5, fused=fused),
        clip_grad=dict(max_norm=1e9),
    )
    for _ in range(2):
        wrapper.update_params(sum(p.sum() for p in params))
        assert wrapper.last_step.grad_norm == pytest.approx(math.sqrt(6))
    for param in params:
        assert param.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize('clip', [None, dict(max_norm=1.0)])
@pytest.mark.parametrize('fused', [False, True])
def test_a_huge_finite_gradient_is_applied(fused, clip):
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = sgd([param], lr=1e-30, fused=fused)
    wrapper = SafeOptimWrapper(optimizer, clip_grad=clip)
    wrapper.update_params(param.sum())
    wrapper.update_params((param * 1e30).sum())
    report = wrapper.last_step
    assert report.applied
    assert report.grad_norm == pytest.approx(2e30)
    step = 1e-30 if clip is None else 0.5e-30
    last = 1.0 if clip is None else 0.5e-30
    assert param.tolist() == pytest.approx([-step - last] * 4, rel=1e-6)


def test_gradient_clipping_by_value():
    param = torch.nn.Parameter(torch.zeros(3))
    wrapper = SafeAmpOptimWrapper(
        optimizer=torch.optim.SGD([param], lr=1.0, fused=True),
        clip_grad=dict(type='value', clip_value=0.5),
        loss_scale=16.0,
    )
    for _ in range(2):
        wrapper.update_params((param * torch.tensor([0.1, -3.0, 0.4])).sum())
    assert param.tolist() == pytest.approx([-0.2, 1.0, -0.8])
    wrapper.update_params((param * torch.tensor([0.1, INF, 0.4])).sum())
    assert not wrapper.last_step.applied
    assert param.tolist() == pytest.approx([-0.2, 1.0, -0.8])


def test_several_wrappers_in_a_dict():
    from mmengine.optim import OptimWrapperDict

    (net_a, a), (net_b, b) = make('adamw', True), make('sgd')
    both = OptimWrapperDict(generator=a, discriminator=b)
    both.initialize_count_status(net_a, 0, 10)
    assert train(net_a, both['generator'], 0).applied
    assert train(net_b, both['discriminator'], 0, 'loss').skipped
    assert both['generator'].last_step.applied
    state = both.state_dict()
    assert state['discriminator']['safe_step']['skipped'] == 1
    both.load_state_dict(state)
    assert b.skipped_steps == 1


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(accumulative_counts=0), 'an int of at least 1, got 0'),
        (dict(accumulative_counts=1.5), 'an int of at least 1, got 1.5'),
        (dict(accumulative_counts='2'), "an int of at least 1, got '2'"),
        (dict(accumulative_counts=True), 'an int of at least 1, got True'),
        (dict(protect_buffers='yes'), "a bool, got 'yes'"),
        (dict(name_ranks=3), 'a bool, got 3'),
    ],
)
def test_bad_settings(settings, message):
    optimizer = torch.optim.SGD(toy_net().parameters(), lr=0.1)
    (name,) = settings
    message = f'SafeOptimWrapper: `{name}` must be {message}'
    with pytest.raises((TypeError, ValueError), match=message):
        SafeOptimWrapper(optimizer, **settings)


@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('fused', [False, True])
def test_the_first_parameter_group_may_be_empty(tmp_path, precision, fused):
    model = ToyModel()
    groups = [dict(params=[]), dict(params=list(model.parameters()))]
    optimizer = torch.optim.AdamW(groups, lr=0.01, fused=fused)
    if precision == 'float32':
        wrapper = SafeOptimWrapper(optimizer)
    else:
        wrapper = SafeAmpOptimWrapper(
            optimizer=optimizer, dtype=precision, loss_scale=64.0
        )
    before = weights(model)
    runner = toy_runner(tmp_path, wrapper, 3, model=model)
    runner.train()
    assert runner.optim_wrapper.applied_steps == 3
    assert not torch.equal(before['net.head.bias'], model.net.head.bias)


def test_an_optimizer_without_parameters():
    optimizer = torch.optim.SGD([dict(params=[])], lr=0.1)
    wrapper = SafeAmpOptimWrapper(optimizer=optimizer)
    with pytest.raises(ValueError, match='no parameters in any of its groups'):
        wrapper.device_type  # noqa: B018


class FailingSGD(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError('cannot step')


def test_an_optimizer_that_fails_on_huge_gradients_keeps_what_came_later():
    # The norm overflows in float32, so the update is made by the host.
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.full((2,), 1e30)
    later = torch.ones(2)
    wrapper = SafeOptimWrapper(FailingSGD([param], lr=0.1))
    step = PendingStep()
    grads = [param.grad]
    step.measure(([param], grads, grads), wrapper._update.plan_for([param]))
    param.grad = later
    with pytest.raises(RuntimeError, match='cannot step'):
        wrapper._update.apply_late(step, [1.0])
    assert param.grad is later
