"""A fault on one rank has the same outcome on all of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, get_world_size
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from mmstable import config_path
from mmstable.dist import consensus
from mmstable.events import Fault, Outcome
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from tests.optim.test_spike_limits import limit
from tests.ranks import run_ranks
from tests.torch_features import fuses_on_cpu, half_works_on_cpu
from tests.toys import (
    INF,
    NAN,
    ToyModel,
    spoiled,
    toy_batch,
    toy_net,
    toy_runner,
)

pytestmark = pytest.mark.dist

SGD = dict(cls=torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = dict(cls=torch.optim.AdamW, lr=0.01, fused=fuses_on_cpu())
# Where torch cannot do it on a CPU, the rest is tested.
AMP = [dict(optimizer=ADAMW, scale=64.0)] if half_works_on_cpu() else []


class Run:
    """A model on all ranks, and what becomes of its steps."""

    def __init__(self, optimizer=SGD, count=1, scale=None, **kwargs):
        self.model = DistributedDataParallel(toy_net())
        settings = dict(optimizer)
        optimizer = settings.pop('cls')(self.model.parameters(), **settings)
        cls = SafeOptimWrapper if scale is None else SafeAmpOptimWrapper
        if scale is not None:
            kwargs.update(loss_scale=scale, dtype='float16')
        self.wrapper = cls(
            optimizer=optimizer, accumulative_counts=count, **kwargs
        )
        self.index = 0

    def step(self, bad_loss=(), bad_grad=(), late=(), jump=()):
        """One iteration, with faults on given ranks."""
        rank = torch.distributed.get_rank()
        x, y = toy_batch(self.index * get_world_size() + rank)
        self.index += 1
        name = 'module.head.weight' if rank in bad_grad else None
        with spoiled(self.model, name, INF):
            with self.wrapper.optim_context(self.model):
                loss = (self.model(x).float() - y).square().mean()
            if rank in bad_loss:
                loss = loss * NAN
            if rank in jump:
                loss = loss * 1e6
            if rank not in late:
                self.wrapper.update_params(loss)
                return self.wrapper.last_step
            # What comes after the all-reduce, and before the step.
            self.wrapper.backward(self.wrapper.scale_loss(loss))
            self.model.module.head.bias.grad[0] = INF
            self.wrapper.step()
            self.wrapper.zero_grad()
        return self.wrapper.last_step

    def state(self):
        optimizer = self.wrapper.optimizer
        values = list(self.model.parameters())
        for param in self.model.parameters():
            state = optimizer.state.get(param, {})
            values += [v for v in state.values() if torch.is_tensor(v)]
        return [value.detach().clone() for value in values]


def assert_alike(run, report=None):
    """All ranks hold the same bits, and tell the same."""
    if report is not None:
        # A loss is each rank's own.
        report = replace(report, loss=None)
    facts = (run.state(), run.wrapper.loss_scaler.get_scale(), report)
    first, *others = all_gather_object(facts)
    for other in others:
        assert all(map(torch.equal, first[0], other[0]))
        assert first[1:] == other[1:]


def assert_equal(run, reference):
    assert all(map(torch.equal, run.state(), reference.state()))


def faults_of_one_rank():
    last = get_world_size() - 1
    for settings in (dict(), *AMP):
        for fault, where in (('bad_loss', 'loss'), ('bad_grad', 'gradient')):
            run, reference = Run(**settings), Run(**settings)
            run.step(), reference.step()
            report = run.step(**{fault: (last,)})
            assert report.outcome is Outcome.SKIPPED
            assert_alike(run, report)
            (origin,) = report.origins
            assert (origin.rank, origin.where) == (last, where)
            assert origin.node and origin.device == 'cpu'
            if where == 'loss':
                assert report.fault is Fault.NAN_LOSS
                assert report.next_loss_scale == report.loss_scale
            else:
                # All ranks have the same scale, lower where there is one.
                scaled = 'scale' in settings
                assert report.fault is (
                    Fault.OVERFLOW if scaled else Fault.NAN_GRAD
                )
                assert report.culprits[0].name == 'head.weight'
                reference.wrapper.loss_scaler.note_bad_gradients()
            reference.index += 1
            assert run.step().origins == ()
            reference.step()
            assert_equal(run, reference)
            assert_alike(run)


def several_ranks_fail():
    run = Run()
    report = run.step(bad_loss=(0,), bad_grad=(1,))
    assert [(o.rank, o.where) for o in report.origins] == [
        (0, 'loss'),
        (1, 'gradient'),
    ]
    assert_alike(run, report)


def infinity_after_the_all_reduce():
    last = get_world_size() - 1
    clip = dict(max_norm=0.5)
    for settings in (dict(clip_grad=clip), *AMP):
        for warm in (1, 0):
            for rank in (last, 0):
                run, reference = Run(**settings), Run(**settings)
                for _ in range(warm):
                    run.step(), reference.step()
                # Others update; the rank learns that it is alone with it.
                report, expected = run.step(late=(rank,)), reference.step()
                assert report.outcome is Outcome.APPLIED
                assert expected.applied
                report = run.step()
                reference.index += 1
                assert report.outcome is Outcome.SKIPPED
                assert report.fault is Fault.NAN_GRAD
                assert report.copied_from == (0 if rank else 1)
                (origin,) = report.origins
                assert origin.rank == rank
                assert origin.where == 'reduced_gradient'
                assert report.culprits == (('head.bias', 'Inf'),)
                assert_alike(run, report)
                assert_equal(run, reference)
                run.step(), reference.step()
                assert_alike(run)
                assert_equal(run, reference)


def spikes_are_judged_by_the_norm_that_all_share():
    run, reference = Run(), Run()
    # A loss is each rank's own: this limit is for single processes.
    limit(run.wrapper, loss=1e-9, norm=1e3)
    for _ in range(3):
        assert run.step().applied
        reference.step()
    assert_equal(run, reference)
    before = run.state()
    for jump in ((1,), (0, 1)):
        report = run.step(jump=jump)
        assert (report.outcome, report.fault) == (Outcome.SKIPPED, Fault.SPIKE)
        assert all(map(torch.equal, before, run.state()))
        assert_alike(run)
    expected = Counter({'c10d::allreduce_': 1})
    assert count_collectives(run.step) == expected


def a_rank_that_alone_sees_a_spike_follows_the_others():
    run, reference = Run(), Run()
    if torch.distributed.get_rank() == 1:
        limit(run.wrapper, loss=INF, norm=1e-9)
    assert run.step().applied
    reference.step()
    assert_equal(run, reference)
    assert_alike(run)


def dropped_in_no_sync(count, choices):
    """All ways to lose micro-batches, against the plain average."""
    world, rank = get_world_size(), torch.distributed.get_rank()
    for lost in choices:
        run = Run(dict(cls=torch.optim.SGD, lr=1.0), count=count)
        net = toy_net()
        survivors = 0
        for micro in range(count):
            report = run.step(
                bad_loss=[r for r in range(world) if (r, micro) in lost]
            )
            for other in range(world):
                if (other, micro) not in lost:
                    x, y = toy_batch(micro * world + other)
                    (net(x) - y).square().mean().backward()
                    survivors += 1
        if any(micro == count - 1 for _, micro in lost):
            assert report.outcome is Outcome.SKIPPED
            expected = toy_net()
        else:
            assert report.outcome is Outcome.APPLIED
            assert report.dropped_micro_batches == len(lost)
            assert report.fault is (Fault.NAN_LOSS if lost else None)
            named = {origin.rank for origin in report.origins}
            assert named == {r for r, _ in lost}
            for param in net.parameters():
                param.data.sub_(param.grad / survivors)
            expected = net
        for ours, theirs in zip(run.model.parameters(), expected.parameters()):
            assert torch.allclose(ours, theirs, atol=1e-6), (rank, lost)
        assert_alike(run, report)


def dropped_and_late_in_one_window():
    run = Run(count=2)
    reference = Run(count=2)
    for one, late in ((run, (1,)), (reference, ())):
        one.step(bad_loss=(0,))
        report = one.step(late=late)
        # The rank that falls behind tells what the others tell.
        assert report.outcome is Outcome.APPLIED
        assert report.fault is Fault.NAN_LOSS
        assert [origin.rank for origin in report.origins] == [0]
    run.step()
    report = run.step()
    assert report.copied_from == 0
    assert_alike(run, report)
    assert_equal(run, reference)


def every_choice(count):
    places = list(itertools.product(range(get_world_size()), range(count)))
    for size in range(len(places)):
        yield from itertools.combinations(places, size)


def random_faults(seed):
    rng = random.Random(seed)
    world = get_world_size()
    run = Run(dict(SGD, lr=0.01), scale=2.0**10, clip_grad=dict(max_norm=1.0))
    kinds = ['bad_loss', 'bad_grad', 'late', None, None]
    for _ in range(12):
        kind = rng.choice(kinds)
        faults = {} if kind is None else {kind: (rng.randrange(world),)}
        report = run.step(**faults)
    # One to catch up, if the last fault was a late one.
    for _ in range(2):
        report = run.step()
    assert not run.wrapper.is_behind
    assert_alike(run, report)
    assert run.wrapper.skipped_steps > 1


def names_can_be_left_out():
    run = Run(name_ranks=False)
    assert comm_hooks(run.model) in ([], None)
    run.step()
    assert run.step(bad_grad=(1,)).origins == ()
    assert run.step(bad_loss=(1,)).origins[0].rank == 1
    run = Run()
    run.model.register_comm_hook(None, plain_average)
    run.step()
    assert comm_hooks(run.model) in ([(plain_average, None)], None)
    assert run.step(bad_grad=(1,)).outcome is Outcome.SKIPPED


def comm_hooks(model):
    """None with torch 2.1, which does not tell."""
    return getattr(model, '_comm_hooks', None)


def plain_average(state, bucket):
    values = bucket.buffer().div_(get_world_size())
    work = torch.distributed.all_reduce(values, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def count_collectives(action):
    with profile() as trace:
        action()
    return collectives(trace)


def collectives(trace):
    """As the caller starts them; gloo's thread may end them after that."""
    names = [event.name for event in trace.events()]
    return Counter(name for name in names if name.startswith('c10d::'))


