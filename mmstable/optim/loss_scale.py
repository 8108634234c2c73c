"""The loss scale: its settings, its moves, and torch's GradScaler API."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor, float16, is_tensor
from torch.optim import Optimizer

from mmstable.messages import _
from mmstable.optim.grad_health import (
    find_nonfinite,
    gradient_norms,
    stored_values,
)
from mmstable.optim.pending_step import live_gradients
from mmstable.settings import (
    flag,
    integer,
    known_settings,
    number,
    overriding,
)


@dataclass(frozen=True)
class ScalePolicy:
    """How a loss scale moves.

    Args:
        init_scale (float): Where it starts. Defaults to 65536.0.
        growth_factor (float): What it grows by. Defaults to 2.0.
        backoff_factor (float): What an overflow multiplies it by.
            Defaults to 0.5.
        growth_interval (int): Clean steps in a row before it grows.
            Defaults to 2000.
        min_scale (float): Its floor. Defaults to 1.0, or in a config to a
            start value below that.
        max_scale (float): Its cap. Defaults to 16777216.0, or in a config to
            a start value above that.
        hysteresis (int): Overflows that it takes to back off once, counted
            again after every clean step. Defaults to 1.
        frozen (bool): Keep the start value for good, as mmengine does with a
            float. Defaults to False.
        enabled (bool): Whether losses are scaled at all, as in torch's
            GradScaler. Defaults to True.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    hysteresis: int = 1
    frozen: bool = False
    enabled: bool = True

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = check('loss_scale', name, getattr(self, name))
            object.__setattr__(self, name, value)
        if self.clamp(self.init_scale) != self.init_scale:
            text = _(
                'loss_scale: `init_scale` {init_scale} is outside '
                '[`min_scale` {min_scale}, `max_scale` {max_scale}].',
                **vars(self),
            )
            raise ValueError(text)

    @classmethod
    def from_config(cls, loss_scale: Any) -> ScalePolicy:
        """Understand the ``loss_scale`` setting of a wrapper.

        Args:
            loss_scale (str or float or int or Mapping): 'dynamic', a start
                value, or any of this class's arguments by name.
        """
        if loss_scale == 'dynamic':
            return cls()
        if isinstance(loss_scale, (int, float)):
            loss_scale = {'init_scale': loss_scale}
        elif not isinstance(loss_scale, Mapping):
            text = _(
                "loss_scale: must be 'dynamic', a number or a dict, got "
                '{value!r}.',
                value=loss_scale,
            )
            raise TypeError(text)
        settings = overriding(loss_scale)
        known_settings('loss_scale', settings, _CHECKS)
        start = settings.get('init_scale')
        if isinstance(start, (int, float)):
            # It moves the default floor and cap.
            settings.setdefault('min_scale', min(start, cls.min_scale))
            settings.setdefault('max_scale', max(start, cls.max_scale))
        return cls(**settings)

    def clamp(self, scale: float) -> float:
        """The nearest scale that is allowed."""
        return min(max(scale, self.min_scale), self.max_scale)

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """In which settings a saved state differs from this policy."""
        return [
            _(
                '{name} {saved} in the checkpoint, {configured} configured',
                name=name,
                saved=state[name],
                configured=configured,
            )
            for name, configured in vars(self).items()
            if state.get(name, configured) != configured
        ]


_positive = partial(number, above=0)
_CHECKS: Mapping[str, Callable[[str, str, Any], Any]] = {
    'init_scale': _positive,
    'growth_factor': partial(number, above=1),
    'backoff_factor': partial(number, above=0, below=1),
    'growth_interval': integer,
    'min_scale': _positive,
    'max_scale': _positive,
    'hysteresis': integer,
    'frozen': flag,
    'enabled': flag,
}


_SAVED = (
    'growth_factor',
    'backoff_factor',
    'growth_interval',
    'min_scale',
    'max_scale',
)


