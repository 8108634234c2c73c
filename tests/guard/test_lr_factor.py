"""After an incident, a run trains with a lower learning rate."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict

from mmstable import SafeOptimWrapper
from mmstable.checkpoint.loading import load_checkpoint
from tests.guard.runs import PLAIN, SCHEDULE, STOCK, Blow, Poison, run
from tests.loops.runs import log_of
from tests.toys import Sabotage, ToyModel, toy_runner


def test_the_lower_rate_survives_the_schedule_and_recovers(tmp_path):
    clean = run(
        tmp_path / 'clean', param_scheduler=SCHEDULE, iters=16
    ).diary.lr
    runner = run(
        tmp_path / 'bad',
        dict(lr_factor=0.5, lr_recovery=4),
        [Blow([6])],
        param_scheduler=SCHEDULE,
        iters=16,
    )
    lr = runner.diary.lr
    assert lr[:7] == clean[:7]
    # mmengine's own hook lets the schedule lag: it is at 4 again, and steps.
    factors = [a / b for a, b in zip(lr[7:], clean[5:])]
    assert factors[:5] == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0])
    assert factors[5:] == pytest.approx([1.0] * 4)
    scheduled = runner.optim_wrapper.param_groups[0]['lr']
    assert scheduled == pytest.approx(clean[14])


def test_a_rate_that_does_not_recover_stays(tmp_path):
    runner = run(
        tmp_path,
        dict(lr_factor=0.5, lr_recovery=0),
        [Blow([6])],
        iters=12,
    )
    assert runner.diary.lr == [0.1] * 7 + [0.05] * 5


@pytest.mark.parametrize(
    ('wrapper', 'faults', 'rate'),
    [
        (PLAIN, [Poison([6])], 0.1),
        # It updates with what is not finite, so its rate may be too high.
        (STOCK, [Sabotage(loss=[6])], 0.05),
    ],
    ids=['from_outside', 'by_an_update'],
)
def test_poison_from_outside_costs_no_learning_rate(
    tmp_path, wrapper, faults, rate
):
    runner = run(tmp_path, dict(lr_recovery=0), faults, wrapper, iters=10)
    (done,) = runner.diary.done
    assert (done.fault.value, done.restored) == ('poisoned', 4)
    assert runner.diary.lr[-1] == pytest.approx(rate)
    assert ('learning rate as it was' in log_of(runner)) is (rate == 0.1)


def test_checkpoints_have_the_rate_of_the_schedule(tmp_path):
    runner = run(
        tmp_path,
        dict(actions=dict(nan_loss='lower_lr'), lr_recovery=0),
        [Sabotage(loss=[2, 3])],
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=6, by_epoch=False)
        ),
    )
    assert runner.diary.lr[-1] == 0.05
    saved = load_checkpoint(tmp_path / 'iter_6.pth')
    assert saved['optimizer']['param_groups'][0]['lr'] == 0.1


class Rates(Hook):
    """Notes what the first optimizer is trained with."""

    priority = 'LOWEST'

    def before_train_iter(self, runner, *args, **kwargs):
        wrapper = runner.optim_wrapper
        if isinstance(wrapper, OptimWrapperDict):
            wrapper = wrapper['body']
        self.last = wrapper.optimizer.param_groups[0]['lr']


class Saves(Hook):
    """A hook of a user that saves while an iteration runs."""

    priority = 'VERY_HIGH'

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == 8:
            meta = dict(epoch=0, iter=8)
            runner.save_checkpoint(runner.work_dir, 'own.pth', meta=meta)


class Two(ToyModel):
    def train_step(self, data, optim_wrapper):
        data = self.data_preprocessor(data, True)
        for one in optim_wrapper.values():
            with one.optim_context(self):
                losses = self(**data, mode='loss')
            one.update_params(losses['loss'])
        return losses


@pytest.mark.parametrize('priority', ['VERY_HIGH', 'LOW'])
@pytest.mark.parametrize('is_many', [False, True], ids=['one', 'many'])
def test_checkpoints_of_other_hooks_have_it_too(tmp_path, is_many, priority):
    model, saves = Two() if is_many else ToyModel(), Saves()
    saves.priority = priority
    body, head = model.net.backbone.parameters(), model.net.head.parameters()
    optimizers = [torch.optim.SGD(body, 0.1), torch.optim.SGD(head, 0.2)]
    wrappers = [SafeOptimWrapper(one) for one in optimizers]
    runner = toy_runner(
        tmp_path,
        OptimWrapperDict(body=wrappers[0], head=wrappers[1])
        if is_many
        else wrappers[0],
        10,
        [
            dict(
                type='mmstable.DivergenceGuardHook',
                snapshot_interval=4,
                max_consecutive_bad=2,
                lr_recovery=0,
                actions=dict(nan_loss='lower_lr'),
            ),
            Sabotage(loss=[6, 7]),
            saves,
            Rates(),
        ],
        model=model,
    )
    runner.train()
    # It is trained with the half all along.
    assert next(h for h in runner.hooks if isinstance(h, Rates)).last == 0.05
    saved = load_checkpoint(tmp_path / 'own.pth')['optimizer']
    parts = list(saved.values()) if is_many else [saved]
    rates = [part['param_groups'][0]['lr'] for part in parts]
    assert rates == [0.1, 0.2][: len(rates)]


def test_a_warm_up_on_top_of_the_schedule(tmp_path):
    runner = run(
        tmp_path, dict(warmup=dict(iters=5, start_factor=0.5)), iters=8
    )
    expected = [0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.1, 0.1]
    assert runner.diary.lr == pytest.approx(expected)
    shown = runner.message_hub.get_scalar('train/stable/lr_factor').data[0]
    assert shown == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


@pytest.mark.parametrize('cut', [9, 30])
def test_the_log_shows_the_full_rate_again(tmp_path, cut):
    """Also if the run is resumed after it has shown less."""

    def shown(runner):
        return runner.message_hub.get_scalar('train/stable/lr_factor')

    guard = dict(lr_factor=0.5, lr_recovery=8)
    checkpoints = dict(type='CheckpointHook', interval=9, by_epoch=False)
    runner = run(
        tmp_path,
        guard,
        [Blow([6])],
        iters=min(cut, 20),
        default_hooks=dict(checkpoint=checkpoints),
    )
    if cut == 9:
        assert shown(runner).current() < 1
        runner = run(
            tmp_path / 'rest',
            dict(guard, lr_recovery=2),
            iters=12,
            load_from=str(tmp_path / 'iter_9.pth'),
            resume=True,
        )
    assert shown(runner).current() == 1
    assert list(shown(runner).data[0]).count(1.0) == 1
    quiet = run(tmp_path / 'quiet', iters=2)
    assert 'train/stable/lr_factor' not in quiet.message_hub.log_scalars
