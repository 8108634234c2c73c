"""The command ``mmstable``: run a sub-command, report what went wrong."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Sequence
from types import TracebackType

from mmstable.cli.command import MODULES, Command, find_commands, say_error
from mmstable.cli.parsers import build_parsers
from mmstable.cli.suggest import did_you_mean
from mmstable.cli.terminal import be_quiet
from mmstable.distributed.launchers import rank_of
from mmstable.errors import MMStableError
from mmstable.messages import LANGUAGES, _, prefer_language
from mmstable.registration import register_all

# What a shell reports for a program that Ctrl-C has ended.
_EXIT_INTERRUPTED = 130
# The same of one whose output nobody reads any more.
_EXIT_UNREAD = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command, and return its exit code.

    Args:
        argv (Sequence[str], optional): The arguments; those of the process
            if None. Defaults to None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _escape_what_cannot_be_shown()
    # The parser of one command is all that its command line needs.
    is_known = words[:1] and words[0] in MODULES
    commands = find_commands(words[:1] if is_known else MODULES)
    try:
        _listen_for_language(words)
        args = _parse(commands, words or ['--help'])
    except SystemExit as stop:
        return _code_of(stop)
    return _run(commands[args.command], args)


def _escape_what_cannot_be_shown() -> None:
    """Print also where the encoding lacks a character, as stderr does.

    What a terminal cannot show is no reason to fail.
    """
    # Something else may stand in for it, as in a notebook.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')


def _listen_for_language(words: list[str]) -> None:
    """Speak the right language before the command line is understood."""
    asked = [b for a, b in zip(words, words[1:]) if a == '--lang']
    asked += [w.partition('=')[2] for w in words if w.startswith('--lang=')]
    known = [lang for lang in asked if lang in LANGUAGES]
    try:
        prefer_language(known[-1] if known else None)
    except MMStableError:
        # Told as soon as a command is run; `--help` works without.
        return


def _parse(
    commands: dict[str, Command], words: list[str]
) -> argparse.Namespace:
    parser, parsers = build_parsers(commands)
    if not words[0].startswith('-') and words[0] not in commands:
        hint = did_you_mean(words[0], commands)
        parser.error(
            _(
                "no command '{name}', there is {commands}.{hint}",
                name=words[0],
                commands=list(commands),
                hint=hint,
            )
        )
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # By the parser of the command, which has the better `--help`.
        parsers.get(args.command, parser).refuse(unknown)
    if args.command is None:
        parser.error(_('a command is missing'))
    args.words = words[words.index(args.command) + 1 :]
    return args


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        prefer_language(args.lang)
        be_quiet(args.quiet)
        if command.prepare is not None:
            command.prepare()
        if command.reads_config:
            register_all()
            _import_from_working_folder()
        return command.run(args)
    except SystemExit as stop:
        return _code_of(stop)
    except MMStableError as error:
        say_error(command.name, _('error: {error}', error=error))
        _print_notes(error)
        return error.exit_code
    except KeyboardInterrupt:
        if rank_of(getattr(args, 'launcher', 'none')) == 0:
            say_error(command.name, _('interrupted'))
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return _EXIT_UNREAD
    except Exception:
        if sys.version_info < (3, 11):
            # Later ones print the notes of an error by themselves.
            sys.excepthook = _print_with_notes
        raise


def _code_of(stop: SystemExit) -> int:
    """What argparse ends with, or code of the user by ``sys.exit``."""
    if isinstance(stop.code, (int, type(None))):
        return stop.code or 0
    # As Python does with a text.
    print(stop.code, file=sys.stderr, flush=True)
    return 1


def _nobody_reads() -> bool:
    """Whether the output goes to a program that has ended, as ``head``."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(what & select.POLLERR for __, what in poll.poll(0)):
        return False
    # Python would try again at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _print_with_notes(
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    sys.__excepthook__(kind, error, trace)
    _print_notes(error)


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, '__notes__', []):
        print(note, file=sys.stderr, flush=True)


def _import_from_working_folder() -> None:
    """Let ``custom_imports`` find modules where the user is.

    Not if Python was told to keep that folder out (``PYTHONSAFEPATH``).
    """
    if '' not in sys.path and not getattr(sys.flags, 'safe_path', False):
        sys.path.insert(0, '')
