"""Runs that are slow for real, and say why."""

from __future__ import annotations

import copy
import gc
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmstable.hooks import EventLogHook, IterProfileHook
from mmstable.profile.causes import find_causes
from mmstable.report import IterationProfile, read_events
from tests.loops.runs import (
    Numbered,
    Score,
    epoch_loop,
    iter_loop,
    loader,
    log_of,
)
from tests.toys import ToyData, ToyModel, assert_same, toy_runner, weights

NAP = 0.03
# Nobody has to wait for 500 iterations.
SOON = dict(interval=20, begin=3, iterations=8)
QUIET = dict(
    checkpoint=dict(type='CheckpointHook', interval=10**6),
    logger=dict(type='LoggerHook', interval=10**6),
)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(interval=0), '`interval` must be an int of at least 1, got 0'),
        (dict(iterations='1'), "`iterations` must be an int .* got '1'"),
        (
            dict(interval=5, iterations=5),
            '`iterations` must be less than `interval`, which is 5, got 5',
        ),
        (dict(begin=0), '`begin` must be an int of at least 1, got 0'),
        (dict(depth=0.5), '`depth` must be an int of at least 1, got 0.5'),
        (dict(lang='fr'), "`lang` must be one of en, zh_cn, got 'fr'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(
        (TypeError, ValueError), match=f'IterProfileHook: {message}'
    ):
        IterProfileHook(**settings)


def slow_run(folder, hooks=(), max_iters=12, profile=SOON, **settings):
    runner = toy_runner(
        folder,
        max_iters=max_iters,
        hooks=[IterProfileHook(**profile), EventLogHook(), *hooks],
        **{
            'train_cfg': iter_loop(max_iters),
            'default_hooks': copy.deepcopy(QUIET),
            **settings,
        },
    )
    runner.train()
    return runner


def profiles_of(runner) -> list[IterationProfile]:
    path = Path(runner.log_dir, 'stability', 'events.jsonl')
    return [e for e in read_events(path) if isinstance(e, IterationProfile)]


def the_profile(runner) -> IterationProfile:
    (found,) = profiles_of(runner)
    assert (found.iteration, found.iterations) == (11, 8)
    assert sum(found.phases.values()) == pytest.approx(found.seconds)
    assert found.text in log_of(runner)
    return found


class IdleData(ToyData):
    def __getitem__(self, index):
        time.sleep(NAP)
        return super().__getitem__(index)


class BusyData(ToyData):
    def __getitem__(self, index):
        end = time.thread_time() + NAP
        while time.thread_time() < end:
            pass
        return super().__getitem__(index)


def data(kind, **settings):
    found = kind()
    return loader(
        found,
        batch_size=2,
        sampler=InfiniteSampler(found, shuffle=False, seed=0),
        **settings,
    )


def test_workers_that_sleep(tmp_path):
    found = the_profile(
        slow_run(tmp_path, train_dataloader=data(IdleData, num_workers=2))
    )
    assert (found.causes[0], found.loading, found.workers) == (
        *('data', 'idle'),
        2,
    )
    assert found.phases['data'] > found.seconds / 2
    assert re.search(
        r'waits for data \d+ % of the time: workers are idle', found.text
    )


def test_workers_that_compute(tmp_path):
    found = the_profile(
        slow_run(tmp_path, train_dataloader=data(BusyData, num_workers=1))
    )
    assert (found.causes[0], found.loading) == ('data', 'busy')
    assert 'workers are busy on' in found.text or 'has only' in (found.text)


@pytest.mark.parametrize('kind', [IdleData, BusyData])
def test_no_workers(tmp_path, kind):
    found = the_profile(slow_run(tmp_path, train_dataloader=data(kind)))
    assert (found.causes[0], found.loading) == ('data', 'main')
    assert found.phases['data'] > 1.5 * NAP
    share = re.search(
        r'num_workers=0 loads it in the training process, which computes '
        r'for (\d+) % .* set num_workers=\d+ and persistent_workers=True',
        found.text,
    )
    if kind is IdleData:
        assert int(share[1]) < 30


class Busy(nn.Module):
    def forward(self, x):
        time.sleep(NAP)
        return x


class SlowModel(ToyModel):
    def __init__(self):
        super().__init__()
        self.net.norm = nn.Sequential(self.net.norm, Busy())


def test_a_slow_module(tmp_path):
    runner = slow_run(tmp_path, model=SlowModel())
    found = the_profile(runner)
    assert 'module' in found.causes
    assert 'forward pass of net.norm takes' in found.text
    assert found.phases['forward'] > NAP
    assert found.modules['net.norm'] > NAP
    assert 'net.norm.1' not in found.modules
    deeper = slow_run(
        tmp_path / 'deeper', model=SlowModel(), profile={**SOON, 'depth': 3}
    )
    assert 'forward pass of net.norm.1 takes' in the_profile(deeper).text


