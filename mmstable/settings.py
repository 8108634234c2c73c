"""Checks of settings, and the settings that mmstable ships as configs.

Every check takes the owner of the setting, its name and its value, and
returns the value; an error states in one sentence what is allowed. A wrong
type is a ``TypeError``, a wrong value a ``ValueError``. A bool is never a
number. Values of files are checked by :mod:`mmstable.io.schema`.
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from mmstable.messages import LANGUAGES, N_, _

# Similarity that a word may be behind the nearest one; equal words have 1.
_MUCH_LESS = 0.2
_BOUNDS = {
    'at_least': N_('of at least {bound:g}'),
    'above': N_('above {bound:g}'),
    'at_most': N_('at most {bound:g}'),
    'below': N_('below {bound:g}'),
}
_PACKAGE = Path(__file__).resolve().parent
DID_YOU_MEAN = N_(' Did you mean {words: or }?')


def is_numeric(value: Any) -> bool:
    """Whether a value is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not a bool."""
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def integer(owner: str, name: str, value: Any, at_least: int = 1) -> int:
    """Check an int of at least ``at_least``; 1e4 is one, too."""
    if not _is_whole(value, at_least):
        rule = _('an int of at least {least}', least=at_least)
        refuse(owner, name, rule, value, is_numeric(value))
    return int(value)


def integers(
    owner: str, name: str, value: Any, at_least: int = 1
) -> list[int]:
    """Check an int, or a list of at least one."""
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    if not listed or not all(_is_whole(one, at_least) for one in listed):
        rule = _(
            'an int of at least {least} or a list of these', least=at_least
        )
        refuse(owner, name, rule, value)
    return [int(one) for one in listed]


def number(
    owner: str,
    name: str,
    value: Any,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Check a finite number within the bounds that are given."""
    if is_number(value) and (
        at_least <= value <= at_most and above < value < below
    ):
        return float(value)
    bounds = dict(at_least=at_least, above=above, at_most=at_most, below=below)
    given = [
        _(_BOUNDS[kind], bound=bound)
        for kind, bound in bounds.items()
        if math.isfinite(bound)
    ]
    rule = _('a finite number')
    if given:
        rule = _('a finite number {bounds: and }', bounds=given)
    refuse(owner, name, rule, value, is_numeric(value))


def flag(owner: str, name: str, value: Any) -> bool:
    """Check a bool."""
    return _require(isinstance(value, bool), owner, name, _('a bool'), value)


def one_of(owner: str, name: str, value: Any, known: Collection[str]) -> str:
    """Check one of several words."""
    if not isinstance(value, str) or value not in known:
        rule = _('one of {known}', known=list(known))
        hint = did_you_mean(value, known)
        refuse(owner, name, rule, value, hint=hint)
    return value


def language(owner: str, value: Any) -> str | None:
    """Check the argument ``lang`` of a hook; None is no choice."""
    return None if value is None else one_of(owner, 'lang', value, LANGUAGES)


def text(owner: str, name: str, value: Any) -> str:
    """Check a str that is not empty."""
    is_text = isinstance(value, str) and bool(value)
    return _require(is_text, owner, name, _('a str that is not empty'), value)


def names(owner: str, name: str, value: Any) -> tuple[str, ...]:
    """Check one name or a list of names."""
    listed = [value] if isinstance(value, str) else value
    are_names = isinstance(listed, (list, tuple)) and all(
        isinstance(one, str) and one for one in listed
    )
    rule = _('a name or a list of names')
    _require(are_names, owner, name, rule, value)
    return tuple(listed)


def pattern(owner: str, name: str, value: Any) -> re.Pattern[str]:
    """Check a name or a regular expression."""
    is_text = isinstance(value, str) and bool(value)
    rule = _('a name or a regular expression')
    _require(is_text, owner, name, rule, value)
    try:
        return re.compile(value)
    except re.error as error:
        rule = _('a regular expression ({error})', error=error)
        refuse(owner, name, rule, value)


def mapping(owner: str, name: str, value: Any) -> dict[str, Any]:
    """Check a dict; None is an empty one."""
    is_dict = value is None or isinstance(value, Mapping)
    return dict(_require(is_dict, owner, name, _('a dict'), value) or {})


def overriding(value: Mapping[str, Any]) -> dict[str, Any]:
    """Remove mmengine's ``_delete_`` from a dict of a config.

    mmengine asks for ``_delete_=True`` in a dict that replaces a value of the
    base config, and leaves the key in if the base has no such value.
    """
    return {k: v for k, v in value.items() if k != '_delete_'}


