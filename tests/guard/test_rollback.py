"""A rollback brings back every part of the state, exactly."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import EMAHook, Hook
from torch import nn

from mmstable.events import Action, Fault
from mmstable.hooks import SafeEMAHook
from tests.guard.runs import (
    FUSED,
    PLAIN,
    SCHEDULE,
    STOCK,
    Blow,
    Diary,
    Poison,
    run,
)
from tests.toys import (
    NAN,
    Sabotage,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)


def test_bad_steps_in_a_row_lead_back_to_the_last_snapshot(tmp_path):
    faults = [Blow([6])]
    runner = run(tmp_path, faults=faults, iters=7)
    (done,) = runner.diary.done
    assert (done.action, done.fault) == (Action.ROLLBACK, Fault.NAN_LOSS)
    assert (done.iteration, done.since, done.restored) == (7, 6, 4)
    assert (done.source, done.subject) == ('memory', 'optim_wrapper')
    assert [one.iteration for one in runner.diary.bad] == [6, 7]
    assert_same(runner.diary.states[7], runner.diary.states[4])


@pytest.mark.parametrize('wrapper', [PLAIN, FUSED], ids=['plain', 'fused'])
def test_after_a_rollback_training_is_as_if_the_bad_part_never_was(
    tmp_path, wrapper
):
    # Iterations 5 to 7 are given up: what follows is what a run does that
    # never saw their data.
    whole = run(
        tmp_path / 'a',
        dict(lr_factor=1.0),
        [Blow([6])],
        wrapper,
        iters=10,
    )
    data = whole.train_dataloader.dataset
    kept = [i for i in range(10) if i not in (4, 5, 6)]
    order = [i for k in kept for i in (2 * k % 16, (2 * k + 1) % 16)]
    reference = run(
        tmp_path / 'b',
        wrapper=wrapper,
        iters=7,
        train_dataloader=torch.utils.data.DataLoader(
            torch.utils.data.Subset(data, order), batch_size=2
        ),
    )
    assert len(whole.diary.done) == 1
    assert_same(weights(whole.model), weights(reference.model))
    assert_same(
        whole.optim_wrapper.optimizer.state_dict()['state'],
        reference.optim_wrapper.optimizer.state_dict()['state'],
    )


def test_the_stock_wrapper_is_rolled_back(tmp_path):
    runner = run(
        tmp_path,
        faults=[Sabotage(grads={6: ('net.head.weight', NAN)})],
        wrapper=STOCK,
    )
    (done,) = runner.diary.done
    assert (done.fault, done.restored) == (Fault.POISONED, 4)
    assert all(v.isfinite().all() for v in weights(runner.model).values())


def test_the_average_goes_back_as_well(tmp_path):
    averages = {}

    class Note(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            ema = next(h for h in runner.hooks if isinstance(h, EMAHook))
            averages[runner.iter + 1] = weights(ema.ema_model)

    run(tmp_path, faults=[Poison([7]), EMAHook(momentum=0.5), Note()])
    # Iteration 7 ends with the state of 4, averaged once more.
    assert int(averages[7]['steps']) == int(averages[4]['steps']) + 1
    assert all(v.isfinite().all() for v in averages[12].values())


def test_schedule_and_average_of_mmstable_go_back_exactly(tmp_path):
    averages, positions = {}, {}

    class Note(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            ema = next(h for h in runner.hooks if isinstance(h, EMAHook))
            averages[runner.iter + 1] = weights(ema.ema_model)
            positions[runner.iter + 1] = runner.param_schedulers[0].last_step

    run(
        tmp_path,
        dict(lr_factor=1.0),
        [Blow([6]), SafeEMAHook(momentum=0.5), Note()],
        iters=20,
        param_scheduler=SCHEDULE,
        default_hooks=dict(
            param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
            checkpoint=dict(type='CheckpointHook', interval=10**6),
        ),
    )
    assert_same(averages[7], averages[4])
    assert positions[7] == positions[4] == 4
    # What is owed is paid back until the end.
    assert positions[20] == 20


def test_an_average_inside_an_open_window_is_not_put_back_again(tmp_path):
    ema = SafeEMAHook(momentum=0.5)
    run(
        tmp_path,
        dict(max_consecutive_bad=1),
        [Blow([11]), ema],
        wrapper=dict(PLAIN, accumulative_counts=2),
        iters=12,
    )
    # The snapshot is of 8; the window began with the average of 10.
    assert int(ema.ema_model.steps) == 8


def test_accumulation_is_rolled_back_between_two_windows(tmp_path):
    wrapper = dict(PLAIN, accumulative_counts=2)
    runner = run(
        tmp_path,
        faults=[Blow([9])],
        wrapper=wrapper,
        iters=14,
    )
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (12, 8)
    assert_same(runner.diary.states[12], runner.diary.states[8])


def test_several_optimizers_go_back_together(tmp_path):
    from mmengine.optim import OptimWrapperDict

    from mmstable import SafeOptimWrapper

    class Two(ToyModel):
        def train_step(self, data, optim_wrapper):
            data = self.data_preprocessor(data, True)
            for name in ('body', 'head'):
                one = optim_wrapper[name]
                with one.optim_context(self):
                    losses = self(**data, mode='loss')
                one.update_params(losses['loss'])
            return losses

    torch.manual_seed(0)
    model = Two()

    def wrap(module: nn.Module) -> SafeOptimWrapper:
        return SafeOptimWrapper(
            torch.optim.AdamW(module.parameters(), 0.01, fused=True)
        )

    diary = Diary()
    diary.before_train_iter = lambda *args, **kwargs: None
    runner = toy_runner(
        tmp_path,
        OptimWrapperDict(
            body=wrap(model.net.backbone), head=wrap(model.net.head)
        ),
        8,
        [
            Poison([7]),
            dict(type='mmstable.DivergenceGuardHook', snapshot_interval=4),
            diary,
        ],
        model=model,
    )
    runner.train()
    assert [d.restored for d in diary.done] == [4]
    assert all(v.isfinite().all() for v in weights(model).values())


def test_the_base_rate_of_many_groups_goes_back_too(tmp_path):
    wrapper = dict(PLAIN, paramwise_cfg=dict(bias_lr_mult=2.0))
    faults = [Blow([6])]
    runner = run(
        tmp_path,
        dict(lr_factor=1.0),
        faults,
        wrapper,
        param_scheduler=SCHEDULE,
    )
    rates = runner.optim_wrapper.get_lr()
    assert rates['base_lr'][0] == pytest.approx(rates['lr'][0])


def test_buffers_that_change_their_shape_go_back(tmp_path):
    class Growing(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('seen', torch.zeros(1))
            self.register_buffer('flat', torch.ones(1).expand(3))

        def forward(self, *args, **kwargs):
            self.seen = torch.zeros(len(self.seen) + 1)
            return super().forward(*args, **kwargs)

    runner = run(tmp_path, faults=[Poison([7])], model=Growing(), iters=7)
    assert runner.diary.done[0].restored == 4
    assert len(runner.model.seen) == 5


def test_optimizer_state_may_be_of_any_type(tmp_path):
    class Factored(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for param in group['params']:
                    self.state[param]['dims'] = (0, 1, 2)

    from mmengine.registry import OPTIMIZERS

    OPTIMIZERS.register_module(module=Factored, force=True)
    wrapper = dict(PLAIN, optimizer=dict(type='Factored', lr=0.1))
    runner = run(tmp_path, faults=[Poison([7])], wrapper=wrapper)
    assert [d.restored for d in runner.diary.done] == [4]


def test_a_sparse_table_is_left_alone(tmp_path):
    class Graph(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            table = torch.eye(3).to_sparse_csr()
            self.register_buffer('graph', table, persistent=False)

    runner = run(tmp_path, faults=[Poison([7])], model=Graph())
    assert [d.restored for d in runner.diary.done] == [4]
    assert torch.equal(runner.model.graph.to_dense(), torch.eye(3))


def test_a_rollback_that_did_not_help_is_followed_by_an_older_one(tmp_path):
    faults = [Blow([10, 13, 15])]
    runner = run(tmp_path, faults=faults, iters=16)
    assert [d.restored for d in runner.diary.done] == [8, 0, 0]


def test_good_steps_renew_the_rollbacks(tmp_path):
    faults = [Poison([6, 12, 18])]
    runner = run(
        tmp_path,
        dict(max_rollbacks=1, renew_rollbacks=3),
        faults,
        iters=20,
    )
    assert len(runner.diary.done) == 3
