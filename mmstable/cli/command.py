"""What the commands share: rows of options, their parser, and printing.

A command is one module with a ``COMMAND``. Its top imports neither torch nor
mmengine, so that ``--help`` and a mistake on the command line are answered at
once; what takes long to import is imported by the function that runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, NoReturn

from mmstable.errors import CheckFailed, UsageError
from mmstable.finding import Finding, Severity
from mmstable.messages import LANGUAGES, N_, _, printable
from mmstable.messages.secrets import mask_words
from mmstable.settings import did_you_mean, nearest

if TYPE_CHECKING:
    from rich.table import Table

# Of findings: the worst of them. Hints alone are 0.
EXIT_WARNINGS = 8
EXIT_ERRORS = CheckFailed.exit_code
# The presets of configs/_base_/stability and configs/_base_/memory.
STABILITY = ('default', 'safe', 'ultra_safe', 'observe_only')
MEMORY = ('balanced', 'max_saving', 'conservative')


@dataclass(frozen=True)
class Option:
    """A row for ``ArgumentParser.add_argument``.

    Args:
        flags (str): Its names, as '-o --output'; one word without a dash
            for a positional argument.
        help (str): The message. It may have the fields ``{default}`` and
            ``{names}``, those of the choices.
        settings (Mapping): All other arguments of ``add_argument``; and
            ``env``, a variable with the default that it lacks one for.
    """

    flags: str
    help: str
    settings: Mapping[str, Any]


# Options of which at most one may be given are a tuple themselves.
Options = tuple['Option | tuple[Option, ...]', ...]


def option(flags: str, help: str, **settings: Any) -> Option:
    """A row for an option or a positional argument."""
    return Option(flags, help, settings)


def flag(flags: str, help: str) -> Option:
    """A row for an option without a value."""
    return Option(flags, help, {'action': 'store_true'})


def number(flags: str, least: int, help: str, **settings: Any) -> Option:
    """A row for an option whose value is an int of at least ``least``."""
    settings = {'metavar': 'N', **settings, 'type': whole_number(least)}
    return Option(flags, help, settings)


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is an int of at least ``least``."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            message = N_("a number from {least} on is expected, got '{text}'")
            raise argparse.ArgumentTypeError(
                _(message, least=least, text=text)
            )
        return int(text)

    return read


CONFIG = option('config', 'config file')
CFG_OPTIONS = option(
    '--cfg-options',
    'change values of the config, e.g. optim_wrapper.clip_grad.max_norm=20',
    nargs='+',
    action='extend',
    metavar='KEY=VALUE',
)
JSON_FILE = option(
    '--json', 'where to write all results as JSON', metavar='FILE'
)
PROTECTION = (
    option(
        '--preset',
        'how the config is protected: default (a healthy run stays what '
        'it is), safe and ultra_safe (clip harder, act earlier), '
        'observe_only (tell, and change nothing of the training)',
        choices=STABILITY,
    ),
    option(
        '--memory',
        'take less memory: bf16 (not conservative), activations of the '
        'backbone computed again, smaller batches with accumulation',
        choices=MEMORY,
    ),
)
LAUNCHER = (
    option(
        '--launcher',
        'what started the processes of a distributed run',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
    ),
    option('--local_rank --local-rank', argparse.SUPPRESS, type=int),
)
# Those of every command.
COMMON = (
    option(
        '--lang',
        'the language of all lines; that of the config or of '
        'MMSTABLE_LANG by default',
        choices=LANGUAGES,
    ),
    flag('--quiet', 'print results and errors only, no notes and no progress'),
)


class Command(NamedTuple):
    """A sub-command, as its module declares it.

    Args:
        run (Callable): Does it, and returns the exit code.
        options (Options): What it takes, besides :data:`COMMON`.
        description (str): What ``--help`` says above the options; '' for
            the one line of :data:`mmstable.cli.main.COMMANDS`.
            Defaults to ''.
        codes (Mapping): Exit codes that the description has as fields.
            Defaults to {}.
        reads_config (bool): Whether it reads a config, so that mmstable's
            classes are registered before ``run``. Defaults to True.
        prepare (Callable, optional): Called before anything that takes
            seconds. Defaults to None.
    """

    run: Callable[[argparse.Namespace], int]
    options: Options
    description: str = ''
    codes: Mapping[str, int] = {}
    reads_config: bool = True
    prepare: Callable[[], None] | None = None


class HelpFormatter(argparse.HelpFormatter):
    """Translates the help of an option when it is printed."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return _(
            action.help or '', default=action.default, names=action.choices
        )


