"""Faults in the losses that a model returns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.utils import apply_to
from torch import Tensor, is_tensor

from mmstable.errors import ConfigError
from mmstable.fault_injection.action import Action, Scene
from mmstable.fault_injection.values import check_factor, name_of
from mmstable.settings import no_match, text

# What mmengine's `parse_losses` looks for in the name of a term.
_LOSS = 'loss'


class _LossFault(Action):
    """Changes what the first forward pass of the iteration returns."""

    term: str | None

    def arm(self, scene: Scene) -> None:
        """Wait for the losses."""
        scene.after_loss(lambda output: self._spoil(output, scene))

    def _spoil(self, output: Any, scene: Scene) -> Any:
        if is_tensor(output) and self.term is None:
            scene.tell(_LOSS, self.name)
            return self.change(output)
        terms = self._terms(output)
        changed = dict(output)
        for term in terms:
            changed[term] = apply_to(output[term], is_tensor, self.change)
        for term in terms:
            scene.tell(term, self.name)
        return changed

    def _terms(self, output: Any) -> list[str]:
        if not isinstance(output, Mapping):
            raise ConfigError(
                'FaultInjectorHook: the model returns no dict of losses that '
                f'one could be spoiled in, but {type(output).__name__}.'
            )
        if self.term is None:
            return [term for term in output if _LOSS in term]
        if self.term not in output:
            raise ConfigError(
                f'FaultInjectorHook: {no_match("term", self.term, output)}'
            )
        return [self.term]

    @property
    @abstractmethod
    def name(self) -> str:
        """What the term is multiplied by."""

    @abstractmethod
    def change(self, loss: Tensor) -> Tensor:
        """The loss to go on with; it keeps its graph."""

    def _check_term(self) -> None:
        if self.term is not None:
            text('', 'term', self.term)


@dataclass(frozen=True)
class SpoiledLoss(_LossFault):
    """Losses that are not finite.

    Args:
        value (float): NaN or Inf.
        term (str, optional): The only entry of the loss dictionary to spoil,
            e.g. 'loss_bbox'. Defaults to None, which means all.
    """

    value: float
    term: str | None = None

    def __post_init__(self) -> None:
        self._check_term()

    @property
    def name(self) -> str:
        """NaN or Inf."""
        return name_of(self.value)

    def change(self, loss: Tensor) -> Tensor:
        """The loss, multiplied, so that its gradients are bad as well."""
        return loss * self.value


@dataclass(frozen=True)
class LossSpike(_LossFault):
    """Losses that are far too large, but finite.

    Args:
        factor (float): What they are multiplied by. Defaults to 1000.0.
        term (str, optional): As in :class:`SpoiledLoss`. Defaults to None.
    """

    factor: float = 1000.0
    term: str | None = None

    def __post_init__(self) -> None:
        check_factor(self.factor)
        self._check_term()

    @property
    def name(self) -> str:
        """The factor."""
        return name_of(self.factor)

    def change(self, loss: Tensor) -> Tensor:
        """The loss, multiplied."""
        return loss * self.factor
