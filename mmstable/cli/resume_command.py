"""The command that resumes a run: the one that started it, nearly."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from mmstable.messages.shell_command import shell_command

# Options for one start; some may have no value.
_STARTS = (
    '--resume',
    '--resume-from',
    '--load-from',
    '--before-iter',
    '--allow-partial',
)
_FLAGS = ('--force',)


def resume_command(
    program: Sequence[str], argv: Sequence[str], work_dir: str
) -> str:
    """A command line without what it says about where to start.

    Args:
        program (Sequence[str]): What was called, e.g.
            ``['python', 'tools/train.py']``.
        argv (Sequence[str]): Its arguments.
        work_dir (str): Where the run is.
    """
    kept = without_start(argv)
    if not any(word.startswith('--work-dir') for word in kept):
        kept += ['--work-dir', work_dir]
    return shell_command([*program, *kept])


def without_start(argv: Sequence[str]) -> list[str]:
    """Arguments without what they say about where to start."""
    return without_option([w for w in argv if w not in _FLAGS], *_STARTS)


def without_option(argv: Sequence[str], *options: str) -> list[str]:
    """Arguments without some options and their values."""
    kept: list[str] = []
    skipping = False
    for word in argv:
        if skipping and not word.startswith('-'):
            skipping = False
            continue
        skipping = word in options
        if not skipping and word.partition('=')[0] not in options:
            kept.append(word)
    return kept


def program_of(path: str) -> list[str]:
    """How to call the program that trains.

    Args:
        path (str): Its ``sys.argv[0]``.
    """
    if path.endswith(os.path.join('mmstable', '__main__.py')):
        return ['python', '-m', 'mmstable', 'train']
    if path.endswith('.py'):
        return ['python', path]
    return ['mmstable', 'train']


def own_program(program: Sequence[str], path: str) -> list[str]:
    """The same, to be started by this process.

    Args:
        program (Sequence[str]): What :func:`program_of` gave.
        path (str): The ``sys.argv[0]`` of this process.
    """
    first, *rest = program
    # Not those of the path, which may belong to another Python.
    if first == 'python':
        return [sys.executable, *rest]
    return [sys.executable, path, *rest]


def launch_command(
    launcher: str, env: Mapping[str, str], program: Sequence[str]
) -> list[str]:
    """A program, with what starts it on all ranks.

    Args:
        launcher (str): 'none', 'pytorch', 'slurm' or 'mpi'.
        env (Mapping): The variables that the launcher has set.
        program (Sequence[str]): The program.
    """
    if launcher == 'pytorch':
        return [*_torchrun(env), *_for_torchrun(program)]
    if launcher == 'slurm':
        tasks = env.get('SLURM_NTASKS', '1')
        nodes = env.get('SLURM_NNODES', '1')
        starter = ['srun', f'--ntasks={tasks}', f'--nodes={nodes}']
        return [*starter, '--kill-on-bad-exit=1', *program]
    if launcher == 'mpi':
        count = env.get('OMPI_COMM_WORLD_SIZE', '1')
        return ['mpirun', '-np', count, *program]
    return list(program)


def _torchrun(env: Mapping[str, str]) -> list[str]:
    command = ['torchrun']
    nodes = env.get('GROUP_WORLD_SIZE', '1')
    if nodes != '1':
        # On each machine with its own number.
        command += [
            f'--nnodes={nodes}',
            f'--node_rank={env.get("GROUP_RANK", "0")}',
            f'--master_addr={env.get("MASTER_ADDR", "127.0.0.1")}',
        ]
    per_node = env.get('LOCAL_WORLD_SIZE') or env.get('WORLD_SIZE', '1')
    port = env.get('MASTER_PORT', '29500')
    return [*command, f'--nproc_per_node={per_node}', f'--master_port={port}']


def _for_torchrun(program: Sequence[str]) -> list[str]:
    # It starts Python by itself.
    if program[0] == 'python':
        return list(program[1:])
    return ['--no-python', *program]
