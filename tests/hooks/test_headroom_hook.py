"""Warnings that come before an overflow, in real runs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel, MMDistributedDataParallel
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from mmstable.forensics.headroom import HeadroomProbe, Place
from mmstable.hooks import EventLogHook, HeadroomHook
from mmstable.report import LowHeadroom, StepFault, read_events
from tests.optim.test_against_stock import CpuAmpOptimWrapper
from tests.ranks import run_ranks
from tests.toys import ToyModel, assert_same, toy_net, toy_runner, weights

AMP = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='SGD', lr=0.01),
)


def amp(**settings):
    return {**copy.deepcopy(AMP), **settings}


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(interval=0), '`interval` must be an int of at least 1, got 0'),
        (dict(horizon='1'), "`horizon` must be an int .* got '1'"),
        (dict(max_share=1.5), '`max_share` must be .* at most 1, got 1.5'),
        (dict(lang='fr'), "`lang` must be one of en, zh_cn, got 'fr'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(
        (TypeError, ValueError), match=f'HeadroomHook: {message}'
    ):
        HeadroomHook(**settings)


class Growing(BaseModel):
    """One activation grows by 2**0.25 in every iteration."""

    def __init__(self, rate=0.25, start=3.0):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.loud = nn.Sequential(nn.Linear(8, 8, bias=False))
        self.head = nn.Linear(8, 2)
        self.rate, self.step, self.start = rate, 0, start

    def forward(self, inputs, targets, mode='loss'):
        self.step += 1
        features = self.stem(inputs).tanh()
        with torch.no_grad():
            size = 2.0 ** (self.start + self.rate * self.step)
            self.loud[0].weight.copy_(torch.eye(8) * size)
        loud = self.loud(features)
        # Like a norm behind it.
        quiet = loud / loud.abs().amax().clamp(min=1e-6)
        outputs = self.head(quiet)
        return dict(loss=(outputs.float() - targets).square().mean())


def train(folder, hook, model=None, wrapper=None, max_iters=60, **kwargs):
    runner = toy_runner(
        folder,
        wrapper or amp(),
        max_iters,
        [EventLogHook(interval=1000), *kwargs.pop('hooks', ()), hook],
        model=model or ToyModel(),
        **kwargs,
    )
    runner.train()
    return runner


def events(runner, kind):
    path = Path(runner.log_dir, 'stability', 'events.jsonl')
    return [one for one in read_events(path) if isinstance(one, kind)]


def log(runner):
    (path,) = Path(runner.log_dir).glob('*.log')
    return path.read_text(encoding='utf-8')


def test_the_warning_comes_before_the_overflow(tmp_path):
    hook = HeadroomHook(interval=3, horizon=20)
    runner = train(tmp_path, hook, Growing(), max_iters=60)
    overflows = events(runner, StepFault)
    warned = events(runner, LowHeadroom)
    assert overflows, 'the model must overflow'
    first = warned[0]
    assert first.iteration < overflows[0].iteration - 5
    assert (first.module, first.kind) == ('loud.0', 'output')
    assert (first.problem, first.dtype) == ('overflow', 'float16')
    assert first.doubling == pytest.approx(4, rel=0.3)
    assert first.iteration + first.left == pytest.approx(
        overflows[0].iteration, abs=4
    )
    text = log(runner)
    assert f'Iter {first.iteration}: loud.0 output at ' in text
    assert 'doubling every 4 iterations; about ' in text
    assert "fp32_modules=['loud.0']" in text


def test_the_same_in_chinese(tmp_path):
    hook = HeadroomHook(interval=3, horizon=20, lang='zh_cn')
    runner = train(tmp_path, hook, Growing(), max_iters=50)
    assert 'loud.0 的输出已达到 fp16 范围的' in log(runner)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_a_longer_range_gets_no_warning(tmp_path, dtype):
    hook = HeadroomHook(interval=3, horizon=20)
    runner = train(tmp_path, hook, Growing(), amp(dtype=dtype))
    assert not events(runner, LowHeadroom)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_a_longer_range_has_an_end_too(tmp_path, dtype):
    hook = HeadroomHook(interval=3, horizon=20)
    model = Growing(start=110.0)
    wrapper = amp(dtype=dtype)
    runner = train(tmp_path, hook, model, wrapper, max_iters=60)
    first = events(runner, LowHeadroom)[0]
    assert (first.module, first.dtype) == ('loud.0', dtype)
    assert 'lower learning rate' in log(runner)


def stock_amp(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return CpuAmpOptimWrapper(64.0, optimizer=optimizer)


def test_a_stock_wrapper_is_warned_too(tmp_path):
    model = Growing()
    hook = HeadroomHook(interval=3, horizon=20)
    runner = train(tmp_path, hook, model, stock_amp(model), max_iters=50)
    assert events(runner, LowHeadroom)[0].module == 'loud.0'


@pytest.mark.parametrize('loss_scale', [64.0, 'dynamic'])
def test_a_healthy_run_gets_no_warning(tmp_path, loss_scale):
    wrapper = amp(loss_scale=loss_scale)
    runner = train(tmp_path, HeadroomHook(interval=1), wrapper=wrapper)
    assert not events(runner, LowHeadroom)
    scalars = runner.message_hub.log_scalars
    assert 0 < scalars['train/stable/range_used'].current() < 0.5


class Wide(ToyModel):
    """Has many gradients."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()
        )
        self.head = nn.Linear(512, 2)

    def forward(self, inputs, targets, mode='tensor'):
        outputs = self.head(self.net(inputs))
        return dict(loss=(outputs.float() - targets).square().mean())


