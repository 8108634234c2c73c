"""The optimizer wrappers that mmengine builds: fp32, and mixed precision.

They also load the state dicts of mmengine's own wrappers.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Callable
from weakref import ref

import torch
from mmengine.dist import get_world_size
from mmengine.logging import MessageHub, print_log
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.errors import ConfigError
from mmstable.messages import _
from mmstable.optim.clipping import parse_clip_grad
from mmstable.optim.fp32_modules import Fp32Modules
from mmstable.optim.grad_health import first_parameter
from mmstable.optim.loss_scale import LossScaler, ScalePolicy
from mmstable.optim.pending_step import backward_if_finite
from mmstable.optim.step import SafeStep
from mmstable.registry import OPTIM_WRAPPERS, register_globally
from mmstable.settings import flag, integer, one_of

# Which kernel runs is a matter of this machine's config, not of the run that
# wrote the checkpoint; torch would let the checkpoint decide.
_IMPLEMENTATION = ('fused', 'foreach', 'capturable', 'differentiable')


def keep_configured_implementation(
    optimizer: Optimizer, state: Mapping[str, Any]
) -> dict[str, Any]:
    """A copy of an optimizer's state dict that runs the configured kernels.

    Args:
        optimizer (Optimizer): The optimizer that is going to load it.
        state (Mapping): The state dict. It is not changed.
    """
    groups = [
        {**saved, **{k: own[k] for k in _IMPLEMENTATION if k in own}}
        for saved, own in zip(state['param_groups'], optimizer.param_groups)
    ]
    # Left to torch, whose error names the mismatch.
    groups.extend(state['param_groups'][len(groups) :])
    return {**state, 'param_groups': groups}


@register_globally(OPTIM_WRAPPERS)
class SafeOptimWrapper(SafeStep, OptimWrapper):
    """An ``OptimWrapper`` that skips steps with NaN or Inf gradients.

    A bad step leaves weights, buffers, optimizer state and step counters as
    they were. :attr:`last_step` is the report of the newest step;
    :class:`~mmstable.events.monitor.RunMonitor` publishes every report to
    hooks.

    mmengine's own methods are called by the name of their class here, not
    through ``super()``: in :class:`SafeAmpOptimWrapper` the next class in
    line is mmengine's ``AmpOptimWrapper``, whose step is the one replaced.

    Args:
        optimizer (Optimizer): The optimizer.
        accumulative_counts (int): Iterations that make one step.
            Defaults to 1.
        clip_grad (dict, optional): As in mmengine: ``max_norm`` and
            ``norm_type``, or ``type='value'`` and ``clip_value``.
            Defaults to None.
        protect_buffers (bool): Whether running statistics, as those of
            BatchNorm, are restored when a step is skipped: what the forward
            passes inside its ``optim_context`` have changed. Takes the
            memory of one copy of these, of two with accumulation. Defaults
            to True.
        name_ranks (bool): With DDP, whether to check each rank's gradients
            before they are averaged, to report the rank of the first NaN.
            Uses DDP's communication hook, if that is free. Defaults to True.
    """

    is_stock = False
    # Whether the user says that gradients are sharded.
    _use_fsdp = False
    # Scaling is for mixed precision; here the scale is 1.
    loss_scaler = LossScaler(ScalePolicy(), enabled=False)

    def __init__(
        self,
        optimizer: Optimizer,
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
        protect_buffers: bool = True,
        name_ranks: bool = True,
    ) -> None:
        owner = type(self).__name__
        accumulative_counts = integer(
            owner, 'accumulative_counts', accumulative_counts
        )
        flag(owner, 'protect_buffers', protect_buffers)
        clip = parse_clip_grad(clip_grad)
        OptimWrapper.__init__(
            self, optimizer, accumulative_counts, copy.copy(clip_grad)
        )
        SafeStep.__init__(
            self, optimizer, clip, accumulative_counts > 1, protect_buffers
        )
        self._name_ranks = flag(owner, 'name_ranks', name_ranks)
        self._announced = False
        # The model of the last forward pass; mostly there is only one.
        self._current_model: Callable[[], Module | None] = lambda: None

    def initialize_count_status(
        self, model: Module, init_counts: int, max_counts: int
    ) -> None:
        """Learn the length of the training, and the model's names."""
        OptimWrapper.initialize_count_status(
            self, model, init_counts, max_counts
        )
        self.bind_model(model)

    def bind_model(self, model: Module) -> None:
        """Learn the names in a model before parts of it are trained.

        mmengine does not pass the whole model to the wrappers of an
        ``OptimWrapperDict``.
        """
        # A wrapper that was built before its runner has the hub of no run,
        # or of another one.
        self.message_hub = MessageHub.get_current_instance()
        self._scalars = None
        self._bind(model)

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """The context of a forward pass."""
        if self._pending is not None:
            # Free here: mmengine has read the last loss, nothing is queued.
            self.resolve()
        if self._current_model() is not model:
            self._current_model = ref(model)
            self._bind(model)
            if self._name_ranks:
                self._ranks.attach_probe(model)
        window = self._window
        self._buffers.before_forward(
            self.steps.iteration, window.kept + window.dropped > 0
        )
        if self._accumulative_counts == 1:
            # Every iteration makes a step, so DDP has to synchronise.
            yield
        else:
            with OptimWrapper.optim_context(self, model):
                yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Back-propagate, unless the loss would spoil others of its step."""
        scaled, is_finite, scaler = loss, True, self.loss_scaler
        if self._pending is not None:
            self.resolve()
        if (
            self._accumulates
            # A rank that leaves out its backward pass must not keep the
            # others waiting for its gradients.
            and self._ranks.backward_is_local
            and (get_world_size() == 1 or not self.should_sync())
            and not torch.isfinite(loss.detach()).all()
        ):
            # Gradients decide: a constant that is not finite does no harm.
            is_finite = backward_if_finite(
                scaler.scale(loss), self._names.parameters(), **kwargs
            )
        else:
            if self._ranks.is_behind and self.should_sync():
                # So that no rank updates by gradients of old weights.
                scaled = scaled * math.nan
            if scaler.enabled:
                scaled = scaler.scale(scaled)
            scaled.backward(**kwargs)
        # Not before: a backward pass that fails can be done again.
        if is_finite:
            self._watch(loss)
        else:
            self._drop()
        self._inner_count += 1

    def skip_iteration(
        self,
        reduce: Callable[[float], None] | None = None,
        invalidate: bool = False,
    ) -> None:
        """Skip an iteration that does not fit in memory.

        Args:
            reduce (Callable, optional): Reduces gradients of one value with
                those of the ranks that wait. Defaults to None.
            invalidate (bool): Whether it has left gradients behind, so that
                its whole step has to be skipped. Defaults to False.
        """
        # A step of other ranks needs gradients of other iterations here.
        has_rest = reduce is None or (
            self._accumulates and self._window.kept > 0
        )
        keeps_step = has_rest and not invalidate
        if reduce is not None:
            # Zeros, whose number all ranks know; NaN has all ranks skip.
            reduce(0.0 if keeps_step else math.nan)
        if keeps_step:
            self._drop(had_oom=True)
        else:
            # All ranks skip this step: its gradients are NaN.
            self._watch(torch.tensor(math.nan))
            self._window.had_oom = True
        self._inner_count += 1
        if self.should_update():
            self.step()
            self.zero_grad()

    def zero_grad(self, **kwargs: Any) -> None:
        """Clear the gradients."""
        if not kwargs.get('set_to_none', True):
            # Zeros would overwrite gradients whose verdict is unread.
            self.resolve()
        self.optimizer.zero_grad(**kwargs)

    def state_dict(self) -> dict:
        """The optimizer's state, and the tally of this wrapper's steps."""
        self.resolve()
        state = OptimWrapper.state_dict(self)
        state['safe_step'] = self.steps.tally.state_dict()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state of this class or of any mmengine wrapper."""
        state = keep_configured_implementation(self.optimizer, state_dict)
        tally = state.pop('safe_step', None)
        if tally is not None:
            self.steps.tally.load_state_dict(tally)
        self.reset()
        OptimWrapper.load_state_dict(self, state)

    def _bind(self, model: Module) -> None:
        """Find buffers, names and sharing of a model, once for each."""
        self._buffers.bind_model(model)
        if self._names.bind_model(model):
            self._ranks.bind_model(model, self._use_fsdp)
        if not self._announced:
            self._announced = True
            print_log(self._description(), logger='current')

    def _description(self) -> str:
        return _(
            'mmstable: fp32 training protected{details}',
            details=self._details([]),
        )

    def _details(self, details: list[str]) -> str:
        name = self.steps.wrapper
        if name not in ('', 'optim_wrapper'):
            # One of several, as of a GAN.
            details = [name, *details]
        if self.clip is not None:
            details = [*details, _('clip {clip}', clip=self.clip)]
        return _(' ({details})', details=details) if details else ''


