"""``mmstable dist-train``: train on several processes and machines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.checkpoint.signals import wait_for_training
from mmstable.cli import train
from mmstable.messages import N_, _
from mmstable.messages.secrets import shell_command

if TYPE_CHECKING:
    from mmstable.cli.rank_supervisor import RankSupervisor

# What torch says where the processes cannot meet, among much else.
_PORT_TAKEN = 'address already in use'


def dist_train(args: argparse.Namespace) -> int:
    """Train on the processes of this machine; return the exit code.

    That is the code of the rank that failed first.
    """
    # Mistakes are reported before there are several processes to do so.
    parser = cli.Parser(prog='mmstable dist-train')
    parser.add((*train.COMMAND.options, *_LAUNCH, *cli.COMMON))
    own = parser.parse_args([args.config, *args.options])
    cli.check_config_path(args.config)
    # Options of the launcher may stand among those of the processes.
    launcher = cli.Parser()
    launcher.add(_LAUNCH)
    __, args.options = launcher.parse_known_args(args.options, args)
    own.words = [args.config, *args.options]
    nodes = args.nnodes[1]
    if not 0 <= args.node_rank < nodes:
        text = N_(
            '--node-rank {rank}: with {nodes} machines it is 0 to {last}.'
        )
        rank = args.node_rank
        raise cli.usage_error(text, rank=rank, nodes=nodes, last=nodes - 1)
    return _supervisor(args, own).run(own.max_restarts)


def _supervisor(
    args: argparse.Namespace, own: argparse.Namespace
) -> RankSupervisor:
    from sys import executable

    from mmstable.cli import start
    from mmstable.cli.rank_supervisor import RankSupervisor
    from mmstable.cli.supervise import OPTION

    # Where checkpoints are matters for restarts only.
    folders: Any = []
    words = start.without_option(own.words, OPTION)
    if own.max_restarts:
        cfg = train.read_quietly(own)
        folders = start.folders_of(cfg)
        words = start.with_work_dir(words, cfg.work_dir)
    lang = [] if args.lang is None else ['--lang', args.lang]
    quiet = ['--quiet'] if args.quiet else []
    try:
        return RankSupervisor(
            [executable, '-m', 'mmstable', 'train'],
            [words[0], '--launcher', 'pytorch', *lang, *quiet, *words[1:]],
            folders,
            args,
            {start.DIST_TRAIN: shell_command(_again(args, own))},
        )
    except RuntimeError as error:
        if _PORT_TAKEN not in str(error).lower():
            raise
        text = N_(
            'port {port} is taken, perhaps by another training on this '
            'machine: choose another one by --port.'
        )
        raise cli.usage_error(text, port=args.port) from error


def _again(args: argparse.Namespace, own: argparse.Namespace) -> list[str]:
    """Return the command of this machine, without options of the run."""
    words = ['mmstable', 'dist-train', args.config, str(args.processes)]
    fewest, most = args.nnodes
    if most > 1:
        nodes = str(most) if fewest == most else f'{fewest}:{most}'
        words += ['--nnodes', nodes, '--node-rank', str(args.node_rank)]
        words += ['--master-addr', args.master_addr]
    if args.port != _PORT:
        words += ['--port', str(args.port)]
    if own.max_restarts:
        words += ['--max-restarts', str(own.max_restarts)]
    return words


def _nodes(text: str) -> tuple[int, int]:
    """Parse a number of machines, or the fewest and the most of them."""
    fewest, __, most = text.partition(':')
    count = cli.whole_number(1)
    nodes = count(fewest), count(most or fewest)
    if nodes[0] > nodes[1]:
        message = N_("the fewest machines come first, as in 1:4, got '{text}'")
        raise argparse.ArgumentTypeError(_(message, text=text))
    return nodes


_PORT = 29500
# What the supervisor has to know; no options of ``mmstable train``.
_LAUNCH = (
    cli.option(
        '--nnodes',
        'number of machines, or MIN:MAX to go on with fewer of them after a '
        'failure; NNODES, or 1, by default',
        type=_nodes,
        env=('NNODES', '1'),
        metavar='N|MIN:MAX',
    ),
    cli.number(
        '--node-rank',
        0,
        'which of them this is, from 0 on; NODE_RANK, or 0, by default',
        env=('NODE_RANK', '0'),
        metavar='RANK',
    ),
    cli.option(
        '--master-addr',
        'the first machine; MASTER_ADDR, or 127.0.0.1, by default',
        env=('MASTER_ADDR', '127.0.0.1'),
        metavar='HOST',
    ),
    cli.number(
        '--port',
        1,
        'where all machines meet; PORT, or 29500, by default',
        env=('PORT', str(_PORT)),
        metavar=None,
    ),
)
COMMAND = cli.Command(
    dist_train,
    (
        cli.option('config', 'config file', metavar='CONFIG'),
        cli.number(
            'processes',
            1,
            'processes on this machine, one for each GPU as a rule',
            metavar='PROCESSES',
        ),
        cli.option(
            'options',
            'options of mmstable train, and those below',
            nargs=argparse.REMAINDER,
            metavar='...',
        ),
        *_LAUNCH,
    ),
    'Train on several processes of this machine, or of several machines: '
    'start it on each of them. --max-restarts starts all processes again '
    'after a failure. Options of mmstable train come after N.',
    reads_config=False,
    prepare=wait_for_training,
)
