"""What is said about a step, in the languages of its readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mmstable.events import Culprit, StepReport
from mmstable.settings import one_of


def modules_of(culprits: Sequence[Culprit]) -> dict[str, list[str]]:
    """The names of parameters, by the module they are in."""
    found: dict[str, list[str]] = {}
    for culprit in culprits:
        module = culprit.name.rpartition('.')[0]
        found.setdefault(module, []).append(culprit.name)
    return found


def examples(culprits: Sequence[Culprit], most: int) -> list[str]:
    """One parameter of each module, but not too many."""
    return [names[0] for names in modules_of(culprits).values()][:most]


class Wording(ABC):
    """One language.

    Args:
        max_names (int): Most parameters to name in a line.
    """

    def __init__(self, max_names: int) -> None:
        self.max_names = max_names

    @abstractmethod
    def enabled(self, short_name: str, loss_scale: float) -> str | None:
        """That mixed precision is on; None if that needs no saying."""

    @abstractmethod
    def bad_step(self, where: str, report: StepReport, scaled: bool) -> str:
        """One line about one bad step."""

    @abstractmethod
    def left_out(self, count: int, first: int, last: int) -> str:
        """That some bad steps were not printed."""

    @abstractmethod
    def too_many(
        self, bad: int, seen: int, in_a_row: int, report: StepReport
    ) -> str:
        """That this is no longer normal, and what to do."""

    @abstractmethod
    def observes_only(self, wrapper: str) -> str:
        """That nothing is protected."""


def make_wording(lang: str, max_names: int) -> Wording:
    """The wording of a language.

    Args:
        lang (str): 'en' or 'zh_cn'.
        max_names (int): Most parameters to name in a line.
    """
    from mmstable.messages.wording_en import English
    from mmstable.messages.wording_zh_cn import Chinese

    languages: dict[str, type[Wording]] = {'en': English, 'zh_cn': Chinese}
    one_of('GradNanLoggerHook', 'lang', lang, languages)
    return languages[lang](max_names)