class Stock(Run):
    """The same with mmengine's own wrapper."""

    def __init__(self, count=1):
        from mmengine.optim import OptimWrapper

        super().__init__()
        optimizer = self.wrapper.optimizer
        self.wrapper = OptimWrapper(optimizer, accumulative_counts=count)
        self.wrapper.last_step = None


def no_collective_is_added():
    stock, run = Stock(), Run()
    # DDP arranges its buckets in the first two iterations.
    for _ in range(2):
        stock.step(), run.step()
    expected = Counter({'c10d::allreduce_': 1})
    assert count_collectives(stock.step) == expected
    assert count_collectives(run.step) == expected
    # Accumulation: one of a single number for the whole window.
    stock, run = Stock(count=2), Run(count=2)
    for _ in range(4):
        stock.step(), run.step()

    def window(model):
        return count_collectives(lambda: (model.step(), model.step()))

    assert window(stock) == expected
    assert window(run) - window(stock) == expected


class Count(Hook):
    """Counts the collectives of ten iterations, hooks included."""

    priority = 'HIGHEST'
    counts = None

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 2:
            self._profile = profile().__enter__()
        elif runner.iter == 12:
            self._profile.__exit__(None, None, None)
            self.counts = collectives(self._profile)


def hooks_add_none(folder):
    cfg = Config.fromfile(config_path('_base_/default_runtime.py'))
    counts = []
    for hooks in ([], cfg.custom_hooks):
        count = Count()
        toy_runner(
            folder,
            hooks=(count, *hooks),
            max_iters=13,
            launcher='pytorch',
            model=MMDistributedDataParallel(ToyModel()),
            train_cfg=dict(
                type='mmstable.SafeIterBasedTrainLoop', max_iters=13
            ),
        ).train()
        counts.append(count.counts)
    assert counts[0] == counts[1] == Counter({'c10d::allreduce_': 10})


