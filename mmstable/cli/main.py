"""The command ``mmstable``: run a sub-command, and report what went wrong."""

from __future__ import annotations

import argparse
import gc
import io
import os
import select
import sys
from importlib import import_module
from types import TracebackType

from mmstable import IS_COMMAND, register_all
from mmstable.cli.command import (
    COMMON,
    Command,
    Parser,
    begin,
    check_config_path,
    option,
    say_error,
    usage_error,
)
from mmstable.dist.launch import rank_of
from mmstable.errors import MMStableError, exit_code_for
from mmstable.messages import LANGUAGES, N_, _, prefer_language
from mmstable.settings import nearest
from mmstable.version import __version__

# What a shell reports for a program that Ctrl-C has ended.
_EXIT_INTERRUPTED = 130
# The same of one whose output is not read any more.
_EXIT_UNREAD = 141
# The commands, and what they do, in one line. Their modules are in this
# folder, except for that of `completion`, which is this one.
COMMANDS = {
    'check': N_('find likely problems of a config, with file, line and fix'),
    'check-data': N_('check the data of a config before training with it'),
    'completion': N_(
        'print a script that completes commands and options in a shell'
    ),
    'dist-train': N_('train on several processes, by torchrun'),
    'doctor': N_('test this machine: versions, GPUs, memory, disk, DDP, Xids'),
    'estimate': N_(
        'estimate the memory that a config takes, and which batch fits'
    ),
    'inspect': N_(
        'show the contents of a checkpoint, or how two of them differ'
    ),
    'notify': N_('send a test message to the addresses of MMSTABLE_NOTIFY'),
    'probe': N_('inspect and change one of your runs while it trains'),
    'profile': N_('measure where the time of an iteration goes'),
    'protect': N_(
        'write a protected version of a config, for any train script'
    ),
    'replay': N_('repeat the bad step of a fault, and show where it began'),
    'report': N_('show what happened to a run: one HTML file, and a summary'),
    'train': N_('train a model from a config of any OpenMMLab package'),
    'upgrade': N_('translate a config of mmcv 1.x to mmengine'),
}


def find_command(name: str) -> Command:
    """Import the module of a command."""
    if name == 'completion':
        return COMPLETION
    return import_module(f'mmstable.cli.{name.replace("-", "_")}').COMMAND


def build_parser(name: str, parser: Parser | None = None) -> Parser:
    """Build the parser of a command.

    Args:
        name (str): The command.
        parser (Parser, optional): An empty one to fill. Defaults to None.
    """
    command = find_command(name)
    parser = parser or Parser(prog=f'mmstable {name}')
    text = command.description or COMMANDS[name]
    parser.description = _(text, **command.codes)
    parser.add((*command.options, *COMMON))
    return parser


def build_parsers(
    has_options: bool = True,
) -> tuple[Parser, dict[str, Parser]]:
    """Build the parser of ``mmstable`` itself, and those of its commands.

    Args:
        has_options (bool): Whether those of the commands get their options.
            Defaults to True.
    """
    parser = Parser(
        prog='mmstable', description=_('Keep OpenMMLab training runs alive.')
    )
    text = N_("show program's version number and exit")
    parser.add_argument(
        '--version', action='version', version=__version__, help=text
    )
    group = parser.add_subparsers(dest='command', metavar='COMMAND')
    parsers = {
        name: group.add_parser(name, help=text)
        for name, text in COMMANDS.items()
    }
    for name in parsers if has_options else ():
        build_parser(name, parsers[name])
    return parser, parsers


