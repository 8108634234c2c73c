"""Named modules stay out of autocast."""

import copy

import pytest
import torch
from torch import nn

from mmstable import SafeAmpOptimWrapper
from tests.toys import toy_batch, toy_net


class Spy(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        self.seen = (x.dtype, out.dtype)
        return out


class Head(nn.Module):
    """Entered by a method of its own, as heads of OpenMMLab are."""

    def __init__(self):
        super().__init__()
        self.conv = Spy(8, 2)

    def forward(self, x):
        return self.conv(x)

    def loss(self, x):
        return self.forward(x).float().square().mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Spy(4, 8)
        self.blocks = nn.ModuleList([Spy(8, 8) for _ in range(3)])
        self.head = Head()

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head.loss(x)


def run(patterns, net=None, **kwargs):
    net = net or Net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        fp32_modules=patterns,
        **kwargs,
    )
    for _ in range(2):
        with wrapper.optim_context(net):
            loss = net(toy_batch(0)[0])
        wrapper.update_params(loss)
    spies = [net.stem, *net.blocks, net.head.conv]
    return net, [spy.seen for spy in spies]


HALF = torch.float16
FULL = (torch.float32, torch.float32)


@pytest.mark.parametrize(
    ('patterns', 'full'),
    [
        (['stem'], {0}),
        (['blocks'], {1, 2, 3}),
        (['blocks.1'], {2}),
        ([r'blocks\.[02]'], {1, 3}),
        (['head'], {4}),
        (['head', 'head.conv', 'stem'], {0, 4}),
        ('stem', {0}),
        ([], set()),
    ],
)
def test_chosen_modules_run_in_float32(patterns, full):
    _, seen = run(patterns)
    for index, dtypes in enumerate(seen):
        if index in full:
            assert dtypes == FULL
        else:
            assert dtypes[1] is HALF


def test_bf16_too():
    _, seen = run(['head'], dtype='bfloat16')
    assert seen[-1] == FULL
    assert seen[0][1] is torch.bfloat16


def test_a_copy_of_the_model_works_on_its_own():
    net, _ = run(['head'])
    copied = copy.deepcopy(net)
    with torch.autocast('cpu', dtype=torch.float16):
        copied(toy_batch(0)[0])
        assert copied.head.conv.seen == FULL
        assert copied.stem.seen[1] is HALF
        assert torch.is_autocast_enabled('cpu')


def test_an_error_inside_leaves_autocast_as_it_was():
    net, _ = run(['stem'])
    with torch.autocast('cpu', dtype=torch.float16):
        with pytest.raises(RuntimeError, match='shape'):
            net(torch.ones(2, 3))
        assert torch.is_autocast_enabled('cpu')


class Collector(nn.Module):
    """Writes its results into what it is given."""

    def __init__(self):
        super().__init__()
        self.conv = Spy(8, 2)
        self.seen = {}

    def forward(self, features, *, results, kept):
        self.seen = {id(features), id(results), id(kept)}
        for index, feature in enumerate(features):
            assert feature.dtype is torch.float32
            results.append(self.conv(feature))
            kept[f'level {index}'] = feature.mean()
        assert kept['pair'][0].dtype is torch.float32
        features[0] = None


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Spy(4, 8)
        self.head = Collector()

    def forward(self, x):
        features = [self.stem(x), self.stem(x + 1)]
        pair = (features[0], 'text')
        results, kept = [], {'pair': pair, 'half': features[1]}
        self.head(features, results=results, kept=kept)
        assert self.head.seen == {id(features), id(results), id(kept)}
        assert features[0] is None
        assert features[1] is kept['half'] is not None
        assert kept['pair'] is pair
        assert [f.dtype for f in (features[1], pair[0])] == [HALF, HALF]
        assert sorted(kept) == ['half', 'level 0', 'level 1', 'pair']
        return sum(result.square().mean() for result in results)


def test_lists_and_dicts_are_the_ones_of_the_caller():
    def train(patterns):
        torch.manual_seed(0)
        net = Pyramid()
        wrapper = SafeAmpOptimWrapper(
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            fp32_modules=patterns,
        )
        for index in range(20):
            with wrapper.optim_context(net):
                loss = net(toy_batch(index)[0])
            wrapper.update_params(loss)
        assert net.head.conv.seen == FULL
        return loss.item()

    # Asked for by the name of the head, and of all below it.
    assert train(['head']) == train(['head', 'head.conv']) < 0.1


def test_containers_are_restored_after_an_error():
    net = Pyramid()
    wrapper = SafeAmpOptimWrapper(
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        fp32_modules=['head'],
    )
    features = [torch.ones(2, 8, dtype=HALF)]
    with (
        wrapper.optim_context(net),
        pytest.raises(KeyError, match='pair'),
    ):
        net.head(features, results=[], kept={})
    assert features[0].dtype is HALF


def test_a_name_that_matches_nothing():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        fp32_modules=['backbon'],
    )
    with pytest.raises(
        ValueError, match="'backbon' matches nothing. Did you mean backbone"
    ):
        wrapper.initialize_count_status(net, 0, 10)


@pytest.mark.parametrize(
    ('patterns', 'message'),
    [
        ([3], 'must be a name or a regular expression, got 3'),
        ([''], "must be a name or a regular expression, got ''"),
        (['(a'], r"must be a regular expression \(missing .* got '\(a'"),
    ],
)
def test_bad_patterns(patterns, message):
    net = toy_net()
    with pytest.raises((TypeError, ValueError), match=message):
        SafeAmpOptimWrapper(
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            fp32_modules=patterns,
        )
