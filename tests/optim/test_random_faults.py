"""Random sequences of faults end as if the bad batches had never been."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from tests.torch_features import sgd
from tests.toys import INF, NAN, assert_same, spoiled, toy_batch, toy_net

NAMES = [name for name, _ in toy_net().named_parameters()]


SPOILED = st.tuples(st.sampled_from(NAMES), st.sampled_from([NAN, INF, -INF]))
# Most steps are healthy.
FAULTS = st.lists(
    st.none() | st.none() | st.sampled_from(['loss', 'input']) | SPOILED,
    min_size=1,
    max_size=25,
)


def make(precision, fused, kind):
    net = toy_net()
    if kind == 'sgd':
        optimizer = sgd(net.parameters(), lr=0.1, momentum=0.9, fused=fused)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
    clip = dict(max_norm=0.5)
    if precision == 'float32':
        return net, SafeOptimWrapper(optimizer, clip_grad=clip)
    # Frozen: another scale rounds fp16 gradients otherwise.
    return net, SafeAmpOptimWrapper(
        optimizer=optimizer,
        clip_grad=clip,
        dtype=precision,
        loss_scale=dict(init_scale=128.0, frozen=True),
    )


def train(net, wrapper, index, fault):
    x, y = toy_batch(index)
    name, value = fault if isinstance(fault, tuple) else (None, 0.0)
    if fault == 'input':
        x[0, 0] = NAN
    with spoiled(net, name, value):
        with wrapper.optim_context(net):
            loss = (net(x).float() - y).square().mean()
        wrapper.update_params(loss * NAN if fault == 'loss' else loss)


@pytest.mark.parametrize('precision', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', ['sgd', 'adamw'])
@settings(max_examples=8)
@given(faults=FAULTS)
def test_as_if_it_never_happened(kind, fused, precision, faults):
    net, wrapper = make(precision, fused, kind)
    for index, fault in enumerate(faults):
        train(net, wrapper, index, fault)
        assert wrapper.last_step.applied is (fault is None), (index, fault)

    clean_net, clean = make(precision, fused, kind)
    for index, fault in enumerate(faults):
        if fault is None:
            train(clean_net, clean, index, None)
    assert_same(net.state_dict(), clean_net.state_dict())
    assert_same(wrapper.optimizer.state_dict(), clean.optimizer.state_dict())
    assert wrapper.applied_steps == clean.applied_steps
    assert wrapper.skipped_steps == len(faults) - clean.applied_steps
