"""Which process of a distributed run is this one?"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from mmstable.errors import UsageError
from mmstable.messages import _

_PORT = '29500'
# What each launcher calls rank, number of ranks and rank within the machine.
_VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID'),
    'mpi': (
        'OMPI_COMM_WORLD_RANK',
        'OMPI_COMM_WORLD_SIZE',
        'OMPI_COMM_WORLD_LOCAL_RANK',
    ),
}
_STARTERS = {
    'pytorch': 'torchrun (mmstable dist-train, tools/dist_train.sh)',
    'slurm': 'srun (tools/slurm_train.sh)',
    'mpi': 'mpirun (Open MPI)',
}


def set_rank_variables(launcher: str) -> None:
    """Give torch and mmengine the variables that torchrun would give them.

    Args:
        launcher (str): 'pytorch', 'slurm' or 'mpi'.
    """
    names = _VARIABLES[launcher]
    missing = [name for name in names if name not in os.environ]
    if missing:
        starter = _STARTERS[launcher]
        raise UsageError(
            _(
                '--launcher {launcher}: {missing} is not set; start this by '
                '{starter}.',
                launcher=launcher,
                missing=missing,
                starter=starter,
            )
        )
    for name, source in zip(_VARIABLES['pytorch'], names):
        os.environ[name] = os.environ[source]
    os.environ.setdefault('MASTER_PORT', _PORT)
    if 'MASTER_ADDR' not in os.environ:
        os.environ['MASTER_ADDR'] = _first_node(launcher, os.environ)


def rank_of(launcher: str) -> int:
    """The rank of this process, also before the ranks are joined."""
    if launcher == 'none':
        return 0
    return int(os.environ.get(_VARIABLES[launcher][0], '0'))


def ranks_of(launcher: str) -> int:
    """How many ranks there are, also before they are joined."""
    if launcher == 'none':
        return 1
    return int(os.environ.get(_VARIABLES[launcher][1], '1'))


def _first_node(launcher: str, env: Mapping[str, str]) -> str:
    """The machine of rank 0, where all ranks meet."""
    if launcher == 'slurm':
        nodes = env.get('SLURM_NODELIST') or env.get('SLURM_JOB_NODELIST', '')
        is_many = set(nodes) & set('[,') and env.get('SLURM_NNODES') != '1'
        if not is_many:
            return '127.0.0.1'
        return _ask_slurm(nodes)
    if launcher == 'mpi':
        local = env.get('OMPI_COMM_WORLD_LOCAL_SIZE')
        if local == env['OMPI_COMM_WORLD_SIZE']:
            return '127.0.0.1'
        raise UsageError(
            _(
                '--launcher mpi: set MASTER_ADDR to the machine of rank 0, '
                'as in `mpirun -x MASTER_ADDR=node1 ...`: Open MPI does not '
                'tell it.'
            )
        )
    return '127.0.0.1'


def _ask_slurm(nodes: str) -> str:
    # A list of its own form, as 'node[3-5,8]': only Slurm can read it.
    try:
        answer = subprocess.run(
            ['scontrol', 'show', 'hostnames', nodes],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return answer.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        text = _(
            '--launcher slurm: `scontrol show hostnames` does not tell the '
            "first of '{nodes}' ({error}); set MASTER_ADDR to it.",
            nodes=nodes,
            error=error,
        )
        raise UsageError(text) from error