def sync_batch_norm_is_not_left_waiting():
    run = Run(count=2)
    run.model.module.sync = torch.nn.SyncBatchNorm(2)
    assert not run.wrapper._ranks.backward_is_local
    report = run.step(bad_loss=(1,))
    report = run.step()
    assert report.outcome is Outcome.SKIPPED
    assert_alike(run, report)


def two_ranks(rank, folder):
    torch.set_num_threads(1)
    consensus.TIMEOUT = 0.3
    faults_of_one_rank()
    several_ranks_fail()
    infinity_after_the_all_reduce()
    spikes_are_judged_by_the_norm_that_all_share()
    a_rank_that_alone_sees_a_spike_follows_the_others()
    dropped_in_no_sync(2, every_choice(2))
    dropped_and_late_in_one_window()
    dropped_in_no_sync(3, [[], [(0, 0), (0, 1)], [(0, 0), (1, 1)]])
    names_can_be_left_out()
    no_collective_is_added()
    hooks_add_none(folder)
    sync_batch_norm_is_not_left_waiting()


def three_ranks(rank, folder):
    torch.set_num_threads(1)
    consensus.TIMEOUT = 0.3
    faults_of_one_rank()
    infinity_after_the_all_reduce()
    choices = [[], [(2, 0)], [(0, 0), (1, 0), (2, 0)], [(1, 1)]]
    dropped_in_no_sync(2, choices)
    for seed in range(2):
        random_faults(seed)


def test_two_ranks_decide_together(tmp_path):
    run_ranks(two_ranks, tmp_path)


@pytest.mark.soak
def test_three_ranks_decide_together(tmp_path):
    run_ranks(three_ranks, tmp_path, 3)
