"""What is said about a run that is in trouble, in its owner's language."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mmstable.events import Fault, Intervention
from mmstable.settings import one_of


class GuardWording(ABC):
    """One language."""

    @abstractmethod
    def bad_steps(self, bad: int, seen: int, in_a_row: int) -> str:
        """Why there are too many bad steps."""

    @abstractmethod
    def poisoned(self, names: str) -> str:
        """What is not finite."""

    @abstractmethod
    def spike(self, subject: str, value: float, level: float) -> str:
        """What has jumped, and how far."""

    @abstractmethod
    def elsewhere(self, subject: str) -> str:
        """What has jumped on another rank."""

    @abstractmethod
    def snapshots(self, interval: int, mebibytes: float) -> str:
        """That states are kept in memory."""

    @abstractmethod
    def no_snapshots(self, gibibytes: float, limit: float) -> str:
        """That states are too large to be kept in memory."""

    @abstractmethod
    def intervention(
        self, done: Intervention, budget: str, recovery: int
    ) -> str:
        """One line about what was done.

        Args:
            done (Intervention): What.
            budget (str): Which rollback of how many it was.
            recovery (int): Iterations in which the learning rate recovers;
                0 if it does not.
        """

    @abstractmethod
    def advice(self, fault: Fault, lr: float | None) -> list[str]:
        """What to change in the config.

        Args:
            fault (Fault): What the run suffered from.
            lr (float, optional): The learning rate it had.
        """

    @abstractmethod
    def stopped(
        self,
        done: Intervention,
        rollbacks: int,
        advice: list[str],
        resume: str | None,
        file: str,
    ) -> str:
        """One paragraph about a run that is given up.

        Args:
            done (Intervention): The last one.
            rollbacks (int): How often it had gone back.
            advice (list[str]): What to change.
            resume (str, optional): The command to go on with; None if there
                is no good checkpoint.
            file (str): The diagnosis file.
        """


def make_guard_wording(lang: str) -> GuardWording:
    """The wording of a language.

    Args:
        lang (str): 'en' or 'zh_cn'.
    """
    from mmstable.messages.guard_wording_en import EnglishGuard
    from mmstable.messages.guard_wording_zh_cn import ChineseGuard

    languages: dict[str, type[GuardWording]] = {
        'en': EnglishGuard,
        'zh_cn': ChineseGuard,
    }
    one_of('DivergenceGuardHook', 'lang', lang, languages)
    return languages[lang]()
