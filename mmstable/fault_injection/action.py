"""What all kinds of faults have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable, ClassVar

from torch.nn import Module


class Scene:
    """What a fault can reach, in the iteration that it is due in.

    Args:
        model (Module): The user's model, without wrappers.
        wrappers (Mapping): The optimizer wrappers by name.
        handles (list): Where all that removes hooks is kept.
        tell (Callable): To be called with target and value right before the
            fault acts, from the thread that trains.
        note (Callable): The same for any thread; others are told after the
            iteration.
    """

    def __init__(
        self,
        model: Module,
        wrappers: Mapping[str, Any],
        handles: list[Any],
        tell: Callable[[str, str], None],
        note: Callable[[str, str], None],
    ) -> None:
        self.model = model
        self.wrappers = wrappers
        self.handles = handles
        self.tell = tell
        self.note = note

    def before_forward(self, act: Callable[[tuple, dict], Any]) -> None:
        """Act once, on the arguments of the next forward pass."""

        def hook(module: Module, args: tuple, kwargs: dict) -> Any:
            handle.remove()
            with self._no_hook_survives_an_error():
                return act(args, kwargs)

        register = self.model.register_forward_pre_hook
        handle = register(hook, with_kwargs=True)
        self.handles.append(handle)

    def after_loss(self, act: Callable[[Any], Any]) -> None:
        """Act once, on what the next forward pass for losses returns."""

        def hook(module: Module, args: tuple, kwargs: dict, out: Any) -> Any:
            if kwargs.get('mode', 'loss') != 'loss':
                # Some models look at features before they look at losses.
                return out
            handle.remove()
            with self._no_hook_survives_an_error():
                return act(out)

        handle = self.model.register_forward_hook(hook, with_kwargs=True)
        self.handles.append(handle)

    @contextmanager
    def _no_hook_survives_an_error(self) -> Iterator[None]:
        # mmengine's own loops tell nobody that an iteration has failed.
        try:
            yield
        except BaseException:
            disarm(self.handles)
            raise


def disarm(handles: list[Any]) -> None:
    """Remove all hooks."""
    while handles:
        handles.pop().remove()


class Action(ABC):
    """What a fault does, with its settings.

    Settings are checked by ``__post_init__``; its errors need not say where
    they come from.
    """

    # Whether a run that goes on after this meets the same iteration again.
    ends_process: ClassVar[bool] = False

    def check(self, model: Module) -> None:  # noqa: B027
        """Raise a ValueError if the model has not what is to be broken."""

    @abstractmethod
    def arm(self, scene: Scene) -> None:
        """Act now, or as soon as this iteration gets there."""
