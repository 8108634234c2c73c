"""The place where a batch meets the model remembers what it did."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook

from mmstable.state.rng import restore_rng
from tests.loops.runs import (
    DropoutModel,
    Numbered,
    build,
    epoch_loop,
    iter_loop,
    loader,
)

LOOPS = pytest.mark.parametrize(
    'loop', [iter_loop(5), epoch_loop(1)], ids=['iter', 'epoch']
)


class Note(Hook):
    """Looks at the record in both stages of an iteration."""

    def __init__(self, keeps_rng=False) -> None:
        self.keeps_rng = keeps_rng
        self.before: list = []
        self.after: list = []
        self.weights: list = []

    def before_train(self, runner):
        runner.train_loop.train_step.keeps_rng = self.keeps_rng

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        last = runner.train_loop.train_step.last
        self.before.append(None if last is None else last.iteration)
        self.weights.append(
            {k: v.clone() for k, v in runner.model.state_dict().items()}
        )

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        last = runner.train_loop.train_step.last
        assert last.batch is data_batch
        self.after.append((last, float(outputs['loss'])))


def run(folder, loop, note, **kwargs):
    runner = build(
        folder, loader(Numbered(10), 2), loop, [note], 10**6, **kwargs
    )
    runner.train()
    return runner


@LOOPS
def test_the_newest_step_is_recorded(tmp_path, loop):
    note = Note()
    run(tmp_path, loop, note)
    assert note.before == [None, 1, 2, 3, 4]
    assert [one.iteration for one, _ in note.after] == [1, 2, 3, 4, 5]
    assert all(one.is_done and one.rng is None for one, _ in note.after)


@LOOPS
def test_a_step_can_be_done_again(tmp_path, loop):
    note = Note(keeps_rng=True)
    runner = run(tmp_path, loop, note)
    # Dropout draws random numbers in every forward pass.
    for (record, loss), state in zip(note.after, note.weights):
        runner.model.load_state_dict(state)
        restore_rng(record.rng)
        data = runner.model.data_preprocessor(record.batch, True)
        again = runner.model(**data, mode='loss')['loss']
        assert float(again) == loss


class Failing(DropoutModel):
    def forward(self, *args, **kwargs):
        if self.fails:
            raise RuntimeError('no forward pass')
        return super().forward(*args, **kwargs)


@LOOPS
def test_a_step_that_fails_is_not_done(tmp_path, loop):
    seen = []

    class Fail(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            runner.model.fails = runner.iter == 2

        def on_exception(self, runner, exception):
            seen.append(runner.train_loop.train_step.last)
            seen.append(runner.train_loop.resume_meta()['iter'])

    with pytest.raises(RuntimeError, match='no forward pass'):
        build(
            tmp_path,
            loader(Numbered(10), 2),
            loop,
            [Fail()],
            10**6,
            model=Failing(),
        ).train()
    record, done = seen
    assert (record.iteration, record.is_done, done) == (3, False, 2)
    assert torch.is_tensor(record.batch['inputs'])
