"""How the command line is refused, in one line, and its help shown."""

from __future__ import annotations

import argparse
import re
from typing import Any, Callable, NoReturn

from mmstable.cli.suggest import did_you_mean
from mmstable.errors import UsageError
from mmstable.messages import say

# The presets of configs/_base_/stability and configs/_base_/memory.
STABILITY = ('default', 'safe', 'ultra_safe', 'observe_only')
MEMORY = ('balanced', 'max_saving', 'conservative')
# What argparse says in English only, in whatever version of Python.
_ARGUMENT = re.compile(r'argument (.+?): (.*)', re.S)
_SENTENCES: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (
        'the following arguments are required: (.+)',
        lambda found: say('usage.required', names=found[1]),
    ),
    ('expected one argument', lambda found: say('usage.one_expected')),
    (
        'expected at least one argument',
        lambda found: say('usage.some_expected'),
    ),
    (
        'not allowed with argument (.+)',
        lambda found: say('usage.not_with', other=found[1]),
    ),
    (
        r'invalid choice: (.+) \(choose from (.+)\)',
        lambda found: say('usage.choice', word=found[1], known=found[2]),
    ),
    (
        'invalid (.+?) value: (.+)',
        lambda found: say('usage.invalid', kind=found[1], text=found[2]),
    ),
    (
        'ignored explicit argument (.+)',
        lambda found: say('usage.no_value', text=found[1]),
    ),
]


class Parser(argparse.ArgumentParser):
    """Prints what is wrong, without the whole usage.

    Args:
        kwargs (Any): As for ``argparse.ArgumentParser``.
    """

    def __init__(self, **kwargs: Any) -> None:
        # An abbreviation that works today breaks when an option is added.
        fixed = dict(allow_abbrev=False, add_help=False)
        super().__init__(**{**fixed, 'formatter_class': _Help, **kwargs})
        self._positionals.title = say('help.positionals')
        self._optionals.title = say('help.options')
        self.add_argument('-h', '--help', action='help', help=say('help.help'))
        self._is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, also if options stand between positional arguments."""
        sizes = [one.nargs for one in self._get_positional_actions()]
        if self._is_mixing or not {'?', '*'} & set(sizes[1:]):
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        # Its own would lack what is behind the first word in Chinese.
        prefix = say('help.usage')
        self.usage = self.format_usage()[len(prefix) :].replace('%', '%%')
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing, self.usage = False, None

    def parse_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse, and refuse what is not known."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return found

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Say that words are not known, and what they may have meant."""
        hint = did_you_mean(unknown[0].partition('=')[0], self.options())
        self.error(say('cli.unrecognized', words=unknown, hint=hint))

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        error = say('cli.see_help', error=_translate(message))
        text = say('cli.error', error=error)
        self.exit(UsageError.exit_code, f'{self.prog}: {text}\n')

    def options(self) -> list[str]:
        """The options that it knows."""
        return list(self._option_string_actions)

    def actions(self) -> list[argparse.Action]:
        """All arguments that a user is told about."""
        return [
            one
            for one in self._actions
            if one.help != argparse.SUPPRESS
            and (one.option_strings or one.choices)
        ]


class _Help(argparse.HelpFormatter):
    def add_usage(
        self, usage: Any, actions: Any, groups: Any, prefix: Any = None
    ) -> None:
        if prefix is None:
            prefix = say('help.usage')
        super().add_usage(usage, actions, groups, prefix)


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is a number from so much on."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                say('usage.from', least=least, text=text)
            )
        return int(text)

    return read


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    """Let a command change values of the config that it reads."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        metavar='KEY=VALUE',
        help=say('help.cfg_options'),
    )


def add_protection_options(parser: argparse.ArgumentParser) -> None:
    """Let a command choose how a config is protected."""
    parser.add_argument('--preset', choices=STABILITY, help=say('help.preset'))
    parser.add_argument('--memory', choices=MEMORY, help=say('help.memory'))


def _translate(text: str) -> str:
    found = _ARGUMENT.fullmatch(text)
    if found is not None:
        error = _translate(found[2])
        return say('usage.argument', name=found[1], error=error)
    for pattern, translate in _SENTENCES:
        found = re.fullmatch(pattern, text, re.S)
        if found is not None:
            return translate(found)
    return text
