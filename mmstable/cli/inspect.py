"""``mmstable inspect``: say what is in a checkpoint."""

from __future__ import annotations

import argparse

import mmstable.cli.command as cli
from mmstable.messages import _


def inspect(args: argparse.Namespace) -> int:
    """Describe a checkpoint, or compare two, and return the exit code."""
    from mmstable.checkpoint.describe import (
        compare_states,
        describe_checkpoint,
        kind_of,
    )

    paths = [args.checkpoint, *([args.other] if args.other else [])]
    read = []
    for path in paths:
        with cli.working(_("reading '{path}'", path=path)):
            read.append(describe_checkpoint(path))
    first, last = read[0], read[-1]
    facts = [
        [name, *(one.facts.get(name, '-') for one in read)]
        for name in dict.fromkeys([*first.facts, *last.facts])
    ]
    cli.show(cli.table(facts, ['', *paths]))
    if args.other is None:
        title = [_('key'), _('shape and type')]
        rows = {name: kind_of(one) for name, one in first.weights.items()}
    else:
        rows = compare_states(first.weights, last.weights)
        common = set(first.weights) & set(last.weights)
        counts = _(
            '{equal} equal, {differing} different:',
            equal=len(common - set(rows)),
            differing=len(rows),
        )
        title = [counts, '']
    cli.show(cli.table(rows.items(), title))
    return 0


COMMAND = cli.Command(
    inspect,
    (
        cli.option('checkpoint', 'checkpoint file', metavar='CHECKPOINT'),
        cli.option(
            'other',
            'another one, to compare the first with',
            metavar='OTHER',
            nargs='?',
        ),
    ),
    'Say what is in a checkpoint, or in what two of them differ. Files '
    'are read as data: no code in them is run.',
    reads_config=False,
)
