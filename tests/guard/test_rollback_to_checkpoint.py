"""Without snapshots, a rollback restores the newest good checkpoint."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import EMAHook, Hook

from mmstable.checkpoint.loading import load_checkpoint
from mmstable.hooks.resume_hooks import ResumeCheckHook
from tests.guard.runs import (
    FUSED,
    SCHEDULE,
    Blow,
    Poison,
    run,
    safe_checkpoints,
    stopped,
)
from tests.loops.runs import log_of
from tests.toys import NAN, ToyModel, assert_same, weights


def test_a_model_that_is_too_large_goes_back_to_a_checkpoint(tmp_path):
    class Note(Hook):
        def before_train(self, runner):
            runner.averages = next(
                h for h in runner.hooks if isinstance(h, EMAHook)
            )

    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0.0, lr_factor=1.0),
        [Poison([7]), EMAHook(), Note()],
        wrapper=FUSED,
        iters=7,
        param_scheduler=SCHEDULE,
        default_hooks=safe_checkpoints(3),
    )
    (done,) = runner.diary.done
    assert done.restored == 6
    assert done.source.endswith('iter_6.pth')
    assert_same(runner.diary.states[7], runner.diary.states[6])
    assert runner.optim_wrapper.applied_steps == 6
    assert runner.optim_wrapper.skipped_steps == 1
    # Stepped once more after it came back.
    assert runner.param_schedulers[0].last_step == 7
    assert 'max_snapshot_memory=0' in log_of(runner)


@pytest.mark.parametrize('missing', ['optimizer', 'param_scheduler'])
def test_a_checkpoint_of_half_a_state_leaves_the_rate_alone(tmp_path, missing):
    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0.0, lr_factor=1.0),
        [Poison([9])],
        param_scheduler=SCHEDULE,
        default_hooks=safe_checkpoints(3, **{f'save_{missing}': False}),
    )
    assert runner.diary.done[0].restored == 6
    clean = run(tmp_path / 'clean', param_scheduler=SCHEDULE)
    assert runner.diary.lr == pytest.approx(clean.diary.lr)


def test_without_anything_to_go_back_to_the_run_stops(tmp_path):
    error = stopped(tmp_path, dict(max_snapshot_memory=0.0))
    assert 'because of poisoned since iteration 6' in str(error)


class Adapted(ToyModel):
    """Trains and saves its head only, as with LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.net.backbone.requires_grad_(False)

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        for name in [name for name in state if 'backbone' in name]:
            del state[name]
        return state


@pytest.mark.parametrize('hooks', [[], [EMAHook()]], ids=['plain', 'average'])
def test_a_model_that_saves_its_adapters_only_survives(tmp_path, hooks):
    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0.0),
        [Poison([7]), *hooks],
        model=Adapted(),
        default_hooks=safe_checkpoints(3),
    )
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (7, 6)
    assert_same(runner.diary.states[7], runner.diary.states[6])
    assert_same(
        weights(runner.model.net.backbone), weights(ToyModel().net.backbone)
    )
    assert runner.iter == 12
    # As when mmengine resumes.
    assert 'missing keys in source state_dict' in log_of(runner)


class Tables(ToyModel):
    """Has buffers that are in no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        for name in ('table', 'seen'):
            value = torch.arange(3.0)
            self.net.register_buffer(name, value, persistent=False)

    def forward(self, *args, **kwargs):
        losses = super().forward(*args, **kwargs)
        self.net.seen += 1
        factor = 1 + 0 * self.net.table.sum()
        return {name: loss * factor for name, loss in losses.items()}


class SpoilTable(Hook):
    priority = 'HIGHEST'

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == 7:
            runner.model.net.table[1] = NAN


def test_buffers_that_no_checkpoint_has_are_healed(tmp_path):
    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0.0),
        [SpoilTable()],
        model=Tables(),
        default_hooks=safe_checkpoints(3),
    )
    (done,) = runner.diary.done
    assert [c.name for c in done.culprits] == ['state_dict.net.table']
    assert done.source.endswith('iter_6.pth')
    assert runner.model.net.table.tolist() == [0, 1, 2]
    # A finite one is left as it is: 12 forward passes but the bad one.
    assert runner.model.net.seen.tolist() == [11, 12, 13]


def test_a_snapshot_heals_all_buffers(tmp_path):
    runner = run(tmp_path, faults=[SpoilTable()], model=Tables(), iters=7)
    assert runner.diary.done[0].restored == 4
    assert runner.model.net.table.tolist() == [0, 1, 2]
    assert runner.model.net.seen.tolist() == [4, 5, 6]


class Wide(ToyModel):
    """Has another head."""

    def __init__(self) -> None:
        super().__init__()
        self.net.head = torch.nn.Linear(8, 1)


def resumed(folder, origin, go=run, faults=(), **kwargs):
    """A run that has saved nothing of its own when it goes wrong."""
    check = ResumeCheckHook(allow_partial=0.5)
    return go(
        folder,
        dict(max_snapshot_memory=0.0),
        [Blow([8]), check, *faults],
        load_from=str(origin),
        resume=True,
        default_hooks=safe_checkpoints(100, save_last=False),
        **kwargs,
    )


@pytest.fixture
def origin(tmp_path):
    """A checkpoint of another work directory."""
    run(tmp_path / 'first', iters=6, default_hooks=safe_checkpoints(6))
    return tmp_path / 'first' / 'iter_6.pth'


def test_a_run_goes_back_to_what_it_was_resumed_from(tmp_path, origin):
    runner = resumed(tmp_path / 'second', origin)
    (done,) = runner.diary.done
    assert (done.iteration, done.restored) == (9, 6)
    assert done.source == str(origin)
    saved = load_checkpoint(origin)['state_dict']
    assert_same(runner.diary.states[9], saved)
    assert runner.iter == 12


def test_what_became_of_it_since_is_seen(tmp_path, origin):
    class Damage(Hook):
        def before_train(self, runner):
            content = bytearray(origin.read_bytes())
            content[len(content) // 2] ^= 255
            origin.write_bytes(content)

    error = resumed(tmp_path / 'second', origin, stopped, faults=[Damage()])
    assert 'because of nan_loss since iteration 8' in str(error)


def test_a_checkpoint_of_another_model_is_not_gone_back_to(tmp_path, origin):
    error = resumed(tmp_path / 'second', origin, stopped, model=Wide())
    assert 'because of nan_loss since iteration 8' in str(error)
