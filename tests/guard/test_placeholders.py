"""What was not finite before training is no poison, as long as it stays."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook

from mmstable.checkpoint.audit import placeholders_of
from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.checkpoint.manifest import remove_manifest
from mmstable.errors import TrainingDiverged
from tests.guard.runs import Poison, run, safe_checkpoints, stopped
from tests.loops.runs import log_of
from tests.toys import NAN, Sabotage, ToyModel


class Unfilled(ToyModel):
    """Has a place for numbers that come later, if at all."""

    def __init__(self, persistent=True) -> None:
        super().__init__()
        self.net.register_buffer(
            'level', torch.tensor([NAN, 1.0]), persistent=persistent
        )


class Fill(Hook):
    """Writes to that place, right before an iteration."""

    def __init__(self, values) -> None:
        self.values = values

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.values:
            runner.model.net.level[0] = self.values[runner.iter + 1]


@pytest.mark.parametrize('persistent', [True, False])
def test_training_goes_on_with_a_placeholder(tmp_path, persistent):
    runner = run(
        tmp_path,
        faults=[Sabotage(loss=[6])],
        model=Unfilled(persistent),
        default_hooks=safe_checkpoints(5),
    )
    assert runner.diary.done == []
    assert 'not finite: net.level' not in log_of(runner)
    assert (tmp_path / 'iter_12.pth').exists()


@pytest.mark.parametrize('with_manifest', [True, False])
def test_its_checkpoints_can_be_resumed(tmp_path, with_manifest):
    run(
        tmp_path,
        faults=[Fill({9: 2.0})],
        model=Unfilled(),
        iters=8,
        default_hooks=safe_checkpoints(4),
    )
    if not with_manifest:
        remove_manifest(tmp_path / 'iter_8.pth')
    found = find_checkpoint(tmp_path).found
    assert found is not None and found.iteration == 8
    # Filled in iteration 9, and as it was at the start in 11.
    runner = run(
        tmp_path,
        faults=[Fill({9: 2.0, 11: NAN})],
        model=Unfilled(),
        iters=16,
        default_hooks=safe_checkpoints(2),
        load_from=str(found.path),
        resume=True,
    )
    assert runner.diary.done == []


def test_a_rollback_to_where_it_was_empty_is_fine(tmp_path):
    """Filled in 6; the rollback from 7 to 4 empties it once more."""
    runner = run(
        tmp_path,
        faults=[Fill({6: 2.0}), Poison([7]), Sabotage(loss=[10])],
        model=Unfilled(),
    )
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (7, 4)
    assert runner.model.net.level.isnan().tolist() == [True, False]


def test_more_of_it_is_a_warning(tmp_path):
    class Spread(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter + 1 == 6:
                runner.model.net.level.fill_(NAN)

    runner = run(tmp_path, faults=[Spread()], model=Unfilled())
    assert runner.diary.done == []
    assert 'values that are not finite: net.level' in log_of(runner)


def test_weights_that_were_loaded_with_nan_are_poison(tmp_path):
    model = ToyModel()
    model.net.head.bias.data[0] = NAN
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'bad.pth')
    error = stopped(
        tmp_path / 'run',
        dict(max_rollbacks=0),
        faults=[Sabotage()],
        load_from=str(tmp_path / 'bad.pth'),
    )
    assert isinstance(error, TrainingDiverged)
    assert 'net.head.bias' in str(error)


def test_all_who_look_share_one_list():
    model = Unfilled()
    one = placeholders_of(model)
    one.learn(model)
    assert one.audit({})[1] == {'net.level': (1, 0)}
    model.net.level.fill_(NAN)
    state = dict(state_dict=model.state_dict())
    found = placeholders_of(model).audit(state)[0]
    assert found == [('state_dict.net.level', 'NaN')]
    # It reaches no step, and counts as known until a rollback.
    assert one.audit(state, steps_are_good=True)[0] == []
    assert placeholders_of(model).audit(state)[0] == []
    one.start_over()
    assert one.audit(state)[0] == found
    model.net.level[1] = 1
    assert one.audit(state)[0] == []
