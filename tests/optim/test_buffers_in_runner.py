"""Validation after a bad batch is as if that batch never was."""

from __future__ import annotations

import math

import pytest
from mmengine.evaluator import BaseMetric, Evaluator
from torch import nn

from mmstable.hooks import SafeEMAHook
from tests.loops.runs import Numbered, iter_loop, loader
from tests.toys import Sabotage, ToyModel, toy_runner


class Normed(ToyModel):
    """With BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.net.norm = nn.BatchNorm1d(8)

    def forward(self, inputs, targets, number=None, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


class Mean(BaseMetric):
    """The mean of all outputs."""

    def process(self, data_batch, data_samples):
        self.results.extend(float(one.sum()) for one in data_samples)

    def compute_metrics(self, results):
        return dict(mean=sum(results) / len(results))


def metric(folder, iters, bad=(), wrapper=None, hooks=()):
    seen = []

    class Note(Sabotage):
        def after_val_epoch(self, runner, metrics=None):
            seen.append(metrics['mean'])

    toy_runner(
        folder,
        wrapper
        or dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.1),
        ),
        iters,
        [Note(inputs=bad), *hooks],
        model=Normed(),
        train_cfg=iter_loop(iters, val_interval=iters),
        val_dataloader=loader(Numbered(4, noise=False)),
        val_evaluator=Evaluator(Mean()),
        val_cfg=dict(),
    ).train()
    return seen[-1]


@pytest.mark.parametrize('average', [False, True])
def test_the_metric_is_that_of_a_run_without_the_batch(tmp_path, average):
    hooks = [SafeEMAHook(update_buffers=True)] if average else []
    with_it = metric(tmp_path / 'a', 3, bad=[3], hooks=hooks)
    hooks = [SafeEMAHook(update_buffers=True)] if average else []
    assert with_it == metric(tmp_path / 'b', 2, hooks=hooks)


def test_with_the_stock_wrapper_it_is_not(tmp_path):
    stock = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
    spoiled = metric(tmp_path / 'a', 3, bad=[3], wrapper=stock)
    assert math.isnan(spoiled)