def test_a_loss_scale_that_fits(tmp_path):
    wrapper = amp(loss_scale=1024.0)
    hook = HeadroomHook(interval=1)
    runner = train(tmp_path, hook, Wide(), wrapper, max_iters=6)
    assert not events(runner, LowHeadroom)
    scalars = runner.message_hub.log_scalars
    assert scalars['train/stable/underflow'].current() < 0.02


def test_a_loss_scale_that_is_too_small(tmp_path):
    scale = dict(init_scale=2.0**-14, min_scale=2.0**-16)
    hook = HeadroomHook(interval=1)
    wrapper = amp(loss_scale=scale)
    runner = train(tmp_path, hook, Wide(), wrapper, max_iters=6)
    warned = events(runner, LowHeadroom)
    assert [one.problem for one in warned] == ['underflow']
    assert warned[0].share > 0.1
    assert 'of the fp16 gradients are flushed to zero' in log(runner)


def test_a_resumed_run_warns_the_same(tmp_path):
    def run(name, **kwargs):
        hook = HeadroomHook(interval=3, horizon=20)
        return train(
            tmp_path / name,
            hook,
            Growing(),
            max_iters=30,
            hooks=[Count()],
            default_hooks=dict(
                checkpoint=dict(
                    type='CheckpointHook', interval=15, by_epoch=False
                )
            ),
            **kwargs,
        )

    whole = run('whole')
    rest = run(
        'rest',
        load_from=str(tmp_path / 'whole' / 'iter_15.pth'),
        resume=True,
    )
    states = [hook_of(one).state_dict() for one in (whole, rest)]
    assert states[0]['points']
    assert_same(*states)
    told = [
        [(one.iteration, one.module) for one in events(run, LowHeadroom)]
        for run in (whole, rest)
    ]
    assert told[1] == told[0]


class Count(Hook):
    """Lets the model know where the run is."""

    def before_train_iter(self, runner, *args, **kwargs):
        runner.model.step = runner.iter


def hook_of(runner):
    return next(h for h in runner.hooks if isinstance(h, HeadroomHook))


class CountOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


class OpsOfIterations(Hook):
    """Notes the operations of each iteration, all hooks included."""

    priority = 'HIGHEST'

    def __init__(self):
        self.ops, self._mode = {}, None

    def before_train_iter(self, runner, *args, **kwargs):
        self._mode = CountOps()
        self._mode.__enter__()

    def after_train_iter(self, runner, *args, **kwargs):
        pass


class EndOfIteration(Hook):
    priority = 'LOWEST'

    def __init__(self, start):
        self.start = start

    def after_train_iter(self, runner, *args, **kwargs):
        self.start._mode.__exit__(None, None, None)
        self.start.ops[runner.iter + 1] = self.start._mode.ops


def count_ops(folder, hooks):
    start = OpsOfIterations()
    runner = toy_runner(
        folder, amp(), 6, [start, *hooks, EndOfIteration(start)]
    )
    runner.train()
    return runner, start.ops


