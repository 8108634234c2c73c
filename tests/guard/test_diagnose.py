"""A run that cannot be saved stops with a diagnosis."""

from __future__ import annotations

import pytest
from mmengine.hooks import Hook

from mmstable.errors import TrainingDiverged
from tests.guard.runs import (
    Poison,
    Predicting,
    diagnosis,
    run,
    safe_checkpoints,
    stopped,
)
from tests.loops.runs import iter_loop, validation
from tests.toys import NAN, Sabotage, ToyModel


def test_a_run_is_given_up_after_so_many_rollbacks(tmp_path):
    error = stopped(tmp_path, dict(max_rollbacks=2))
    assert error.exit_code == 4
    found = diagnosis(tmp_path)
    assert found['text'] == str(error)
    assert found['stop']['fault'] == 'poisoned'
    assert [one['restored'] for one in found['rollbacks']] == [4, 0]
    assert found['stop']['culprits'][0]['name'] == 'state_dict.net.head.weight'
    assert found['wrappers']['optim_wrapper']['lr'] == 0.1
    assert found['checkpoint'] is None
    assert '2 rollbacks did not help' in str(error)
    assert 'start a new run' in str(error)


def test_the_diagnosis_names_the_checkpoint_from_before(tmp_path):
    error = stopped(
        tmp_path,
        dict(actions=dict(poisoned='stop')),
        default_hooks=safe_checkpoints(2),
    )
    found = diagnosis(tmp_path)
    assert found['checkpoint'].endswith('iter_4.pth')
    assert f'--resume-from {found["checkpoint"]}' in found['resume']
    assert found['resume'] in str(error)
    assert found['stop']['since'] == 6


def test_nothing_is_validated_or_saved_after_a_stop(tmp_path):
    seen = []

    class Note(Hook):
        def before_val(self, runner):
            seen.append(runner.iter)

    with pytest.raises(TrainingDiverged):
        run(
            tmp_path,
            dict(actions=dict(poisoned='stop')),
            [
                Poison([6]),
                Note(),
                dict(type='mmstable.EmergencyCheckpointHook'),
            ],
            train_cfg=iter_loop(12, val_interval=3),
            default_hooks=safe_checkpoints(3),
            model=Predicting(),
            **validation(),
        )
    assert seen == [3]
    assert sorted(p.name for p in tmp_path.glob('*.pth')) == ['iter_3.pth']


def test_a_run_that_starts_poisoned_does_not_start(tmp_path):
    model = ToyModel()
    model.net.head.bias.data[1] = NAN
    error = stopped(tmp_path, faults=[Sabotage()], model=model)
    assert 'stopped at iteration 0' in str(error)
    assert 'state_dict.net.head.bias (NaN)' in str(error)
