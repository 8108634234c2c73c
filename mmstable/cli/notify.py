"""``mmstable notify``: show where messages go, and send a test."""

from __future__ import annotations

import argparse

import mmstable.cli.command as cli
from mmstable.errors import UsageError
from mmstable.messages import N_, _

# At least one service did not take the message.
EXIT_NOT_SENT = 13
_HOW = N_(
    'no addresses. Set {variable}, or write them to {file}, one in a line, '
    'and make that file private (chmod 600). Examples: dingtalk://TOKEN, '
    'feishu://TOKEN, wecombot://KEY, schan://KEY, '
    'mailto://USER:PASSWORD@HOST. All services: '
    'https://github.com/caronc/apprise'
)


def notify(args: argparse.Namespace) -> int:
    """Show the services, or send a test message; return the exit code."""
    from mmstable.notify.addresses import (
        VARIABLE,
        default_file,
        mask_address,
        read_addresses,
        why_not_possible,
    )

    addresses = read_addresses()
    if not addresses:
        raise cli.usage_error(_HOW, variable=VARIABLE, file=default_file())
    problem = why_not_possible()
    if problem:
        raise UsageError(problem)
    names = list(map(mask_address, addresses))
    if not args.test:
        cli.show(*names)
        return 0
    from mmstable.notify.notifier import deliver

    title = '[mmstable] ' + _('a test message')
    body = _('Messages about your training runs will arrive here.')
    with cli.working(_('sending a test message')):
        reasons = deliver(addresses, title, body)
    rows = [(n, r or _('delivered')) for n, r in zip(names, reasons)]
    cli.show(cli.table(rows))
    return EXIT_NOT_SENT if any(reasons) else 0


COMMAND = cli.Command(
    notify,
    (cli.flag('--test', 'send a test message to every service'),),
    'Show the services that messages about your runs go to, without their '
    'secrets. Exit codes: 0 all is well, 2 there are no addresses, {code} a '
    'test message was not delivered.',
    {'code': EXIT_NOT_SENT},
    reads_config=False,
)