def require_autocast(device_type: str, dtype: torch.dtype) -> None:
    """Refuse what would fail in the first forward pass.

    Args:
        device_type (str): Where the model is.
        dtype (torch.dtype): What to autocast to.

    Raises:
        ConfigError: If the model is on a CPU, and this torch can autocast
            there to bfloat16 only.
    """
    if device_type != 'cpu' or dtype is not torch.float16:
        return
    if not _half_works_on_cpu():
        raise ConfigError(
            _(
                'SafeAmpOptimWrapper: torch {version} cannot autocast to '
                "float16 on a CPU: set `dtype='bfloat16'`, or install a "
                'newer torch.',
                version=torch.__version__,
            )
        )


@cache
def _half_works_on_cpu() -> bool:
    ones = torch.ones(1, 1)
    try:
        with warnings.catch_warnings():
            # An old torch warns that it switches autocast off.
            warnings.simplefilter('ignore')
            with torch.autocast('cpu', dtype=torch.float16):
                return torch.mm(ones, ones).dtype is torch.float16
    except RuntimeError:
        return False


_NAME = 'SafeAmpOptimWrapper'
_SHORT_NAMES = {torch.float16: 'FP16', torch.bfloat16: 'BF16'}


@register_globally(OPTIM_WRAPPERS)
class SafeAmpOptimWrapper(SafeOptimWrapper, AmpOptimWrapper):
    """A drop-in for mmengine's ``AmpOptimWrapper`` that survives bad steps.

    Besides what :class:`SafeOptimWrapper` does, it runs the forward pass
    under autocast on any device, and moves the loss scale between a floor
    and a cap: an overflow backs it off, a NaN loss does not, because a
    smaller scale cannot fix that.

    Args:
        loss_scale (str or float or int or dict): 'dynamic', a start value,
            or a dict with any of ``init_scale``, ``growth_factor``,
            ``backoff_factor``, ``growth_interval``, ``min_scale``,
            ``max_scale``, ``hysteresis``, ``frozen`` and ``enabled``; see
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
        policy = ScalePolicy.from_config(
            'dynamic' if loss_scale is None else loss_scale
        )
        is_half = self.cast_dtype is torch.float16
        self.loss_scaler = LossScaler(policy, is_half and policy.enabled)
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
        if self.loss_scaler.enabled:
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

    def _bind(self, model: Module) -> None:
        require_autocast(self.device_type, self.cast_dtype)
        super()._bind(model)
        self._fp32_modules.install(model, self.device_type)

    def _description(self) -> str:
        short = _SHORT_NAMES.get(self.cast_dtype)
        if short is None:
            return super()._description()
        details = []
        if self.loss_scaler.enabled:
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
