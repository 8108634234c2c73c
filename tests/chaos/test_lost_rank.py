"""One of several ranks fails or is killed; nothing is lost, nobody hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmstable.checkpoint.loading import load_checkpoint
from tests.torch_features import skip_without_half
from tests.toys import assert_same

pytestmark = pytest.mark.dist
ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import base64, io, os, random, signal
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS


@DATASETS.register_module()
class RanksData(torch.utils.data.Dataset):
    metainfo = dict()

    def __len__(self):
        return 37

    def __getitem__(self, index):
        noise = random.random() + float(torch.rand(()))
        return dict(inputs=torch.full((8,), index / 37) + noise)


class Marker:
    def __reduce__(self):
        return os.mkdir, ('marker',)


FORGED = {
    'watch/1/state/0': None,
    'watch/1/result/1': '"../../elsewhere.pth"',
    'watch/1/failure': '{"rank": 7, "error": "planted"}',
    'coordinated_stop/1/request/0': '{"after": 0, "signal": "SIGNONE"}',
}


def plant():
    # What any process can do that reaches the port of the store, under every
    # prefix that torch, its launchers or mmstable may put before a key.
    stream = io.BytesIO()
    torch.save((8, Marker()), stream)
    pickled = base64.b64encode(stream.getvalue())
    store = torch.distributed.distributed_c10d._get_default_store()
    while store is not None:
        for key, word in FORGED.items():
            # Of the first attempt.
            store.set('mmstable/0/' + key, word or pickled)
        store = getattr(store, 'underlying_store', None)


@MODELS.register_module()
class RanksModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.5),
            torch.nn.Linear(16, 1))
        self.fault = os.environ.get('FAULT', '::').split(':')
        self.calls = 0

    def forward(self, inputs, mode='tensor'):
        kind, rank, call = self.fault
        self.calls += 1
        if self.calls == 2 and 'PLANT' in os.environ:
            plant()
        if rank == os.environ['RANK'] and call == str(self.calls):
            if kind == 'kill':
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError('a broken sample')
        return dict(loss=self.layers(inputs).float().square().mean())
"""

CONFIG = """
_base_ = ['{configs}/default_runtime_fp16.py',
          '{configs}/schedules/schedule_20k_fp16.py']
custom_imports = dict(imports=['ranks_module'])
model = dict(type='RanksModel')
train_dataloader = dict(
    batch_size=4, num_workers=0, collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='RanksData'))
train_cfg = dict(max_iters=12, val_interval=10**6)
val_cfg = None
test_cfg = None
param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0)]
optim_wrapper = dict(
    loss_scale=64., optimizer=dict(lr=1e-3), clip_grad=None)
default_hooks = dict(checkpoint=dict(interval=5), logger=dict(interval=1))
randomness = dict(seed=3, diff_rank_seed=True)
"""


@pytest.fixture
def folder(tmp_path):
    # A rank that is late may see the end of the others, not the refusal.
    skip_without_half()
    (tmp_path / 'ranks_module.py').write_text(MODULE)
    configs = ROOT / 'configs/_base_'
    (tmp_path / 'config.py').write_text(CONFIG.format(configs=configs))
    return tmp_path