class Parser(argparse.ArgumentParser):
    """Prints what is wrong in one line, without the usage.

    Args:
        kwargs (Any): As for ``argparse.ArgumentParser``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            # An abbreviation that works today breaks when an option is added.
            allow_abbrev=False,
            add_help=False,
            formatter_class=HelpFormatter,
            **kwargs,
        )
        self._positionals.title = _('positional arguments')
        self._optionals.title = _('options')
        text = N_('show this help message and exit')
        self.add_argument('-h', '--help', action='help', help=text)
        self._is_mixing = False

    def add(self, options: Options) -> None:
        """Add rows of options."""
        for one in options:
            group: Any = self
            if isinstance(one, tuple):
                group = self.add_mutually_exclusive_group()
            for row in one if isinstance(one, tuple) else (one,):
                settings = dict(row.settings)
                if 'env' in settings:
                    settings['default'] = os.environ.get(*settings.pop('env'))
                action = group.add_argument(
                    *row.flags.split(), help=row.help, **settings
                )
                if action.nargs == argparse.REMAINDER:
                    # Some versions of Python would name it as missing.
                    action.required = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, also if options stand between positional arguments."""
        args = self._without_guesses(sys.argv[1:] if args is None else args)
        sizes = [one.nargs for one in self._get_positional_actions()]
        if self._is_mixing or not {'?', '*'} & set(sizes[1:]):
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def _without_guesses(self, words: Sequence[str]) -> list[str]:
        """Keep an option whose value is optional from taking a path.

        ``--probe configs/a.py`` means ``--probe=socket configs/a.py``.
        """
        written = list(words)
        for place, following in enumerate(written[1:]):
            action = self._option_string_actions.get(written[place])
            if (
                action is not None
                and action.nargs == '?'
                and action.choices
                and '.' in following
            ):
                written[place] += f'={action.const}'
        return written

    def parse_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse, and refuse unknown words."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition('=')[0]
            text = N_('unrecognized arguments: {words: }.{hint}')
            hint = did_you_mean(name, self.options())
            self.error(_(text, words=mask_words(unknown), hint=hint))
        return found

    def options(self) -> list[str]:
        """The options that it knows."""
        return list(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        error = _('{error} (see --help)', error=message)
        text = _('error: {error}', error=error)
        self.exit(UsageError.exit_code, f'{self.prog}: {text}\n')


def usage_error(message: str, /, **fields: Any) -> UsageError:
    """A mistake of the user, in one line.

    Args:
        message (str): As for ``_``.
        **fields: What the message names.
    """
    return UsageError(_(message, **fields))


def near_files(path: str) -> str:
    """Like :func:`did_you_mean`, for a file that does not exist."""
    folder, name = os.path.split(path)
    with suppress(OSError):
        near = nearest(name, os.listdir(folder or '.'))
        return did_you_mean(path, (os.path.join(folder, n) for n in near))
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent or '.'):
        return ''
    paths = (os.path.join(parent, name) for name in os.listdir(parent or '.'))
    return did_you_mean(folder, filter(os.path.isdir, paths))


def check_config_path(path: str) -> None:
    """Refuse a path that is no config file."""
    if not os.path.isfile(path):
        text, hint = N_("no config file '{path}'.{hint}"), near_files(path)
        raise usage_error(text, path=path, hint=hint)
    if os.path.splitext(path)[1] not in ('.py', '.json', '.yaml', '.yml'):
        text = N_(
            "a config is a .py, .json, .yaml or .yml file, got '{path}'."
        )
        raise usage_error(text, path=path)


def write_json(path: str, content: Any) -> None:
    """Write a file for programs."""
    from mmstable.io.files import replace_text

    replace_text(Path(path), json.dumps(content, indent=1) + '\n')


def check_folder_of(path: str | None) -> None:
    """Refuse a file that is to be written into a missing folder."""
    folder = os.path.dirname(path or '')
    if not os.path.isdir(folder or '.'):
        text = N_("there is no folder '{folder}' to write to.")
        raise usage_error(text, folder=folder)


LONGEST_LINE = 4000
_STYLES = {
    Severity.ERROR: 'red',
    Severity.WARNING: 'yellow',
    Severity.HINT: 'cyan',
}
_INDENT = ' ' * 4
_name, _quiet = '', False


def begin(name: str, quiet: bool) -> None:
    """Say which command prints, and whether only results and errors.

    Args:
        name (str): The command.
        quiet (bool): Whether it was asked to be quiet, or is not the first
            rank, which speaks for all.
    """
    global _name, _quiet  # noqa: PLW0603
    _name, _quiet = name, quiet


def say(text: str) -> None:
    """Print a line for the user of a command to stderr, unless quiet."""
    if not _quiet:
        print(_line(text), file=sys.stderr, flush=True)


def tell(message: str, /, **fields: Any) -> None:
    """Translate a message as ``_`` does, and :func:`say` it."""
    say(_(message, **fields))


def say_error(text: str) -> None:
    """Print an error to stderr, quiet or not."""
    from rich.text import Text

    show(Text(_line(text), 'red'), stderr=True)


def _line(text: str) -> str:
    # It may quote names and texts out of files that others have made.
    return f'mmstable {_name}: {printable(text, LONGEST_LINE)}'


def show(*items: Any, stderr: bool = False) -> None:
    """Print results: lines, and what :mod:`rich` draws.

    Args:
        items (Any): Lines, or things of rich.
        stderr (bool): Whether to print to stderr. Defaults to False.
    """
    from rich.console import Console
    from rich.text import Text

    stream = sys.stderr if stderr else sys.stdout
    # Elsewhere nothing is cut or wrapped.
    width = None if stream.isatty() else LONGEST_LINE
    console = Console(file=stream, soft_wrap=True, width=width)
    # A pipe that is closed would be rich's own end of the program.
    with console.capture() as shown:
        for one in items:
            # Lines may quote text that others wrote.
            is_text = isinstance(one, str)
            line = Text(printable(one, LONGEST_LINE)) if is_text else one
            console.print(line)
    stream.writelines(shown.get().splitlines(keepends=True))
    stream.flush()


