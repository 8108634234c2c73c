"""The loss scale: how it starts, shrinks, grows, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, float16, is_tensor

from mmstable.messages import _
from mmstable.numerics.grad_scaler_interface import GradScalerInterface
from mmstable.numerics.scale_policy import ScalePolicy


class LossScaler(GradScalerInterface):
    """Scale losses so that small fp16 gradients do not vanish.

    It keeps its state in plain numbers on the host: they change after a step
    is judged, and the device is idle by then. Code that is written for
    torch's ``GradScaler`` can use it as one.

    Args:
        policy (ScalePolicy): How the scale moves.
        enabled (bool): Without it the scale is 1 for good. Defaults to True.
    """

    def __init__(self, policy: ScalePolicy, enabled: bool = True) -> None:
        super().__init__(policy, enabled)
        self._scale = policy.init_scale if enabled else 1.0
        self._growth_tracker = 0
        self._patience = policy.hysteresis

    def get_scale(self) -> float:
        """The current scale; 1.0 if scaling is off."""
        return self._scale

    def set_scale(self, scale: float) -> None:
        """Set the scale to the nearest value that the policy allows."""
        self._scale = self.policy.clamp(scale)

    @property
    def can_shrink(self) -> bool:
        """Whether the scale is above its floor."""
        return self._enabled and self._scale > self.policy.min_scale

    @property
    def is_moving(self) -> bool:
        """Whether overflows lower the scale as long as it can shrink."""
        return self._enabled and not self.policy.frozen

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or every tensor of an iterable, by the scale."""
        if not self._enabled:
            return outputs
        if is_tensor(outputs):
            return self._scale_tensor(outputs)
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise TypeError(
            'LossScaler.scale: expected a tensor or an iterable of tensors, '
            f'got {type(outputs).__name__}.'
        )

    def _scale_tensor(self, output: Tensor) -> Tensor:
        # In half precision the product itself would overflow.
        wide = output.float() if output.dtype is float16 else output
        return wide * self._scale

    def note_clean_step(self) -> None:
        """Grow after ``growth_interval`` clean steps in a row."""
        if not self._enabled:
            return
        self._patience = self.policy.hysteresis
        if self.policy.frozen:
            return
        self._growth_tracker += 1
        if self._growth_tracker >= self.policy.growth_interval:
            self._growth_tracker = 0
            self.set_scale(self._scale * self.policy.growth_factor)

    def note_bad_gradients(self) -> None:
        """Back off after ``hysteresis`` bad steps without a clean one."""
        if not self._enabled or self.policy.frozen:
            return
        self._growth_tracker = 0
        self._patience -= 1
        if self._patience <= 0:
            self._patience = self.policy.hysteresis
            self.set_scale(self._scale * self.policy.backoff_factor)

    def state_dict(self) -> dict[str, Any]:
        """The five fields of torch's GradScaler, and our own."""
        if not self._enabled:
            return {}
        return {
            'scale': self._scale,
            'growth_factor': self.policy.growth_factor,
            'backoff_factor': self.policy.backoff_factor,
            'growth_interval': self.policy.growth_interval,
            '_growth_tracker': self._growth_tracker,
            'min_scale': self.policy.min_scale,
            'max_scale': self.policy.max_scale,
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
        if not self._enabled or not state:
            return []
        notes = self.policy.differences(state)
        if self.policy.frozen:
            return notes
        saved = float(state['scale'])
        usable = math.isfinite(saved) and saved > 0
        self._scale = self.policy.clamp(saved if usable else self._scale)
        if self._scale != saved:
            notes.append(
                _(
                    'scale {saved} in the checkpoint, but it must be in '
                    '[{least}, {most}]: {scale} is used',
                    saved=saved,
                    least=self.policy.min_scale,
                    most=self.policy.max_scale,
                    scale=self._scale,
                )
            )
        self._growth_tracker = int(state.get('_growth_tracker', 0))
        self._patience = min(
            int(state.get('patience', self.policy.hysteresis)),
            self.policy.hysteresis,
        )
        return notes