def known_settings(
    owner: str, given: Iterable[str], known: Collection[str]
) -> None:
    """Refuse unknown settings."""
    for name in given:
        if name not in known:
            text = _(
                'no setting `{name}`; there are {known}.{hint}',
                name=name,
                known=list(known) or _('none'),
                hint=did_you_mean(name, known),
            )
            raise ValueError(_prefix(owner) + text)


def _require(
    is_valid: bool, owner: str, name: str, rule: str, value: Any
) -> Any:
    if not is_valid:
        refuse(owner, name, rule, value, right_type=False)
    return value


def refuse(
    owner: str,
    name: str,
    rule: str,
    value: Any,
    right_type: bool = True,
    hint: str = '',
) -> NoReturn:
    """Raise the error that all checks raise.

    Args:
        owner (str): Whose setting it is; '' if the caller adds that.
        name (str): The setting.
        rule (str): What it must be.
        value (Any): What it is.
        right_type (bool): Whether only the value is wrong. Defaults to True.
        hint (str): What to add. Defaults to ''.
    """
    error = ValueError if right_type else TypeError
    text = _(
        '`{name}` must be {rule}, got {value!r}.{hint}',
        name=name,
        rule=rule,
        value=value,
        hint=hint,
    )
    raise error(_prefix(owner) + text)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Find at most three known words that look like this one.

    Case does not matter. Words much less similar than the nearest are left
    out.
    """
    words = {one: one.casefold() for one in known}
    like = difflib.SequenceMatcher(b=word.casefold())
    scores = {}
    for one, folded in words.items():
        like.set_seq1(folded)
        if like.quick_ratio() >= cutoff and like.ratio() >= cutoff:
            scores[one] = like.ratio()
    best = max(scores.values(), default=0.0)
    near = [one for one in scores if scores[one] >= best - _MUCH_LESS]
    return sorted(near, key=lambda one: -scores[one])[:3]


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """A sentence with the nearest words, or nothing at all."""
    return suggest(nearest(word, known) if isinstance(word, str) else [])


def suggest(words: list[str]) -> str:
    """Return a sentence that suggests words; nothing without any."""
    return _(DID_YOU_MEAN, words=words) if words else ''


def no_match(name: str, text: str, known: Collection[str]) -> str:
    """Describe a name, or a pattern, that matches none of many names."""
    listed = list(known)[:5]
    if len(known) > len(listed):
        listed.append('...')
    names = listed or _('nothing')
    hint = did_you_mean(text, known) or _(' There is {names}.', names=names)
    return _(
        '`{name}` {text!r} matches nothing.{hint}',
        name=name,
        text=text,
        hint=hint,
    )


def _is_whole(value: Any, at_least: int) -> bool:
    # Of NaN and infinities, the rest is NaN.
    return is_numeric(value) and value % 1 == 0 and value >= at_least


def _prefix(owner: str) -> str:
    return f'{owner}: ' if owner else ''


def config_root() -> Path:
    """The folder that holds ``_base_``.

    A wheel has it in the package; a checkout beside it.
    """
    shipped = _PACKAGE / '.mim' / 'configs'
    if shipped.is_dir():
        return shipped.resolve()
    return _PACKAGE.parent / 'configs'


def config_path(name: str) -> str:
    """The absolute path of a config that mmstable ships.

    It serves those who start from the train script of another project, where
    ``mmstable::`` is not known yet while ``_base_`` is read::

        _base_ = [
            './my_config.py',
            __import__('mmstable').config_path('_base_/loss_scale/dynamic.py'),
        ]

    Args:
        name (str): Its path below ``configs/``.
    """
    root = config_root()
    path = root / name
    if path.is_file():
        return str(path)
    known = sorted(
        found.relative_to(root).as_posix() for found in root.rglob('*.py')
    )
    hint = did_you_mean(name, known) or f' It has {", ".join(known)}.'
    raise FileNotFoundError(
        f"config_path: mmstable ships no config '{name}'.{hint}"
    )


def shipped_settings(name: str) -> dict[str, Any]:
    """What a config that mmstable ships says, in plain types.

    Args:
        name (str): Its path below ``configs/``.
    """
    return copy.deepcopy(_read(name))


@cache
def _read(name: str) -> dict[str, Any]:
    # `mmstable --help` does without mmengine.
    from mmengine.config import Config

    return Config.fromfile(config_path(name))._cfg_dict.to_dict()


def runtime_hooks() -> dict[str, dict[str, Any]]:
    """The hooks of the base runtime by the names of their classes."""
    hooks = shipped_settings('_base_/default_runtime.py')['custom_hooks']
    return {hook['type'].rpartition('.')[2]: hook for hook in hooks}
