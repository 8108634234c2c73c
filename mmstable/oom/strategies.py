"""Ways to train on a batch that does not fit in memory, mildest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module

from mmstable import runner_view
from mmstable.batch import batch_size, take_samples
from mmstable.messages import N_, _
from mmstable.oom.recompute import (
    batch_norms,
    blocks_of,
    choose_modules,
    part_sizes,
    recomputed,
)
from mmstable.settings import (
    flag,
    integer,
    known_settings,
    mapping,
    names,
    overriding,
)

# A milder strategy that fails repeatedly is tried after ever longer periods,
# up to this multiple of the calm period.
_LONGEST_CALM = 64
_CHECKS: dict[str, Any] = dict(
    enabled=flag,
    chunk=names,
    offload=flag,
    allow_approximate=flag,
    max_skipped=partial(integer, at_least=0),
    calm_period=integer,
)


@dataclass(frozen=True)
class OomSettings:
    """The settings ``oom=dict(...)`` of a train loop.

    Args:
        enabled (bool): Whether to go on after an out-of-memory error.
            Defaults to True.
        chunk (tuple[str]): Names of the modules, or regular expressions for
            whole names, that may see a batch part by part. Each sample must
            be computed by itself there. Defaults to (), which means all
            modules that are called ``backbone``, or end with ``_backbone``.
        offload (bool, optional): Whether activations may be moved to the
            memory of the host. Defaults to None, which means on an
            accelerator.
        allow_approximate (bool): Whether a batch may be trained on in
            several parts, each with a loss of its own, if nothing else
            helps. The gradients then differ from those of the batch.
            Defaults to False.
        max_skipped (int): Most batches to leave out in a run before it is
            stopped. Defaults to 10.
        calm_period (int): Iterations with batches of the same shapes after
            which a milder remedy is tried again. Defaults to 200.
    """

    enabled: bool = True
    chunk: tuple[str, ...] = ()
    offload: bool | None = None
    allow_approximate: bool = False
    max_skipped: int = 10
    calm_period: int = 200

    @classmethod
    def parse(cls, owner: str, given: Any) -> OomSettings:
        """Check settings of a config.

        Args:
            owner (str): The class that has them.
            given (Any): A dict, or None for all defaults.
        """
        where = f'{owner}: `oom`'
        settings = overriding(mapping(owner, 'oom', given))
        known_settings(where, settings, tuple(_CHECKS))
        for name, value in settings.items():
            if name != 'offload' or value is not None:
                settings[name] = _CHECKS[name](where, name, value)
        return cls(**settings)


RETRY, OFFLOAD, RECOMPUTE = 'retry', 'offload', 'recompute'
CHUNK, SPLIT, SKIP = 'chunk', 'split', 'skip'
_DESCRIPTIONS = {
    RETRY: N_('the batch once more with an empty cache: same gradients'),
    OFFLOAD: N_(
        'activations in the memory of the host: slower, same gradients'
    ),
    RECOMPUTE: N_(
        'activations of {modules} computed again in the backward pass: '
        'slower, same gradients'
    ),
    CHUNK: N_(
        '{modules} in {parts} parts of the batch, with one loss over the '
        'whole batch: slower, gradients differ by rounding{note}'
    ),
    SPLIT: N_(
        '{parts} parts of the batch, each with a loss of its own: '
        'approximate, because losses that are averaged over valid pixels or '
        'positives, and BatchNorm, depend on the whole batch'
    ),
    SKIP: N_('leaving the batch out'),
}


@dataclass(frozen=True)
class OomStrategy:
    """One way to run the training step of a batch.

    Args:
        name (str): RETRY with an empty cache, OFFLOAD activations to the
            host, RECOMPUTE activations in the backward pass, CHUNK: the same
            part by part, SPLIT the batch into micro-batches, or SKIP it.
        parts (int): Parts of the batch. Defaults to 1.
    """

    name: str
    parts: int = 1

    def __str__(self) -> str:
        return f'{self.name}/{self.parts}' if self.parts > 1 else self.name

    def run(
        self, runner: Runner, batch: Any, modules: Mapping[str, Module]
    ) -> Any:
        """Return the outputs of the model's ``train_step``.

        Args:
            runner (Runner): The runner.
            batch (Any): What the data loader gave.
            modules (Mapping[str, Module]): Modules that can recompute.
        """
        model: Any = runner.model
        wrapper = runner.optim_wrapper
        if self.name == SPLIT:
            return _train_in_parts(model, batch, wrapper, self.parts)
        saving: AbstractContextManager = nullcontext()
        if self.name == OFFLOAD:
            saving = torch.autograd.graph.save_on_cpu()
        elif self.name == RECOMPUTE:
            saving = recomputed(
                block for one in modules.values() for block in blocks_of(one)
            )
        elif self.name == CHUNK:
            saving = recomputed(modules.values(), self.parts)
        with saving:
            return model.train_step(batch, optim_wrapper=wrapper)


@dataclass
class Known:
    """The strategy for batches of certain shapes.

    Args:
        strategy (OomStrategy): The strategy.
        calm (int): Batches until a milder one is tried.
        successes (int): Those that have fitted. Defaults to 0.
        is_trial (bool): Whether the strategy follows a calm period, and may
            prove too mild. Defaults to False.
    """

    strategy: OomStrategy
    calm: int
    successes: int = 0
    is_trial: bool = False


class OomStrategies:
    """The strategies of a run, and the one that worked for each shape.

    Args:
        runner (Runner): The runner, whose model and wrappers are built.
        settings (OomSettings): What is allowed.
        owner (str): Whose settings they are.
        known (dict): The strategy by the shapes of batches.
    """

    def __init__(
        self,
        runner: Runner,
        settings: OomSettings,
        owner: str,
        known: dict[tuple[str, ...], Known],
    ) -> None:
        self._runner = runner
        self._settings = settings
        self.known = known
        self._is_compiled = runner_view.is_compiled(runner.model)
        self.device = next(runner.model.parameters()).device
        self.modules: dict[str, Module] = {}
        model = runner_view.saved_model(runner)
        if settings.chunk or not self._is_compiled:
            patterns = settings.chunk or None
            try:
                self.modules = choose_modules(model, patterns, 'chunk')
            except ValueError as error:
                raise ValueError(f'{owner}: `oom`: {error}') from None

    def of(self, batch: Any) -> list[OomStrategy]:
        """Return all strategies for a batch, the mildest first.

        Args:
            batch (Any): What the data loader gave.
        """
        offload = self._settings.offload
        if offload is None:
            offload = self.device.type != 'cpu'
        computes = bool(self.modules) and not self._is_compiled
        splits = self._settings.allow_approximate and (
            not runner_view.has_many_wrappers(self._runner)
        )
        samples = batch_size(batch)
        parts = [
            2**n for n in range(1, samples.bit_length()) if 2**n < samples
        ]
        if samples > 1:
            parts.append(samples)
        strategies = [OomStrategy(RETRY)]
        if offload:
            strategies.append(OomStrategy(OFFLOAD))
        if computes:
            strategies.append(OomStrategy(RECOMPUTE))
            strategies += [OomStrategy(CHUNK, count) for count in parts]
        if splits:
            strategies += [OomStrategy(SPLIT, count) for count in parts]
        return [*strategies, OomStrategy(SKIP)]

    def missing(self, batch: Any) -> list[str]:
        """Return why some strategies are not available.

        Args:
            batch (Any): What the data loader gave.
        """
        reasons = []
        if self._is_compiled:
            reasons.append(_('the model is compiled'))
        elif not self.modules:
            reasons.append(
                _(
                    "the model has no module called 'backbone'. Name those "
                    'that compute each sample by itself: '
                    "train_cfg.oom=dict(chunk=['...'])"
                )
            )
        if batch_size(batch) < 2:
            reasons.append(
                _('the batch has one sample, or its size cannot be told')
            )
        return reasons

    def note_success(self, shapes: tuple[str, ...], batch: Any) -> None:
        """Count a batch that fitted with the strategy it started with.

        Args:
            shapes (tuple[str]): Its shapes.
            batch (Any): What the data loader gave.
        """
        known = self.known[shapes]
        known.successes += 1
        if known.successes < known.calm:
            return
        strategies = self.of(batch)
        index = 0
        if known.strategy in strategies:
            index = strategies.index(known.strategy) - 1
        # RETRY, the first one, is no way to start.
        if index < 1:
            del self.known[shapes]
        else:
            self.known[shapes] = Known(
                strategies[index], known.calm, is_trial=True
            )

    def note_remedy(
        self, shapes: tuple[str, ...], strategy: OomStrategy
    ) -> None:
        """Start with this strategy from now on.

        Args:
            shapes (tuple[str]): The shapes of the batch.
            strategy (OomStrategy): The strategy that worked.
        """
        if strategy.name == RETRY:
            # The lack of memory was temporary.
            return
        known = self.known.get(shapes)
        calm = self._settings.calm_period
        if known is not None:
            longest = calm * _LONGEST_CALM
            calm = min(known.calm * (2 if known.is_trial else 1), longest)
        self.known[shapes] = Known(strategy, calm)

    def gradients(self, strategy: OomStrategy) -> tuple[str, str]:
        """Compare gradients with those of the whole batch; and say why.

        Args:
            strategy (OomStrategy): The strategy that worked.
        """
        if strategy.name in (RETRY, OFFLOAD, RECOMPUTE):
            return 'equal', ''
        if strategy.name == CHUNK and not self._norms():
            return 'rounding', ''
        return 'approximate', self.describe(strategy)

    def describe(self, strategy: OomStrategy) -> str:
        """Describe a strategy and its effect on gradients.

        Args:
            strategy (OomStrategy): The strategy.
        """
        note = ''
        if strategy.name == CHUNK and (norms := self._norms()):
            note = _(
                '; but {count:layer normalises|layers normalise} by the '
                'statistics of each part ({name}), which makes them '
                'approximate',
                count=len(norms),
                name=norms[0],
            )
        # Not every description uses all of them.
        fields = dict(
            modules=list(self.modules), parts=strategy.parts, note=note
        )
        return _(_DESCRIPTIONS[strategy.name], **fields)

    def _norms(self) -> list[str]:
        return batch_norms(list(self.modules.values()))


def _train_in_parts(
    model: Module, batch: Any, wrapper: Any, parts: int
) -> Any:
    """Make one update by the average of the losses of parts of a batch.

    That is the loss of the batch only if it is a mean over samples.
    """
    sizes = part_sizes(batch_size(batch), parts)
    shares = [size / sum(sizes) for size in sizes]
    stand_in, outputs, begin = _PartWrapper(wrapper), [], 0
    for size, share in zip(sizes, shares):
        samples = list(range(begin, begin + size))
        begin += size
        stand_in.share, stand_in.is_last = share, begin == sum(sizes)
        outputs.append(
            model.train_step(  # type: ignore[operator]
                take_samples(batch, samples), optim_wrapper=stand_in
            )
        )
    if not all(isinstance(one, Mapping) for one in outputs):
        return outputs[-1]
    merged = dict(outputs[-1])
    for name, value in merged.items():
        if isinstance(value, Tensor) and all(name in one for one in outputs):
            values = [one[name] * s for one, s in zip(outputs, shares)]
            merged[name] = torch.stack(values).sum(0)
    return merged


class _PartWrapper:
    """Takes the place of a wrapper; only the last part makes a step."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._before: Tensor | float = 0.0
        self.share = 1.0
        self.is_last = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapper, name)

    @contextmanager
    def optim_context(self, model: Any) -> Iterator[None]:
        """The context of a forward pass; only the last one synchronises."""
        alone = nullcontext()
        if not self.is_last and hasattr(model, 'no_sync'):
            alone = model.no_sync()
        with self._wrapper.optim_context(model), alone:
            yield

    def update_params(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Add up gradients; make the step with the last part."""
        loss = loss * self.share
        if self.is_last:
            # For the sake of reports: a constant has no gradient.
            loss = loss + self._before
            self._wrapper.update_params(loss, *args, **kwargs)
            return
        self._before = self._before + loss.detach()
        loss = self._wrapper.scale_loss(loss)
        scaler = runner_view.loss_scaler(self._wrapper)
        if scaler is not None:
            loss = scaler.scale(loss)
        loss.backward()
