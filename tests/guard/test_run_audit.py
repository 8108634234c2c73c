"""A state that is not finite is found; a mask with Inf is none."""

from __future__ import annotations

import math

import pytest
import torch
from mmengine.hooks import Hook

from mmstable.errors import TrainingDiverged
from mmstable.events import Action, Fault
from tests.guard.runs import FUSED, PLAIN, Poison, run, safe_checkpoints
from tests.toys import NAN, Sabotage, ToyModel, weights


@pytest.mark.parametrize('wrapper', [PLAIN, FUSED], ids=['plain', 'fused'])
def test_a_poisoned_weight_leads_back_at_once(tmp_path, wrapper):
    runner = run(tmp_path, faults=[Poison([7])], wrapper=wrapper)
    (done,) = runner.diary.done
    assert (done.action, done.fault) == (Action.ROLLBACK, Fault.POISONED)
    assert (done.iteration, done.restored) == (7, 4)
    assert [c.name for c in done.culprits] == ['state_dict.net.head.weight']
    assert all(v.isfinite().all() for v in weights(runner.model).values())


def test_a_poisoned_optimizer_leads_back_too(tmp_path):
    runner = run(tmp_path, faults=[Poison([7], 'exp_avg')], wrapper=FUSED)
    assert [one.fault for one in runner.diary.done] == [Fault.POISONED]
    names = [c.name for c in runner.diary.done[0].culprits]
    assert 'optimizer.net.head.weight.exp_avg' in names
    state = runner.optim_wrapper.optimizer.state
    assert all(
        value.isfinite().all()
        for one in state.values()
        for value in one.values()
    )


def test_silent_poison_is_found_before_it_gets_into_a_snapshot(tmp_path):
    class Unused(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.net.head.idle = torch.nn.Parameter(torch.zeros(3))

    class Spoil(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter + 1 == 6:
                runner.model.net.head.idle.data[1] = math.inf

    runner = run(tmp_path, faults=[Spoil()], model=Unused())
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (8, 4)
    assert done.culprits[0] == ('state_dict.net.head.idle', 'Inf')


def test_a_mask_with_inf_is_no_poison(tmp_path):
    class Masked(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('mask', torch.full((3,), -math.inf))

    runner = run(tmp_path, faults=[Sabotage(loss=[6])], model=Masked())
    assert runner.diary.done == []


def test_a_mask_that_is_made_in_the_first_forward_is_no_poison(tmp_path):
    class Lazy(ToyModel):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('mask', None, persistent=False)

        def forward(self, *args, **kwargs):
            if self.mask is None:
                self.mask = torch.full((3, 3), -math.inf).triu(1)
            return super().forward(*args, **kwargs)

    assert run(tmp_path, model=Lazy()).diary.done == []


def test_a_checkpoint_that_was_refused_leads_back(tmp_path):
    class Spoil(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter + 1 == 5:
                runner.model.net.head.bias.data[0] = NAN

    runner = run(
        tmp_path,
        faults=[Spoil()],
        default_hooks=safe_checkpoints(5),
    )
    (done,) = runner.diary.done
    assert (done.fault, done.iteration, done.restored) == (
        Fault.POISONED,
        # Audited in the background of the next iteration.
        6,
        4,
    )


def test_a_poison_that_is_only_warned_of_leaves_others_to_act(tmp_path):
    with pytest.raises(TrainingDiverged):
        run(
            tmp_path,
            dict(actions=dict(poisoned='warn', nan_loss='stop')),
            [Poison([5])],
        )
