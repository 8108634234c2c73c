"""The wrapper for mixed precision: fp16 with loss scaling, or bf16."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper
from torch.nn import Module

from mmstable.messages import _
from mmstable.numerics.loss_scaler import LossScaler
from mmstable.numerics.scale_policy import ScalePolicy
from mmstable.optim.fp32_modules import Fp32Modules
from mmstable.optim.half_precision import require_autocast
from mmstable.optim.parameter_names import first_parameter
from mmstable.optim.safe_optim_wrapper import SafeOptimWrapper
from mmstable.registry import OPTIM_WRAPPERS, register_globally
from mmstable.settings import flag, one_of

_NAME = 'SafeAmpOptimWrapper'
_SHORT_NAMES = {torch.float16: 'FP16', torch.bfloat16: 'BF16'}


@register_globally(OPTIM_WRAPPERS)
class SafeAmpOptimWrapper(SafeOptimWrapper, AmpOptimWrapper):
    """A drop-in for mmengine's ``AmpOptimWrapper`` that survives bad steps.

    Besides what :class:`SafeOptimWrapper` does, it runs the forward pass
    under autocast on any device, and moves the loss scale between a floor
    and a cap: an overflow backs it off, a NaN loss does not, because a
    smaller scale cannot mend that.

    Args:
        loss_scale (str or float or int or dict): 'dynamic', a start value,
            or a dict with any of ``init_scale``, ``growth_factor``,
            ``backoff_factor``, ``growth_interval``, ``min_scale``,
            ``max_scale``, ``hysteresis`` and ``frozen``; see
            :class:`ScalePolicy`. None means 'dynamic'. Only float16 is
            scaled. Defaults to 'dynamic'.
        dtype (str or torch.dtype, optional): What to autocast to. None means
            float16. Defaults to None.
        use_fsdp (bool): Whether every rank holds its own part of the
            gradients. FSDP is recognised without it. Defaults to False.
        fp32_modules (Sequence[str]): Modules that run outside autocast, with
            their inputs cast to float32: names as in
            ``model.named_modules()``, each with all that is below it, or
            regular expressions for whole names. Defaults to ().
        **kwargs: Arguments of :class:`SafeOptimWrapper`.
    """

    def __init__(
        self,
        loss_scale: Any = 'dynamic',
        dtype: str | torch.dtype | None = None,
        use_fsdp: bool = False,
        fp32_modules: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        self.cast_dtype = _parse_dtype(dtype)
        self.loss_scaler = LossScaler(
            ScalePolicy.from_config(
                'dynamic' if loss_scale is None else loss_scale
            ),
            enabled=self.cast_dtype is torch.float16,
        )
        SafeOptimWrapper.__init__(self, **kwargs)
        self._fp32_modules = Fp32Modules(fp32_modules)
        self._use_fsdp = flag(_NAME, 'use_fsdp', use_fsdp)

    @property
    def device_type(self) -> str:
        """Where the parameters are: 'cpu', 'cuda', 'npu', ..."""
        return first_parameter(self.optimizer).device.type

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """The context of a forward pass: autocast, if the dtype is short."""
        is_short = self.cast_dtype in _SHORT_NAMES
        with (
            SafeOptimWrapper.optim_context(self, model),
            torch.autocast(
                self.device_type,
                # torch 2.1 refuses one that it cannot cast to, enabled or not.
                dtype=self.cast_dtype if is_short else None,
                enabled=is_short,
            ),
        ):
            yield

    def state_dict(self) -> dict:
        """What mmengine's ``AmpOptimWrapper`` saves, and our counters."""
        state = SafeOptimWrapper.state_dict(self)
        if self.loss_scaler.is_enabled():
            state['loss_scaler'] = self.loss_scaler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state of this class or of any mmengine wrapper."""
        state = dict(state_dict)
        scaler_state = state.pop('loss_scaler', {})
        for note in self.loss_scaler.load_state_dict(scaler_state):
            print_log(
                _('mmstable: loss scale: {note}. The config wins.', note=note),
                logger='current',
                level=logging.WARNING,
            )
        SafeOptimWrapper.load_state_dict(self, state)

    def _learn(self, model: Module) -> None:
        require_autocast(self.device_type, self.cast_dtype)
        super()._learn(model)
        self._fp32_modules.install(model, self.device_type)

    def _description(self) -> str:
        short = _SHORT_NAMES.get(self.cast_dtype)
        if short is None:
            return super()._description()
        details = []
        if self.loss_scaler.is_enabled():
            policy = self.loss_scaler.policy
            scale = self.loss_scaler.get_scale()
            details = [
                _('loss_scale={scale}, frozen', scale=scale)
                if policy.frozen
                else _(
                    'loss_scale={scale}, floor {floor}',
                    scale=scale,
                    floor=policy.min_scale,
                )
            ]
        return _(
            'mmstable: {dtype} mixed precision enabled{details}',
            dtype=short,
            details=self._details(details),
        )


def _parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float16
    name = str(dtype).replace('torch.', '')
    one_of(_NAME, 'dtype', name, AmpOptimWrapper.valid_dtypes)
    return getattr(torch, name)