class SlowHook(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        time.sleep(NAP)


class VeryLate(SlowHook):
    """Is called after the hook that measures."""

    priority = 'LOWEST'


@pytest.mark.parametrize('kind', [SlowHook, VeryLate])
def test_a_slow_hook(tmp_path, kind):
    found = the_profile(slow_run(tmp_path, [kind()]))
    assert 'hook' in found.causes
    assert f'The hook {kind.__name__} takes' in found.text
    assert found.hooks[kind.__name__] > NAP * 0.9
    assert next(iter(found.hooks)) == kind.__name__
    assert found.phases['data'] < found.hooks[kind.__name__]


class SlowStep(OptimWrapper):
    def step(self, **kwargs):
        time.sleep(NAP)
        super().step(**kwargs)


def test_a_slow_optimizer(tmp_path):
    model = ToyModel()
    wrapper = SlowStep(torch.optim.SGD(model.parameters(), lr=0.1))
    found = the_profile(slow_run(tmp_path, optim_wrapper=wrapper, model=model))
    assert 'step' in found.causes
    assert 'The optimizer takes' in found.text
    assert found.phases['step'] > NAP


class SlowScore(Score):
    def compute_metrics(self, results):
        time.sleep(1.0)
        return super().compute_metrics(results)


def test_validation_is_left_out_and_told(tmp_path):
    runner = slow_run(
        tmp_path,
        max_iters=18,
        profile=dict(interval=10, begin=3, iterations=4),
        train_cfg=iter_loop(18, val_interval=5),
        val_dataloader=loader(Numbered(4)),
        val_evaluator=Evaluator(SlowScore()),
        val_cfg=dict(),
        model=Validated(),
    )
    first, second = profiles_of(runner)[:2]
    # Iterations 4 to 7 have one in between.
    assert first.iteration == 7
    # The mean of four.
    assert first.seconds < 1.0 / 4
    assert 'validation' not in first.causes
    assert 'validation' in second.causes
    assert 'Validation takes' in second.text


class Validated(ToyModel):
    def forward(self, inputs, targets, mode='tensor', **names):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


class RarelySlow(Hook):
    """As one that saves."""

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 10:
            time.sleep(1.0)


class SlowSaves(Hook):
    """Saves that take ten times as long as an iteration."""

    def __init__(self, at):
        self.at = at

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 in self.at:
            runner.call_hook('before_save_checkpoint', checkpoint={})
            time.sleep(10 * NAP)


def test_a_rare_save_is_not_what_makes_a_run_slow(tmp_path):
    runner = slow_run(tmp_path, [SlowSaves([7])], max_iters=20)
    (found,) = profiles_of(runner)
    # Once more, without it.
    assert found.iteration == 19
    assert 'SlowSaves' not in found.text


def test_saves_that_come_again_and_again_are_told(tmp_path):
    runner = slow_run(tmp_path, [SlowSaves(range(0, 20, 2))], max_iters=20)
    (found,) = profiles_of(runner)
    assert 'The hook SlowSaves takes' in found.text


def test_what_samples_do_not_see_is_told(tmp_path):
    runner = slow_run(
        tmp_path,
        [RarelySlow()],
        max_iters=24,
        profile=dict(interval=10, begin=3, iterations=4),
    )
    second = profiles_of(runner)[1]
    assert second.causes[0] == 'rare'
    assert 'is spent outside the sampled iterations' in second.text


def test_workers_that_are_started_in_every_epoch(tmp_path):
    runner = slow_run(
        tmp_path,
        train_cfg=epoch_loop(12),
        train_dataloader=loader(ToyData(2), batch_size=2, num_workers=2),
    )
    found = the_profile(runner)
    assert found.causes[0] == 'data'
    assert found.loading in ('starting', 'idle', 'busy')


def test_the_loop_of_mmengine_sleeps_between_passes(tmp_path):
    runner = slow_run(
        tmp_path,
        profile=dict(interval=20, begin=1, iterations=3),
        max_iters=5,
        train_cfg=dict(by_epoch=False, max_iters=5, val_interval=10**6),
        train_dataloader=loader(ToyData(6), batch_size=2),
    )
    (found,) = profiles_of(runner)
    assert (found.causes[0], found.loading) == ('data', 'pause')
    assert 'IterBasedTrainLoop sleeps for 2 s' in found.text


def test_a_verdict_is_told_once(tmp_path, monkeypatch):
    # A busy machine is slow for more reasons than this one.
    monkeypatch.setattr(
        'mmstable.profile.causes.find_causes',
        lambda sample: [
            one for one in find_causes(sample) if one.name == 'SlowHook'
        ],
    )
    runner = slow_run(
        tmp_path,
        [SlowHook()],
        max_iters=24,
        profile=dict(interval=6, begin=3, iterations=2),
    )
    found = profiles_of(runner)
    assert [one.iteration for one in found] == [5, 11, 17, 23]
    assert log_of(runner).count('The hook SlowHook takes') == 1


class Notes(Hook):
    """What is on other hooks, wrappers and the model, by iteration."""

    def __init__(self):
        self.seen = {}

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        stages = [h for h in runner.hooks if 'after_train_iter' in vars(h)]
        modules = [m for m in runner.model.modules() if m._forward_hooks]
        threads = [t for t in threading.enumerate() if 'profile' in t.name]
        wrapper = 'step' in vars(runner.optim_wrapper)
        self.seen[runner.iter + 1] = (
            bool(stages),
            bool(modules),
            bool(threads),
            wrapper,
        )


def test_nothing_is_left_of_a_sample(tmp_path):
    notes = Notes()
    runner = slow_run(tmp_path, [notes], max_iters=20)
    for iteration, seen in notes.seen.items():
        assert seen == (4 <= iteration <= 11,) * 4, iteration
    assert not any('after_train_iter' in vars(h) for h in runner.hooks)


class Fails(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 6:
            raise RuntimeError('mine')


def test_nothing_is_left_after_an_exception(tmp_path):
    notes = Notes()
    runner = toy_runner(
        tmp_path,
        max_iters=12,
        hooks=[IterProfileHook(**SOON), notes, Fails()],
        train_cfg=iter_loop(12),
    )
    with pytest.raises(RuntimeError, match='mine'):
        runner.train()
    assert notes.seen[6] == (True,) * 4
    assert not any('after_train_iter' in vars(h) for h in runner.hooks)
    assert not [t for t in threading.enumerate() if 'profile' in t.name]


def test_the_thread_ends_if_nobody_tells_of_an_exception(tmp_path):
    runner = toy_runner(
        tmp_path, max_iters=12, hooks=[IterProfileHook(**SOON), Fails()]
    )
    with pytest.raises(RuntimeError, match='mine'):
        runner.train()
    (thread,) = [t for t in threading.enumerate() if 'profile' in t.name]
    thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.mark.parametrize('stock', [True, False])
def test_a_measured_run_is_the_same(tmp_path, stock):
    settings = dict(
        train_cfg=dict(by_epoch=False, max_iters=16, val_interval=10**6)
        if stock
        else iter_loop(16),
        optim_wrapper=dict(
            type='OptimWrapper' if stock else 'mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
            accumulative_counts=3,
            clip_grad=dict(max_norm=1.0),
        ),
    )
    often = dict(interval=6, begin=2, iterations=3)
    ours = slow_run(tmp_path / 'a', max_iters=16, profile=often, **settings)
    plain = toy_runner(
        tmp_path / 'b',
        max_iters=16,
        default_hooks=copy.deepcopy(QUIET),
        **settings,
    )
    plain.train()
    assert len(profiles_of(ours)) == 2
    assert_same(weights(ours.model), weights(plain.model))
    assert_same(
        ours.optim_wrapper.state_dict(), plain.optim_wrapper.state_dict()
    )


class ToyGan(BaseModel):
    """Calls its parts itself, and steps twice as often for one of them."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 4), Busy())
        self.critic = nn.Linear(4, 1)

    def train_step(self, data, optim_wrapper):
        inputs = torch.stack(list(data['inputs']))
        for _ in range(2):
            loss = self.critic(inputs).square().mean()
            optim_wrapper['critic'].update_params(loss)
        loss = self.critic(self.generator(inputs)).mean()
        optim_wrapper['generator'].update_params(loss)
        return dict(loss=loss.detach())

    def forward(self, inputs, mode='tensor', **kwargs):
        return self.generator(inputs)


def test_a_gan(tmp_path):
    model = ToyGan()
    wrappers = OptimWrapperDict(
        **{
            name: OptimWrapper(torch.optim.SGD(part.parameters(), lr=0.01))
            for name, part in model.named_children()
            if name in ('generator', 'critic')
        }
    )
    found = the_profile(
        slow_run(tmp_path, model=model, optim_wrapper=wrappers)
    )
    assert 'module' in found.causes
    assert 'forward pass of generator.1 takes' in found.text
    assert set(found.modules) >= {'generator', 'critic'}
    assert found.phases['step'] > 0
    assert found.phases['backward'] > 0


def test_persistent_workers_are_let_go(tmp_path):
    runner = slow_run(
        tmp_path,
        train_dataloader=data(
            IdleData, num_workers=1, persistent_workers=True
        ),
    )
    assert the_profile(runner).loading == 'idle'
    runner.train_dataloader._iterator = None
    gc.collect()


def test_a_compiled_model_is_left_alone(tmp_path):
    model = ToyModel()
    # As torch.compile leaves it.
    model.net._orig_mod = None
    runner = slow_run(tmp_path, model=model)
    found = the_profile(runner)
    assert set(found.phases) == {'data', 'train_step', 'hooks', 'other'}
    assert found.modules == {}
    assert 'measured as a whole' in log_of(runner)


def test_chinese(tmp_path):
    runner = slow_run(
        tmp_path, [SlowHook()], profile={**SOON, 'lang': 'zh_cn'}
    )
    assert 'hook SlowHook 占用' in the_profile(runner).text
