"""The command that resumes a run, as it is printed."""

from __future__ import annotations

import pytest

from mmstable.cli.start import launch_command, program_of, resume_command


@pytest.mark.parametrize(
    ('argv', 'expected'),
    [
        (['c.py'], 'python t.py c.py --work-dir w'),
        (['c.py', '--resume'], 'python t.py c.py --work-dir w'),
        (['c.py', '--resume', 'auto', '--amp'], 'python t.py c.py --amp'),
        (['--resume-from=x', 'c.py'], 'python t.py c.py'),
        (['c.py', '--load-from', 'x', '--seed', '1'], 'c.py --seed 1'),
        (['c.py', '--work-dir', 'a b'], "python t.py c.py --work-dir 'a b'"),
    ],
)
def test_it_says_nothing_of_where_to_start(argv, expected):
    assert expected in resume_command(['python', 't.py'], argv, 'w')


@pytest.mark.parametrize(
    ('launcher', 'env', 'program', 'expected'),
    [
        ('none', {}, ['python', 't.py'], 'python t.py'),
        (
            'pytorch',
            dict(LOCAL_WORLD_SIZE='8', MASTER_PORT='29501'),
            ['python', 't.py'],
            'torchrun --nproc_per_node=8 --master_port=29501 t.py',
        ),
        (
            'pytorch',
            dict(
                LOCAL_WORLD_SIZE='8',
                GROUP_WORLD_SIZE='2',
                GROUP_RANK='1',
                MASTER_ADDR='node1',
            ),
            ['mmstable', 'train'],
            'torchrun --nnodes=2 --node_rank=1 --master_addr=node1 '
            '--nproc_per_node=8 --master_port=29500 --no-python mmstable '
            'train',
        ),
        (
            'pytorch',
            dict(WORLD_SIZE='2'),
            ['python', '-m', 'mmstable', 'train'],
            'torchrun --nproc_per_node=2 --master_port=29500 -m mmstable '
            'train',
        ),
        (
            'slurm',
            dict(SLURM_NTASKS='16', SLURM_NNODES='2'),
            ['python', 't.py'],
            'srun --ntasks=16 --nodes=2 --kill-on-bad-exit=1 python t.py',
        ),
        (
            'mpi',
            dict(OMPI_COMM_WORLD_SIZE='4'),
            ['python', 't.py'],
            'mpirun -np 4 python t.py',
        ),
    ],
)
def test_the_command_starts_all_ranks_again(launcher, env, program, expected):
    assert ' '.join(launch_command(launcher, env, program)) == expected


@pytest.mark.parametrize(
    ('path', 'expected'),
    [
        ('/usr/bin/mmstable', 'mmstable train'),
        ('tools/train.py', 'python tools/train.py'),
        ('/lib/mmstable/__main__.py', 'python -m mmstable train'),
        ('/lib/mine/__main__.py', 'python /lib/mine/__main__.py'),
    ],
)
def test_it_starts_the_same_program(path: str, expected: str) -> None:
    assert ' '.join(program_of(path)) == expected
