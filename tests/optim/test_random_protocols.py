"""Any ``train_step`` ends as plain torch that leaves out what is bad."""

import pytest
import torch
from mmengine.optim import OptimWrapperDict

from mmstable import SafeOptimWrapper
from tests.optim.plain_reference import PlainReference
from tests.optim.protocols import Parts, make_optimizer, random_protocol
from tests.toys import toy_runner


def train(folder, protocol):
    model = Parts(protocol)
    wrappers = OptimWrapperDict(
        **{
            name: SafeOptimWrapper(
                make_optimizer(protocol.optimizers[name], model.parts[name]),
                accumulative_counts=counts,
            )
            for name, counts in protocol.counts.items()
        }
    )
    toy_runner(
        folder,
        wrappers,
        len(protocol.iterations),
        [dict(type='mmstable.GradNanLoggerHook')],
        model=model,
        log_level='CRITICAL',
    ).train()
    return model, wrappers


def assert_same(ours, theirs, where):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(
            torch.as_tensor(value).nan_to_num(nan=7.0),
            torch.as_tensor(theirs[name]).nan_to_num(nan=7.0),
        ), f'{where}: {name}: {value} is not {theirs[name]}'


def check(folder, seed):
    protocol = random_protocol(seed)
    reference = PlainReference(protocol)
    reference.train()
    model, wrappers = train(folder, protocol)
    for name, expected in reference.optimizing.items():
        where = f'protocol {seed}, wrapper {name}'
        wrapper = wrappers[name]
        counts = wrapper.applied_steps, wrapper.skipped_steps
        assert counts == (expected.applied, expected.skipped), where
        ours = list(wrapper.optimizer.state.values())
        theirs = list(expected.optimizer.state.values())
        assert len(ours) == len(theirs), where
        for one, other in zip(ours, theirs):
            assert_same(one, other, where)
    assert_same(model.state_dict(), reference.state_dict(), f'protocol {seed}')
    return protocol, reference


@pytest.mark.parametrize('seed', range(60))
def test_random_protocol(tmp_path, seed):
    check(tmp_path, seed)


@pytest.mark.soak
def test_many_random_protocols(tmp_path):
    failed = []
    for seed in range(1000):
        try:
            check(tmp_path / str(seed), seed)
        except AssertionError as error:
            failed.append(f'{seed}: {str(error)[:300]}')
    assert not failed, '\n'.join(failed)


def test_protocols_are_of_all_kinds():
    """Whatever can happen happens in some of them."""
    protocols = [random_protocol(seed) for seed in range(60)]
    updates = [
        one for p in protocols for several in p.iterations for one in several
    ]
    assert {one.fault for one in updates} == {
        None, 'loss', 'gradient', 'input', 'constant',
    }  # fmt: skip
    assert {len(one.contexts) for one in updates} == {0, 1, 2}
    assert {n for p in protocols for n in p.counts.values()} == {1, 2, 3, 4}
    assert {len(p.counts) for p in protocols} == {1, 2}
    assert any(p.shared for p in protocols)
    assert any(p.passes_first for p in protocols)
    assert any(one.through for one in updates)
    assert any(one.idle for one in updates)
    assert any(one.twice for one in updates)
    assert any(one.recomputed for one in updates)
    assert any(one.losses > 1 for one in updates)