def table(
    rows: Iterable[Sequence[str] | None],
    header: Sequence[str] = (),
    title: str = '',
    right: int | None = None,
) -> Table:
    """A table for :func:`show`, without lines if that is no terminal.

    Args:
        rows (Iterable): Cells of each row; None for a line between rows.
        header (Sequence[str]): Names of the columns; those that are missing
            have none. Defaults to ().
        title (str): What stands above it. Defaults to ''.
        right (int, optional): The first of the columns that are aligned to
            the right. Defaults to None.
    """
    from rich.box import HEAVY_HEAD
    from rich.table import Table
    from rich.text import Text

    def cells(row: Sequence[str]) -> list[Text]:
        # As text: brackets would be markup otherwise. Files may hold any
        # text: none of it reaches a terminal as it is.
        return [Text(printable(cell, LONGEST_LINE)) for cell in row]

    drawn = Table(
        title=Text(printable(title)) if title else None,
        show_header=bool(header),
        box=HEAVY_HEAD if sys.stdout.isatty() else None,
        pad_edge=False,
    )
    for index, name in enumerate(cells(header)):
        is_right = right is not None and index >= right
        drawn.add_column(name, justify='right' if is_right else 'left')
    for row in rows:
        if row is None:
            drawn.add_section()
        else:
            drawn.add_row(*cells(row))
    return drawn


def finding_lines(
    one: Finding, head: str | None = None, why: str = N_('why: {text}')
) -> Iterator[Any]:
    """A finding as lines for :func:`show`.

    Args:
        one (Finding): The finding.
        head (str, optional): What follows the severity, before the source;
            its id, path and source by default. Defaults to None.
        why (str): The message for ``one.why``. Defaults to 'why: {text}'.
    """
    from rich.text import Text

    lines = [one.source] if one.source else []
    if head is None:
        source = f' ({one.source})' if one.source else ''
        head, lines = f'{one.id}  {one.path}{source}', [one.what]
    style, head = _STYLES[one.severity], printable(head, 1000)
    yield Text.assemble((one.severity.label, style), f'  {head}')
    if one.why:
        lines.append(_(why, text=one.why))
    if one.fix:
        lines.append(_('fix: {text}', text=one.fix))
    for line in lines:
        yield _INDENT + printable(line, 1000)


def count_findings(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity."""
    counts = Counter(f'{one.severity.value}s' for one in findings)
    text = N_(
        '{errors:error|errors}, {warnings:warning|warnings}, '
        '{hints:hint|hints}'
    )
    return _(text, **{'errors': 0, 'warnings': 0, 'hints': 0, **counts})


def exit_code(findings: Sequence[Finding]) -> int:
    """The exit code for findings: that of the worst."""
    severities = {one.severity for one in findings}
    if Severity.ERROR in severities:
        return EXIT_ERRORS
    return EXIT_WARNINGS if Severity.WARNING in severities else 0


_SECONDS_BETWEEN_LINES = 10.0
# Seconds without a sign of progress that are no problem.
_PATIENCE_S = 2.0


def show_progress(items: Iterator[Any], total: int) -> Iterator[Any]:
    """Give the same items, and show how many there were.

    A bar on a terminal, a line now and then elsewhere.

    Args:
        items (Iterator): The items.
        total (int): How many there will be.
    """
    if _quiet:
        return items
    if not sys.stderr.isatty():
        return _progress_lines(items, total)
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(items, 'samples', total, console=console))


def _progress_lines(items: Iterator[Any], total: int) -> Iterator[Any]:
    start = said = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said >= _SECONDS_BETWEEN_LINES and done < total:
            said = now
            left = (now - start) / done * (total - done)
            text = N_('{done} of {total} samples, about {left} left')
            shown = timedelta(seconds=round(left))
            line = _(text, done=done, total=total, left=shown)
            print(line, file=sys.stderr, flush=True)


@contextmanager
def working(text: str, is_said: bool = False) -> Iterator[None]:
    """Say what is being done, if it takes longer than two seconds.

    A terminal shows the seconds as they go by, and nothing in the end.

    Args:
        text (str): What is being done.
        is_said (bool): Whether a line has said so before, so that only a
            terminal gets a sign of life. Defaults to False.
    """
    if not _quiet and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn('{task.description}', markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            # What the user's code prints stays as it is.
            redirect_stdout=False,
            redirect_stderr=False,
        ) as shown:
            shown.add_task(printable(text), total=None)
            yield
        return
    late = threading.Timer(_PATIENCE_S, sys.stderr.write, [f'{text} ...\n'])
    late.daemon = True
    if not _quiet and not is_said:
        late.start()
    try:
        yield
    finally:
        late.cancel()
        if late.is_alive():
            late.join()
