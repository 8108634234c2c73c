"""How the command line is refused, in one line, and its help shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Callable, NoReturn

from mmstable.cli.suggest import did_you_mean
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.messages.secrets import mask_words

# The presets of configs/_base_/stability and configs/_base_/memory.
STABILITY = ('default', 'safe', 'ultra_safe', 'observe_only')
MEMORY = ('balanced', 'max_saving', 'conservative')


class Parser(argparse.ArgumentParser):
    """Prints what is wrong, without the whole usage.

    Args:
        kwargs (Any): As for ``argparse.ArgumentParser``.
    """

    def __init__(self, **kwargs: Any) -> None:
        # An abbreviation that works today breaks when an option is added.
        fixed = dict(allow_abbrev=False, add_help=False)
        super().__init__(**{**fixed, 'formatter_class': _Help, **kwargs})
        self._positionals.title = _('positional arguments')
        self._optionals.title = _('options')
        self.add_argument(
            '-h',
            '--help',
            action='help',
            help=_('show this help message and exit'),
        )
        self._is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, also if options stand between positional arguments."""
        args = self._without_guesses(sys.argv[1:] if args is None else args)
        sizes = [one.nargs for one in self._get_positional_actions()]
        if self._is_mixing or not {'?', '*'} & set(sizes[1:]):
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        # Its own would lack what is behind the first word in Chinese.
        prefix = _('usage: ')
        self.usage = self.format_usage()[len(prefix) :].replace('%', '%%')
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing, self.usage = False, None

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
        """Parse, and refuse what is not known."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return found

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Say that words are not known, and what they may have meant."""
        hint = did_you_mean(unknown[0].partition('=')[0], self.options())
        self.error(
            _(
                'unrecognized arguments: {words: }.{hint}',
                words=mask_words(unknown),
                hint=hint,
            )
        )

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        error = _('{error} (see --help)', error=message)
        text = _('error: {error}', error=error)
        self.exit(UsageError.exit_code, f'{self.prog}: {text}\n')

    def options(self) -> list[str]:
        """The options that it knows."""
        return list(self._option_string_actions)


class _Help(argparse.HelpFormatter):
    def add_usage(
        self, usage: Any, actions: Any, groups: Any, prefix: Any = None
    ) -> None:
        if prefix is None:
            prefix = _('usage: ')
        super().add_usage(usage, actions, groups, prefix)


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is a number from so much on."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                _(
                    "a number from {least} on is expected, got '{text}'",
                    least=least,
                    text=text,
                )
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
        help=_(
            'change values of the config, e.g. '
            'optim_wrapper.clip_grad.max_norm=20'
        ),
    )


def add_protection_options(parser: argparse.ArgumentParser) -> None:
    """Let a command choose how a config is protected."""
    parser.add_argument(
        '--preset',
        choices=STABILITY,
        help=_(
            'how the config is protected: default (a healthy run stays what '
            'it is), safe and ultra_safe (clip harder, act earlier), '
            'observe_only (tell, and change nothing of the training)'
        ),
    )
    parser.add_argument(
        '--memory',
        choices=MEMORY,
        help=_(
            'take less memory: bf16 (not conservative), activations of the '
            'backbone computed again, smaller batches with accumulation'
        ),
    )
