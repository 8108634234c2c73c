"""The hook that clips gradients: all together, by module, or adaptively."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import ConfigError
from mmstable.events import StepReport
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import (
    count,
    fields,
    list_of,
    mapping_of,
    record,
    text,
    tuple_of,
    within,
)
from mmstable.optim.clipping import Clip, NormClip, check_modules, parse_clip
from mmstable.optim.grad_health import ParameterNames
from mmstable.registry import HOOKS, register_globally


@register_globally(HOOKS)
class GradClipHook(StepHook):
    """Clip gradients, by the same code as a safe wrapper's ``clip_grad``.

    Args:
        max_norm (float, optional): The largest norm; for the adaptive
            methods a limit on top of theirs. Defaults to None.
        norm_type (float or str): Order of the norm, or 'inf'. Defaults to 2.
        method (str): 'norm'; 'value' (needs ``clip_value``); 'agc', unit by
            unit (``clip_factor``, ``eps``, ``exclude``); 'zscore'
            (``zscore``, ``window``, ``warmup``) or 'percentile'
            (``percentile``, ``window``, ``warmup``) of recent norms.
            Defaults to 'norm'.
        configs (Sequence[dict], optional): Modules that are clipped by
            themselves, each a dict with ``module_name`` (one or several) and
            ``max_norm``, or ``method`` and its settings. What is given
            outside of ``configs`` is for all other parameters, which are not
            clipped without it. Defaults to None.
        **settings: Those of the method.
    """

    saved = staticmethod(
        record(
            counts=mapping_of(text(), tuple_of(count, count)),
            limits=mapping_of(
                text(), list_of(fields({'norms': list_of(within(0))}))
            ),
        )
    )

    def __init__(
        self,
        max_norm: float | None = None,
        norm_type: float | str = 2,
        method: str = 'norm',
        configs: Sequence[Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if max_norm is not None:
            settings['max_norm'] = max_norm
        self._clip = parse_clip(
            'GradClipHook', method, norm_type, configs, **settings
        )
        self._clips: dict[str, Clip] = {}
        self._counts: dict[str, list[int]] = {}

    def before_run(self, runner: Runner) -> None:
        """Take over the clipping of every optimizer of the run."""
        super().before_run(runner)
        one: Any = runner.optim_wrapper
        if isinstance(one, Mapping) or not hasattr(one, 'step'):
            # A run that does not train.
            return
        wrappers: dict[str, Any] = runner_view.wrappers(runner)
        parameters: list[str] = []
        for wrapper in wrappers.values():
            names = ParameterNames(wrapper.optimizer)
            names.bind_model(runner.model)
            parameters += names.all()
        check_modules('GradClipHook', self._clip, parameters)
        for name, wrapper in wrappers.items():
            if wrapper.clip_grad_kwargs:
                raise ConfigError(
                    'GradClipHook: gradients are clipped by '
                    f'`optim_wrapper.clip_grad={wrapper.clip_grad_kwargs}` '
                    'already. Keep one of the two.'
                )
            # Each optimizer has norms of its own, and learns its own limits.
            self._clips[name] = clip = copy.deepcopy(self._clip)
            if hasattr(wrapper, 'clip'):
                wrapper.clip = clip

    def before_train(self, runner: Runner) -> None:
        """Clip for wrappers that cannot do it themselves."""
        super().before_train(runner)
        for name, clip in self._clips.items():
            source: Any = self.monitor.sources[name]
            source.clip = clip

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Log the norm after clipping, and how often each group is cut."""
        if not report.applied or report.clipped_norm is None:
            return
        hub = runner.message_hub
        hub.update_scalar('train/grad_norm_clipped', report.clipped_norm)
        prefix = '' if len(self._clips) == 1 else f'{name}/'
        for clip in report.clips:
            counts = self._counts.setdefault(prefix + clip.group, [0, 0])
            counts[0] += clip.coef < 1.0
            counts[1] += 1
            key = f'train/stable/clipped/{prefix}{clip.group}'
            hub.update_scalar(key, counts[0] / counts[1])

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return dict(
            counts=copy.deepcopy(self._counts),
            limits={
                name: [group.limit.state_dict() for group in clip.groups]
                for name, clip in self._clips.items()
                if isinstance(clip, NormClip)
            },
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._counts = {k: list(v) for k, v in state['counts'].items()}
        for name, limits in state['limits'].items():
            clip = self._clips.get(name)
            if isinstance(clip, NormClip):
                for group, saved in zip(clip.groups, limits):
                    group.limit.load_state_dict(saved)