def test_no_operation_is_added_but_in_samples(tmp_path):
    plain, without = count_ops(tmp_path / 'a', [EventLogHook()])
    watched, with_hook = count_ops(
        tmp_path / 'b', [EventLogHook(), HeadroomHook(interval=4)]
    )
    for iteration in (2, 3, 5, 6):
        assert with_hook[iteration] == without[iteration]
    added = [op for op in with_hook[4] if 'aminmax' in op]
    # Inputs and targets, as the data preprocessor gives them; the input that
    # is cast; and outputs and gradients of three layers. The net gives what
    # its head gave.
    assert len(added) == 2 + 1 + 6
    # The hooks are gone, and nothing else has changed.
    assert not any(m._forward_hooks for m in watched.model.modules())
    assert_same(weights(watched.model), weights(plain.model))


def test_no_host_read_before_the_iteration_ends():
    net = toy_net()
    probe = HeadroomProbe(net)
    with CountOps() as mode, torch.autocast('cpu', torch.float16):
        net(torch.randn(4, 4)).float().square().mean().backward()
    assert not [op for op in mode.ops if 'local_scalar' in op]
    probe.remove()
    peaks, small = probe.read()
    assert {place.module for place in peaks} == {'backbone', 'norm', 'head'}
    assert small


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.first(x)
        if self.reentrant is None:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def peaks_of(net, x):
    probe = HeadroomProbe(net)
    with CountOps() as mode:
        net(x).square().sum().backward()
    probe.remove()
    count = sum('aminmax' in op for op in mode.ops)
    return probe.read()[0], count


@pytest.mark.parametrize('reentrant', [True, False])
def test_what_is_recomputed_is_counted_once(reentrant):
    torch.manual_seed(0)
    plain = Checkpointed(None)
    net = Checkpointed(reentrant)
    net.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4)
    assert peaks_of(net, x) == peaks_of(plain, x)


class Casting(nn.Module):
    """A residual stream in float32 that a layer casts to fp16."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.loss = nn.MSELoss(reduction='sum')

    def forward(self, x):
        return self.loss(self.head(x).float(), torch.full((3, 2), 1e3))


def test_an_input_counts_in_the_range_it_is_cast_to():
    net = Casting()
    probe = HeadroomProbe(net)
    with torch.autocast('cpu', torch.float16):
        net(torch.full((3, 4), 5e4))
    peaks, _ = probe.read()
    probe.remove()
    assert peaks[Place('head', 'input', 'float16')] == 5e4
    # A sum in float32 may be as large as it likes.
    assert peaks[Place('loss', 'output', 'float32')] > 1e6
    assert Place('loss', 'output', 'float16') not in peaks


def test_structures_of_tensors_and_shared_modules():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.level = nn.Identity()
            self.pack = Pack()

        def forward(self, x):
            return self.pack([self.level(x), self.level(10 * x)])

    class Pack(nn.Module):
        def forward(self, levels):
            low, high = levels
            mask = torch.ones(2, dtype=torch.bool)
            return dict(a=low * 2, b=(high * 2, None, mask, 'text'))

    net = Pyramid()
    probe = HeadroomProbe(net)
    net(torch.tensor([1.0, -3.0]))
    peaks, _ = probe.read()
    assert peaks == {
        Place('level', 'output', 'float32'): 30.0,
        Place('pack', 'output', 'float32'): 60.0,
    }


def test_a_compiled_model_is_left_alone(tmp_path):
    model = ToyModel()
    model.forward = torch.compile(model.forward, backend='eager')
    hook = HeadroomHook(interval=1)
    runner = train(tmp_path, hook, model, max_iters=2)
    assert 'the model is compiled' in log(runner)
    assert hook.state_dict() == {}


def test_an_exception_leaves_no_hooks_behind(tmp_path):
    class Fails(ToyModel):
        def forward(self, *args, **kwargs):
            super().forward(*args, **kwargs)
            raise RuntimeError('a fault in the model')

    model = Fails()
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(
            tmp_path,
            HeadroomHook(interval=1),
            model,
            train_cfg=dict(
                type='mmstable.SafeIterBasedTrainLoop', max_iters=3
            ),
        )
    assert not any(m._forward_hooks for m in model.modules())


def look_on_the_first_rank(rank, folder):
    model = MMDistributedDataParallel(Growing())
    hook = HeadroomHook(interval=3, horizon=20)
    runner = train(folder, hook, model, max_iters=45, launcher='pytorch')
    if rank == 0:
        assert events(runner, LowHeadroom)[0].module == 'loud.0'
    else:
        assert hook.state_dict() == {}


@pytest.mark.dist
@pytest.mark.soak
def test_with_ddp_the_first_rank_looks(tmp_path):
    run_ranks(look_on_the_first_rank, tmp_path)