def environment(folder: Path, **extra: object) -> dict[str, str]:
    return {
        **os.environ,
        'PYTHON': sys.executable,
        'PYTHONPATH': f'{folder}:{ROOT}',
        'OMP_NUM_THREADS': '1',
        **{key: str(value) for key, value in extra.items()},
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def train(
    folder: Path,
    work_dir: str,
    *options: str,
    fault: str = '::',
    command: Sequence[str] = (),
    **variables: str,
):
    """Two ranks by dist_train.sh; the exit code and what was printed."""
    script = [str(ROOT / 'tools/dist_train.sh'), 'config.py', '2']
    done = subprocess.run(
        command or [*script, '--work-dir', work_dir, *options],
        cwd=folder,
        env=environment(folder, PORT=free_port(), FAULT=fault, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stdout


def final(folder: Path, work_dir: str) -> dict:
    return load_checkpoint(folder / work_dir / 'iter_12.pth')


def stacks(folder: Path, work_dir: str) -> list[str]:
    """What the ranks of the newest run have written, by rank."""
    newest = max((folder / work_dir).glob('*/stability'))
    return [path.read_text() for path in sorted(newest.glob('stacks.rank*'))]


def assert_same_run(resumed: dict, unbroken: dict) -> None:
    for key in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_same(resumed[key], unbroken[key], key)
    # Both ranks have the random numbers that they would have had.
    ours, theirs = (
        one['mmstable']['SafeCheckpointHook']['rng']
        for one in (resumed, unbroken)
    )
    assert sorted(ours) == [0, 1]
    assert_same(ours, theirs)


def assert_refused(folder: Path, output: str) -> None:
    # Values in the store that no rank has written count as missing.
    for key in ('request/0', 'failure', 'state/0', 'result/1'):
        line = f"under '{key}' was not written by a rank of this run"
        assert line in output, key
    assert "got 'SIGNONE'" in output
    assert 'planted' not in output
    assert not (folder / 'marker').exists()
    assert 'rank 1' in output
    assert 'failed after iteration' in output


def test_forged_values_under_torchrun(folder):
    command = [sys.executable, '-m', 'torch.distributed.run']
    command += ['--nproc_per_node=2', f'--master_port={free_port()}']
    command += [str(ROOT / 'tools/train.py'), 'config.py']
    command += ['--launcher', 'pytorch', '--work-dir', 'forged']
    code, output = train(
        folder, 'forged', command=command, fault='raise:1:4', PLANT='yes'
    )
    assert code != 0
    assert_refused(folder, output)
    saved = folder / 'forged/emergency_iter_3.pth'
    assert load_checkpoint(saved)['meta']['iter'] == 3


@pytest.mark.soak
def test_a_kill_and_an_exception_under_a_supervisor(folder):
    code, output = train(folder, 'unbroken')
    assert code == 0, output[-3000:]
    assert 'gloo' not in output

    code, output = train(folder, 'lost', fault='kill:1:8')
    assert code != 0
    assert 'rank 1 failed: no heartbeat' in output
    assert 'This rank stops' in output
    # Only the random numbers of the killed rank are lost.
    assert 'the random state of rank 1 is lost' in output
    for path in folder.glob('lost/emergency_iter_7.pth*'):
        path.unlink()

    resume = ('--resume', 'auto')
    code, output = train(
        folder, 'lost', *resume, fault='raise:1:4', PLANT='yes'
    )
    assert code != 0
    assert_refused(folder, output)
    # Looked for, and said, by one rank only.
    assert output.count(f"resuming from '{folder}/lost/iter_5.pth'") == 1
    assert 'failed after iteration 8: ValueError: a broken sample' in output
    assert 'Resume with: mmstable dist-train config.py 2 ' in output
    saved = folder / 'lost/emergency_iter_8.pth'
    assert f'--resume-from {saved}' in output
    # What each rank was doing: one failed, the other waited for it.
    waited, failed = stacks(folder, 'lost')
    assert 'ranks_module.py' in failed
    assert 'rank 1' in waited
    assert 'in backward' in waited

    code, output = train(folder, 'lost', *resume)
    assert code == 0, output[-3000:]
    assert output.count(f"resuming from '{saved}'") == 1
    assert_same_run(final(folder, 'lost'), final(folder, 'unbroken'))


VARIABLES = {
    'slurm': dict(
        SLURM_PROCID='{rank}',
        SLURM_NTASKS='{count}',
        SLURM_LOCALID='{rank}',
        SLURM_NODELIST='node7',
    ),
    'mpi': dict(
        OMPI_COMM_WORLD_RANK='{rank}',
        OMPI_COMM_WORLD_SIZE='{count}',
        OMPI_COMM_WORLD_LOCAL_RANK='{rank}',
        OMPI_COMM_WORLD_LOCAL_SIZE='{count}',
    ),
}


def start_all(folder: Path, launcher: str, count: int, fault: str):
    """What the launcher would start, without any to watch over them."""
    port = free_port()
    command = [sys.executable, str(ROOT / 'tools/train.py'), 'config.py']
    command += ['--launcher', launcher, '--work-dir', launcher]
    for rank in range(count):
        variables = {
            key: value.format(rank=rank, count=count)
            for key, value in VARIABLES[launcher].items()
        }
        yield subprocess.Popen(
            command,
            cwd=folder,
            env=environment(
                folder, MASTER_PORT=port, FAULT=fault, **variables
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.soak
@pytest.mark.parametrize('launcher', ['slurm', 'mpi'])
def test_a_kill_without_anybody_to_notice(folder, launcher):
    # Of Slurm's ranks the first is killed, which keeps the store.
    victim, count = (0, 2) if launcher == 'slurm' else (1, 3)
    ranks = list(start_all(folder, launcher, count, f'kill:{victim}:8'))
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[victim].returncode == -signal.SIGKILL, outputs[victim]
    for rank in set(range(count)) - {victim}:
        assert ranks[rank].returncode == 21, outputs[rank][-3000:]
        assert f'rank {victim} failed: ' in outputs[rank]
    assert (folder / launcher / 'iter_5.pth').is_file()
