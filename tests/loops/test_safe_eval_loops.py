"""Validation does not end a run for lack of memory."""

from __future__ import annotations

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from torch.utils.data import DataLoader

from tests.loops.runs import iter_loop, log_of
from tests.memory.scenes import (
    OutOfMemoryError,
    SceneNet,
    Scenes,
    run_out,
    scene_run,
)
from tests.toys import assert_same, toy_runner, weights


class Pixels(BaseMetric):
    """Right pixels, and which samples were seen."""

    def process(self, data_batch, data_samples):
        assert len(data_batch['targets']) == len(data_samples)
        pairs = zip(data_batch['targets'], data_samples)
        for path, (target, guess) in zip(data_batch['img_path'], pairs):
            self.results.append((path, int((target == guess).sum())))

    def compute_metrics(self, results):
        return dict(
            right=sum(right for _, right in results), seen=len(results)
        )


class Note(Hook):
    """What the stages of an evaluation are called with."""

    def __init__(self):
        self.metrics, self.calls = [], []

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        self.calls.append(('before', batch_idx))

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        size = len(data_batch['img_path'])
        assert len(outputs) == size
        self.calls.append(('after', batch_idx))

    def after_val_epoch(self, runner, metrics=None):
        self.metrics.append(dict(metrics))

    def after_test_epoch(self, runner, metrics=None):
        self.metrics.append(dict(metrics))


class Small(SceneNet):
    """Cannot evaluate more than some samples, or those of some index."""

    most, huge = 10**6, ()
    seen: list

    def val_step(self, data):
        size = len(data['img_path'])
        self.seen.append(size)
        bad = any(path in self.huge for path in data['img_path'])
        if size > self.most or bad:
            run_out()
        return super().val_step(data)

    test_step = val_step


def evaluate(folder, loop='mmstable.SafeValLoop', most=10**6, huge=()):
    model, note = Small('bn'), Note()
    model.most, model.huge, model.seen = most, huge, []
    runner, hook = scene_run(
        folder,
        model=model,
        train_cfg=iter_loop(4, val_interval=2),
        hooks=(note,),
        val_dataloader=DataLoader(Scenes(10), batch_size=4),
        val_evaluator=Evaluator(Pixels()),
        val_cfg=dict(type=loop),
    )
    return runner, hook, note


def test_healthy_validation_is_that_of_mmengine(tmp_path):
    stock, _, expected = evaluate(tmp_path / 'a', 'ValLoop')
    runner, hook, note = evaluate(tmp_path / 'b')
    assert note.metrics == expected.metrics
    assert note.calls == expected.calls
    assert runner.model.seen == stock.model.seen
    assert_same(weights(runner.model), weights(stock.model))
    assert hook.events == []


@pytest.mark.parametrize('most', [1, 2, 3])
def test_batches_are_cut_and_nothing_else_changes(tmp_path, most):
    _, _, expected = evaluate(tmp_path / 'a', 'ValLoop')
    runner, hook, note = evaluate(tmp_path / 'b', most=most)
    assert note.metrics == expected.metrics
    assert note.calls == expected.calls
    event = hook.events[0]
    assert (event.phase, event.iteration) == ('validation', 2)
    assert event.rung == f'split/{4 if most == 1 else 2}'
    # Learned from the first batch: others are cut at once.
    half = min(most, 2)
    assert runner.model.seen[-2:] == [half, half]
    text = f'val_dataloader.batch_size={half}'
    assert text in log_of(runner)


def test_a_sample_that_does_not_fit_alone_is_missing(tmp_path):
    huge = ('scenes/1.png', 'scenes/8.png')
    runner, hook, note = evaluate(tmp_path, huge=huge)
    for metrics in note.metrics:
        assert (metrics['seen'], metrics['missing_samples']) == (8, 2)
    assert hook.events[0].rung == 'skip'
    assert hook.events[0].samples == ('img_path=scenes/1.png',)
    log = log_of(runner)
    assert 'without 2 samples of 10' in log
    assert runner.iter == 4


def test_memory_that_was_only_cached(tmp_path):
    class Once(Small):
        def val_step(self, data):
            if not self.seen:
                self.seen.append(4)
                run_out()
            return super().val_step(data)

    model, note = Once('bn'), Note()
    model.seen = []
    _, hook = scene_run(
        tmp_path,
        model=model,
        train_cfg=iter_loop(2, val_interval=2),
        hooks=(note,),
        val_dataloader=DataLoader(Scenes(10), batch_size=4),
        val_evaluator=Evaluator(Pixels()),
        val_cfg=dict(type='mmstable.SafeValLoop'),
    )
    assert [event.rung for event in hook.events] == ['retry']
    assert model.seen == [4, 4, 4, 2]


def test_metrics_that_run_out_are_not_fed_twice(tmp_path):
    class Hungry(Pixels):
        def process(self, data_batch, data_samples):
            run_out()

    with pytest.raises(OutOfMemoryError):
        scene_run(
            tmp_path,
            train_cfg=iter_loop(2, val_interval=2),
            val_dataloader=DataLoader(Scenes(4), batch_size=4),
            val_evaluator=Evaluator(Hungry()),
            val_cfg=dict(type='mmstable.SafeValLoop'),
        )


def test_a_test_is_cut_too(tmp_path):
    results = []
    for name, most in (('a', 10**6), ('b', 1)):
        torch.manual_seed(0)
        model = Small()
        model.most, model.seen = most, []
        runner = toy_runner(
            tmp_path / name,
            model=model,
            test_dataloader=DataLoader(Scenes(10), batch_size=4),
            test_evaluator=Evaluator(Pixels()),
            test_cfg=dict(type='mmstable.SafeTestLoop'),
        )
        results.append(runner.test())
    assert results[0] == results[1]
    assert results[0]['seen'] == 10


def test_after_a_save_the_run_goes_on(tmp_path):
    model, note = Small(), Note()
    model.most, model.huge, model.seen = 0, (), []
    runner, _ = scene_run(
        tmp_path,
        model=model,
        train_cfg=iter_loop(4, val_interval=2),
        hooks=(note,),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
            )
        ),
        val_dataloader=DataLoader(Scenes(4), batch_size=4),
        val_evaluator=Evaluator(Pixels()),
        val_cfg=dict(type='mmstable.SafeValLoop'),
    )
    assert runner.iter == 4
    assert (tmp_path / 'iter_2.pth').exists()
    assert note.metrics[0]['missing_samples'] == 4
