"""Scripts that let a shell complete the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from mmstable.cli.command import Command
from mmstable.cli.parsers import build_parsers

_BASH = """\
_mmstable() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}"
    local prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    local words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands} --version --help" -- "$cur"))
        return
    fi
    case "${{COMP_WORDS[1]}} $prev" in
{choices}
    esac
    case "${{COMP_WORDS[1]}}" in
{options}
    esac
    case "$cur" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
        *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}}
complete -o filenames -F _mmstable mmstable
"""
_ZSH = 'autoload -U +X bashcompinit && bashcompinit\n'


def completion_script(shell: str, commands: Mapping[str, Command]) -> str:
    """The script for a shell.

    Args:
        shell (str): 'bash', 'zsh' or 'fish'.
        commands (Mapping): The commands by their names.
    """
    if shell == 'fish':
        return '\n'.join(_fish(commands)) + '\n'
    return (_ZSH if shell == 'zsh' else '') + _bash(commands)


def _bash(commands: Mapping[str, Command]) -> str:
    _, parsers = build_parsers(commands)
    options = [
        f'        {name}) words="{" ".join(parser.options())}" ;;'
        for name, parser in parsers.items()
    ]
    choices = [
        f'        {"|".join(_quoted(name, action))}) '
        f'COMPREPLY=($(compgen -W "{_words(action)}" -- "$cur")); return ;;'
        for name, parser in parsers.items()
        for action in parser.actions()
        if action.choices
    ]
    return _BASH.format(
        commands=' '.join(commands),
        choices='\n'.join(choices),
        options='\n'.join(options),
    )


def _quoted(name: str, action: argparse.Action) -> list[str]:
    """The words before the cursor after which a choice is to be made."""
    before = action.option_strings or [name]
    return [f'"{name} {word}"' for word in before]


def _words(action: argparse.Action) -> str:
    return ' '.join(map(str, action.choices or ()))


def _fish(commands: Mapping[str, Command]) -> Iterator[str]:
    _, parsers = build_parsers(commands)
    first = "complete -c mmstable -n '__fish_use_subcommand'"
    for name, command in commands.items():
        yield f'{first} -f -a {name} -d {_text(command.help())}'
    yield f'{first} -l version'
    for name, parser in parsers.items():
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for action in parser.actions():
            yield ' '.join(
                ['complete -c mmstable', seen, *_fish_words(action)]
            )


def _fish_words(action: argparse.Action) -> Iterator[str]:
    for option in action.option_strings:
        yield f'-{"l" if option.startswith("--") else "s"} {option.strip("-")}'
    if action.choices:
        is_option = '-x ' if action.option_strings else '-f '
        yield f'{is_option}-a {_text(_words(action))}'
    if isinstance(action.help, str) and action.help != argparse.SUPPRESS:
        yield f'-d {_text(action.help)}'


def _text(text: str) -> str:
    """As fish reads it between single quotes."""
    return "'" + text.replace('\\', r'\\').replace("'", r'\'') + "'"
