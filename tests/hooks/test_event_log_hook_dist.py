"""The event files of a run with two processes."""

from __future__ import annotations

import pytest
from mmengine.model import MMDistributedDataParallel

from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.report import RunEnd, RunStart, StepFault, read_events
from tests.ranks import run_ranks
from tests.toys import Sabotage, ToyModel, toy_runner

pytestmark = pytest.mark.dist


def train(rank, folder):
    bad_loss = Sabotage(loss=[2] if rank == 1 else [])
    toy_runner(
        folder,
        hooks=(EventLogHook(interval=2), bad_loss),
        max_iters=4,
        launcher='pytorch',
        # mmengine itself would ask for a GPU.
        model=MMDistributedDataParallel(ToyModel()),
    ).train()


def test_other_ranks_write_their_faults_only(tmp_path):
    run_ranks(train, tmp_path)
    files = {path.name: path for path in tmp_path.glob('*/stability/*')}
    assert sorted(files) == ['events.jsonl', 'events.rank1.jsonl']
    first = list(read_events(files['events.jsonl']))
    second = list(read_events(files['events.rank1.jsonl']))
    assert first[0].world_size == 2
    assert isinstance(first[-1], RunEnd)
    assert [type(event) for event in second] == [RunStart, StepFault]
    assert (second[0].rank, second[1].rank) == (1, 1)
    seen = [event for event in first if isinstance(event, StepFault)]
    assert [event.iteration for event in seen] == [2]
    assert second[1].iteration == 2
    # The loss tells which rank it came from; the gradients are shared.
    assert seen[0].fault == second[1].fault == 'nan_loss'
    assert seen[0].losses['loss'] < 100
    assert not second[1].losses['loss'] < 100
