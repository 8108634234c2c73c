"""What each launcher tells a process, and what it is told in the end."""

from __future__ import annotations

import os

import pytest
from mmengine.config import Config

from mmstable.dist import collectives
from mmstable.dist.collectives import _join_cpus, _wrap_for_cpu
from mmstable.dist.launch import rank_of, set_rank_variables
from mmstable.errors import UsageError

SLURM = dict(
    SLURM_PROCID='3',
    SLURM_NTASKS='4',
    SLURM_LOCALID='1',
    SLURM_NODELIST='node7',
)
MPI = dict(
    OMPI_COMM_WORLD_RANK='3',
    OMPI_COMM_WORLD_SIZE='4',
    OMPI_COMM_WORLD_LOCAL_RANK='1',
    OMPI_COMM_WORLD_LOCAL_SIZE='4',
)
OURS = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT')


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in (*OURS, *SLURM, *MPI, 'SLURM_NNODES', 'SLURM_JOB_NODELIST'):
        # Set first, so that whatever a test sets is undone as well.
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ('launcher', 'given'), [('slurm', SLURM), ('mpi', MPI)]
)
def test_all_launchers_end_up_with_the_variables_of_torchrun(
    monkeypatch, launcher, given
):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert rank_of(launcher) == 3
    set_rank_variables(launcher)
    found = [os.environ[name] for name in OURS]
    assert found == ['3', '4', '1', '127.0.0.1', '29500']
    # What the user says is kept.
    monkeypatch.setenv('MASTER_ADDR', 'node1')
    monkeypatch.setenv('MASTER_PORT', '1234')
    set_rank_variables(launcher)
    assert os.environ['MASTER_ADDR'] == 'node1'
    assert os.environ['MASTER_PORT'] == '1234'


@pytest.mark.parametrize(
    ('launcher', 'given', 'message'),
    [
        ('pytorch', {}, 'RANK, WORLD_SIZE, LOCAL_RANK is not set.*torchrun'),
        ('slurm', {}, 'SLURM_PROCID, .* is not set.*srun'),
        ('mpi', {}, 'OMPI_COMM_WORLD_RANK, .* is not set.*mpirun'),
        (
            'mpi',
            {**MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '2'},
            'set MASTER_ADDR to the machine of rank 0',
        ),
        (
            'slurm',
            {**SLURM, 'SLURM_NODELIST': 'node[7-8]', 'PATH': '/nowhere'},
            r"scontrol.*first of 'node\[7-8\]'.*set MASTER_ADDR",
        ),
    ],
)
def test_what_is_missing_is_named(monkeypatch, launcher, given, message):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        set_rank_variables(launcher)


def test_slurm_is_asked_for_its_first_machine(monkeypatch, tmp_path):
    script = tmp_path / 'scontrol'
    script.write_text(
        '#!/bin/sh\necho "asked $3" >&2\necho node7\necho node8\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=':')
    for name, value in {**SLURM, 'SLURM_NODELIST': 'node[7-8]'}.items():
        monkeypatch.setenv(name, value)
    set_rank_variables('slurm')
    assert os.environ['MASTER_ADDR'] == 'node7'


@pytest.mark.parametrize(
    ('settings', 'backend', 'note'),
    [
        (dict(), 'gloo', None),
        (dict(backend='nccl', port=1), 'gloo', 'gloo instead of nccl'),
        (dict(backend='mpi', timeout=60), 'mpi', None),
    ],
)
def test_the_backend_follows_the_device(monkeypatch, settings, backend, note):
    calls = []
    monkeypatch.setattr(
        collectives.torch.distributed,
        'init_process_group',
        lambda *args, **kwargs: calls.append((args, kwargs)),
    )
    said = _join_cpus(dict(settings))
    assert said is None if note is None else note in said
    ((args, kwargs),) = calls
    assert args == (backend,)
    assert ('timeout' in kwargs) is ('timeout' in settings)
    assert 'port' not in kwargs


def test_the_model_is_wrapped_for_cpus():
    cfg = Config(dict(find_unused_parameters=True))
    _wrap_for_cpu(cfg)
    wrapper = cfg.model_wrapper_cfg
    assert wrapper.type == 'MMDistributedDataParallel'
    assert wrapper.device_ids is None
    assert wrapper.find_unused_parameters
    cfg = Config(dict(model_wrapper_cfg=dict(type='Mine', a=1)))
    _wrap_for_cpu(cfg)
    assert cfg.model_wrapper_cfg == dict(type='Mine', a=1, device_ids=None)
    # It has a strategy for that.
    cfg = Config(dict(runner_type='FlexibleRunner'))
    _wrap_for_cpu(cfg)
    assert 'model_wrapper_cfg' not in cfg
