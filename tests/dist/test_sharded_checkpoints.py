"""FSDP and FSDP2: every rank saves its part, any number of ranks resumes."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner._flexible_runner import FlexibleRunner
from torch.utils.data import DataLoader

from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.checkpoint.loading import BadCheckpoint, load_file
from mmstable.checkpoint.shards import digest
from mmstable.errors import StoppedBySignal
from tests.dist.test_sharded import full_weights
from tests.ranks import run_ranks
from tests.torch_features import needs_fsdp
from tests.toys import NAN, ToyData, ToyModel, assert_same

pytestmark = [pytest.mark.dist, needs_fsdp]

STRATEGIES = {
    'fsdp': dict(type='mmstable.SafeFSDPStrategy'),
    'fsdp2': dict(type='mmstable.SafeFSDP2Strategy', shard_modules=['Linear']),
}
if not hasattr(torch.distributed.fsdp, 'fully_shard'):
    del STRATEGIES['fsdp2']


def runner(
    folder: Path, kind: str, hooks=(), interval=1, **kwargs
) -> FlexibleRunner:
    data = ToyData()
    torch.manual_seed(0)
    return FlexibleRunner(
        model=ToyModel(),
        work_dir=str(folder),
        strategy=STRATEGIES[kind],
        train_dataloader=DataLoader(
            data, batch_size=2, sampler=InfiniteSampler(data, seed=3)
        ),
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop',
            max_iters=6,
            val_interval=10**6,
        ),
        optim_wrapper=dict(
            type='mmstable.SafeAmpOptimWrapper',
            loss_scale=dict(init_scale=64.0, growth_interval=2),
            clip_grad=dict(max_norm=0.1),
            optimizer=dict(type='AdamW', lr=0.01),
        ),
        param_scheduler=[dict(type='PolyLR', by_epoch=False, end=6)],
        custom_hooks=list(hooks),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=interval,
                by_epoch=False,
                max_keep_ckpts=4,
            ),
            logger=dict(type='LoggerHook', interval=10),
        ),
        launcher='pytorch',
        randomness=dict(seed=0),
        experiment_name=f'{folder.parent.name}_{folder.name}',
        cfg=Config(dict()),
        **kwargs,
    )


def resume(folder: Path, kind: str, checkpoint: Path, hooks=()):
    resumed = runner(
        folder, kind, hooks, load_from=str(checkpoint), resume=True
    )
    resumed.train()
    return resumed


def two_ranks(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for kind in STRATEGIES:
        a_run_goes_on(folder / kind, kind)


def a_run_goes_on(folder: Path, kind: str) -> None:
    whole = runner(folder / 'whole', kind)
    whole.train()
    path = folder / 'whole' / 'iter_3.pth'
    rest = resume(folder / 'rest', kind, path)
    compare(rest, whole)
    names = sorted(
        p.name.partition('.shards')[0]
        for p in Path(whole.work_dir).glob('*.shards-*')
    )
    assert names == [f'iter_{i}.pth' for i in (3, 4, 5, 6)]
    an_emergency(folder, kind, whole)
    poison_is_not_saved(folder, kind)
    torch.save(
        [one.clone() for one in full_weights(whole.model)],
        folder / f'weights{os.environ["RANK"]}.pt',
    )


def compare(rest, whole) -> None:
    for one, other in zip(full_weights(rest.model), full_weights(whole.model)):
        assert torch.equal(one, other)
    assert_same(
        rest.optim_wrapper.loss_scaler.state_dict(),
        whole.optim_wrapper.loss_scaler.state_dict(),
    )
    assert rest.optim_wrapper.applied_steps == 6
    assert rest.iter == 6


class SignalOnce(Hook):
    """Somebody stops one rank."""

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 1 and not is_main_process():
            os.kill(os.getpid(), signal.SIGTERM)


def an_emergency(folder: Path, kind: str, whole) -> None:
    hooks = [
        SignalOnce(),
        dict(type='mmstable.EmergencyCheckpointHook', interval=1),
    ]
    stopped = runner(folder / 'stopped', kind, hooks, interval=100)
    with pytest.raises(StoppedBySignal):
        stopped.train()
    (path,) = (folder / 'stopped').glob('*.pth')
    assert path.name.startswith('emergency_iter_')
    compare(resume(folder / 'stopped_rest', kind, path), whole)


def poison_is_not_saved(folder: Path, kind: str) -> None:
    class Poison(Hook):
        priority = 'HIGHEST'

        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter == 3 and is_main_process():
                param = next(p for p in runner.model.parameters() if p.numel())
                part = getattr(param, 'to_local', lambda: param)()
                part.data.view(-1)[0] = NAN

    one = runner(folder / 'poisoned', kind, [Poison()])
    one.train()
    names = {p.name for p in (folder / 'poisoned').glob('iter_*.pth')}
    assert names == {'iter_1.pth', 'iter_2.pth', 'iter_3.pth'}


def one_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for kind in STRATEGIES:
        path = folder / kind / 'whole' / 'iter_6.pth'
        loaded = runner(
            folder / kind / 'alone', kind, load_from=str(path), resume=True
        )
        loaded.train()
        expected = torch.load(folder / kind / 'weights0.pt')
        for one, other in zip(full_weights(loaded.model), expected):
            assert torch.equal(one.reshape(-1), other.reshape(-1))
        assert loaded.optim_wrapper.applied_steps == 6


@pytest.mark.soak
def test_shards(tmp_path):
    run_ranks(two_ranks, tmp_path)
    for kind in STRATEGIES:
        plant_payloads(tmp_path / kind / 'whole' / 'iter_6.pth', tmp_path)
    run_ranks(one_rank, tmp_path, count=1)
    assert not (tmp_path / 'marker').exists()
    for kind in STRATEGIES:
        a_broken_shard_is_found(tmp_path / kind / 'whole')


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def plant_payloads(path: Path, folder: Path) -> None:
    """Indices that run something, in files that look as they were saved."""
    content = load_file(path)
    record = content['mmstable']['shards']
    shards = path.with_name(record['folder'])
    for name in ('.metadata', '__0.metadata'):
        (shards / name).write_bytes(pickle.dumps(Payload(folder / 'marker')))
        record['files'][name] = digest(shards / name)
    torch.save(content, path)
    Path(f'{path}.json').unlink()


def a_broken_shard_is_found(folder: Path) -> None:
    newest = find_checkpoint(folder).found
    assert newest.iteration == 6
    (shards,) = folder.glob('iter_6.pth.shards-*')
    part = next(shards.glob('*.distcp'))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(BadCheckpoint, match='corrupt: its shard .*distcp is'):
        verify_checkpoint(folder / 'iter_6.pth')
    search = find_checkpoint(folder)
    assert search.found.iteration == 5
    part.unlink()
    with pytest.raises(BadCheckpoint, match='its shard .* is missing'):
        verify_checkpoint(folder / 'iter_6.pth')