def main(argv: list[str] | None = None) -> int:
    """Run a sub-command, and return its exit code.

    Args:
        argv (list[str], optional): The arguments; those of the process if
            None. Defaults to None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # A terminal that lacks a character is no reason to fail. Something else
    # may stand in for it, as in a notebook.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        _listen_for_language(words)
        args = _parse(words or ['--help'])
    except SystemExit as stop:
        return _code_of(stop)
    return exit_code_for(_run(args.command, args))


def _listen_for_language(words: list[str]) -> None:
    """Choose the language before the command line is understood."""
    asked = [b for a, b in zip(words, words[1:]) if a == '--lang']
    asked += [w.partition('=')[2] for w in words if w.startswith('--lang=')]
    known = [lang for lang in asked if lang in LANGUAGES]
    try:
        prefer_language(known[-1] if known else None)
    except MMStableError:
        # Reported as soon as a command is run; `--help` works without.
        return


def _parse(words: list[str]) -> argparse.Namespace:
    # `mmstable --lang zh_cn train ...`, as people type it.
    ahead = 2 if words[0] == '--lang' else words[0].startswith('--lang=')
    if ahead < len(words):
        words = [words[ahead], *words[:ahead], *words[ahead + 1 :]]
    name = words[0]
    if name not in COMMANDS:
        parser, __ = build_parsers(has_options=False)
        if not name.startswith('-'):
            text = N_("unknown command '{name}'")
            near = nearest(name, COMMANDS)
            if near:
                text = N_("unknown command '{name}' (did you mean '{near}'?)")
            parser.error(_(text, name=name, near=near))
        parser.parse_args(words)
        parser.error(_('a command is missing'))
    args = build_parser(name).parse_args(words[1:])
    args.command, args.words = name, words[1:]
    return args


def _run(name: str, args: argparse.Namespace) -> int:
    command = find_command(name)
    rank = rank_of(getattr(args, 'launcher', 'none'))
    if getattr(args, 'local_rank', None) is not None:
        # mmengine and its launchers read the variable, not the option.
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    try:
        prefer_language(args.lang)
        begin(name, args.quiet or rank != 0)
        if command.prepare is not None:
            command.prepare()
        if command.reads_config:
            # Before the seconds that the next line takes.
            if args.config is not None:
                check_config_path(args.config)
            _register()
            _import_from_working_folder()
        return command.run(args)
    except SystemExit as stop:
        return _code_of(stop)
    except MMStableError as error:
        say_error(_('error: {error}', error=error))
        _print_notes(error)
        return error.exit_code
    except KeyboardInterrupt:
        if rank == 0:
            say_error(_('interrupted'))
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        if not _is_output_unread():
            raise
        return _EXIT_UNREAD
    except Exception:
        if sys.version_info < (3, 11):
            # Later ones print the notes of an error by themselves.
            sys.excepthook = _print_with_notes
        raise


def _code_of(stop: SystemExit) -> int:
    """The exit code of argparse, or of the user's ``sys.exit``."""
    if isinstance(stop.code, (int, type(None))):
        return stop.code or 0
    # As Python does with a text.
    print(stop.code, file=sys.stderr, flush=True)
    return 1


def _is_output_unread() -> bool:
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


def _register() -> None:
    """Import torch, mmengine and mmstable's classes.

    They stay as long as the process. Collections that look for garbage among
    them take a fifth of the time that a start takes, and find none.
    """
    if not IS_COMMAND:
        # A program that calls `main` may have garbage of its own.
        register_all()
        return
    gc.disable()
    register_all()
    gc.freeze()
    gc.enable()


def _import_from_working_folder() -> None:
    """Let ``custom_imports`` find modules where the user is.

    Not if Python was told to keep that folder out (``PYTHONSAFEPATH``).
    """
    if '' not in sys.path and not getattr(sys.flags, 'safe_path', False):
        sys.path.insert(0, '')


def _completion(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise usage_error(
            'the package `shtab` cannot be imported ({error}). Install '
            'it with: pip install mmstable[completion]',
            error=error,
        ) from error
    parser, parsers = build_parsers()
    for one in parsers.values():
        for action in one._actions:
            if action.choices is None and action.nargs != 0:
                # shtab completes no values unless it is told what they are.
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


COMPLETION = Command(
    _completion,
    (option('shell', 'your shell', choices=['bash', 'zsh', 'fish']),),
    'Print the script. For bash: eval "$(mmstable completion bash)"; for '
    'zsh: eval "$(mmstable completion zsh)"; for fish: mmstable '
    'completion fish > ~/.config/fish/completions/mmstable.fish',
    reads_config=False,
)