class LossScaler:
    """Scale losses so that small fp16 gradients do not vanish.

    It keeps its state in plain numbers on the host: they change after a step
    is judged, and the device is idle by then. Code that is written for
    torch's ``GradScaler`` can use it as one; the wrappers unscale and judge
    by themselves.

    Args:
        policy (ScalePolicy): How the scale moves.
        enabled (bool): Without it the scale is 1 for good. Defaults to True.
    """

    def __init__(self, policy: ScalePolicy, enabled: bool = True) -> None:
        self.policy = policy
        self.enabled = enabled
        # The current scale.
        self.value = policy.init_scale if enabled else 1.0
        self._growth_tracker = 0
        self._patience = policy.hysteresis
        # Optimizers since the last update, by id: whether a gradient is NaN
        # or Inf, and those that were stepped.
        self._is_bad: dict[int, bool] = {}
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        """Whether losses are scaled at all."""
        return self.enabled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place."""
        if not self.enabled:
            return
        key = id(optimizer)
        self._refuse_again('unscale_', key, key in self._is_bad)
        params, grads, __ = live_gradients(optimizer)
        for param, grad in zip(params, grads):
            param.grad = grad
        bad = find_nonfinite(grads, gradient_norms(grads).tolist())
        self._is_bad[key] = bool(bad)
        if grads:
            # Rounded as torch does it.
            factor = torch.tensor(1 / self.value).item()
            torch._foreach_mul_([stored_values(g) for g in grads], factor)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step an optimizer, unless a gradient is NaN or Inf.

        Args:
            optimizer (Optimizer): Its gradients are unscaled first, if they
                are not.
            *args: For ``optimizer.step``.
            **kwargs: For ``optimizer.step``.
        """
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        if 'closure' in kwargs:
            text = 'a `closure` cannot be used with a loss scale.'
            raise RuntimeError(f'LossScaler.step: {text}')
        key = id(optimizer)
        if key not in self._is_bad:
            self.unscale_(optimizer)
        self._refuse_again('step', key, key in self._stepped)
        self._stepped.add(key)
        return None if self._is_bad[key] else optimizer.step(*args, **kwargs)

    def _refuse_again(self, name: str, key: int, is_again: bool) -> None:
        if is_again:
            when = 'step' if key in self._stepped else 'unscale_'
            raise RuntimeError(
                f'LossScaler.{name}: {when}() was called for this optimizer '
                'already since the last update().'
            )

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Move the scale by what the steps since the last call have shown.

        Args:
            new_scale (float or Tensor, optional): Set the scale to this
                instead. Defaults to None.
        """
        if not self.enabled:
            return
        if new_scale is not None:
            value = float(new_scale)
            number('LossScaler.update', 'new_scale', value, above=0)
            self.set_scale(value)
        elif any(self._is_bad.values()):
            self.note_bad_gradients()
        elif self._is_bad:
            self.note_clean_step()
        self._is_bad.clear()
        self._stepped.clear()

    def get_growth_factor(self) -> float:
        """What the scale grows by."""
        return self.policy.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Choose what the scale grows by."""
        self.policy = replace(self.policy, growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        """What an overflow multiplies the scale by."""
        return self.policy.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Choose what an overflow multiplies the scale by."""
        self.policy = replace(self.policy, backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        """Clean steps in a row before the scale grows."""
        return self.policy.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Choose how many clean steps it takes before the scale grows."""
        self.policy = replace(self.policy, growth_interval=new_interval)

    def get_scale(self) -> float:
        """The current scale; 1.0 if scaling is off."""
        return self.value

    def set_scale(self, scale: float) -> None:
        """Set the scale to the nearest value that the policy allows."""
        self.value = self.policy.clamp(scale)

    @property
    def can_shrink(self) -> bool:
        """Whether the scale is above its floor."""
        return self.enabled and self.value > self.policy.min_scale

    @property
    def is_moving(self) -> bool:
        """Whether overflows lower the scale as long as it can shrink."""
        return self.enabled and not self.policy.frozen

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or every tensor of an iterable, by the scale."""
        if not self.enabled:
            return outputs
        if is_tensor(outputs):
            # In half precision the product itself would overflow.
            is_half = outputs.dtype is float16
            return (outputs.float() if is_half else outputs) * self.value
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise TypeError(
            'LossScaler.scale: expected a tensor or an iterable of tensors, '
            f'got {type(outputs).__name__}.'
        )

    def note_clean_step(self) -> None:
        """Grow after ``growth_interval`` clean steps in a row."""
        if not self.enabled:
            return
        self._patience = self.policy.hysteresis
        if self.policy.frozen:
            return
        self._growth_tracker += 1
        if self._growth_tracker >= self.policy.growth_interval:
            self._growth_tracker = 0
            self.set_scale(self.value * self.policy.growth_factor)

    def note_bad_gradients(self) -> None:
        """Back off after ``hysteresis`` bad steps without a clean one."""
        if not self.enabled or self.policy.frozen:
            return
        self._growth_tracker = 0
        self._patience -= 1
        if self._patience <= 0:
            self._patience = self.policy.hysteresis
            self.set_scale(self.value * self.policy.backoff_factor)

    def state_dict(self) -> dict[str, Any]:
        """The five fields of torch's GradScaler, and our own."""
        if not self.enabled:
            return {}
        return {
            'scale': self.value,
            **{key: getattr(self.policy, key) for key in _SAVED},
            '_growth_tracker': self._growth_tracker,
            'patience': self._patience,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Take over the scale and the counts, but none of the settings.

        Args:
            state (Mapping): From :meth:`state_dict` or from torch's
                GradScaler.

        Returns:
            list[str]: What in ``state`` differs from the configured policy
            and is not taken over, in words.
        """
        if not self.enabled or not state:
            return []
        notes = self.policy.differences(state)
        if self.policy.frozen:
            return notes
        saved = float(state['scale'])
        usable = math.isfinite(saved) and saved > 0
        self.value = self.policy.clamp(saved if usable else self.value)
        if self.value != saved:
            note = _(
                'scale {saved} in the checkpoint, but it must be in '
                '[{min_scale}, {max_scale}]: {scale} is used',
                saved=saved,
                scale=self.value,
                **vars(self.policy),
            )
            notes.append(note)
        self._growth_tracker = int(state.get('_growth_tracker', 0))
        most = self.policy.hysteresis
        self._patience = min(int(state.get('patience', most)), most)
        return notes
