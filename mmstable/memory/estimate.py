"""What a model, its optimizer and its batches take, before any training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from mmstable.memory.batches import batch_of, bytes_of
from mmstable.memory.fitting import Line, largest_batch
from mmstable.memory.module_choice import (
    blocks_of,
    choose_modules,
    find_backbones,
)
from mmstable.memory.presets import PRESETS, Preset
from mmstable.memory.recompute import recomputed
from mmstable.memory.tensor_bytes import Peak, StepMeter, make_fake

# Batches that are small enough to be run for real.
_REAL_SIZES = (4, 8)
_Measure = Callable[[StepMeter, int, bool], Peak]


@dataclass(frozen=True)
class Setup:
    """How a model is trained, as far as memory is concerned.

    Args:
        dtype (torch.dtype, optional): What autocast casts to; None for none.
        accumulation (int): Batches that make one step. Defaults to 1.
        recomputed (tuple[str], optional): Patterns of the modules that keep
            no activations; None for all that are called a backbone. Defaults
            to ().
    """

    dtype: torch.dtype | None
    accumulation: int = 1
    recomputed: tuple[str, ...] | None = ()

    def with_preset(self, preset: Preset) -> Setup:
        """The same with a preset on top."""
        dtype = self.dtype
        if preset.dtype is not None:
            dtype = getattr(torch, preset.dtype)
        recomputed = None if preset.recomputes else self.recomputed
        return replace(
            self,
            dtype=dtype,
            accumulation=max(self.accumulation, preset.accumulation),
            recomputed=recomputed,
        )


@dataclass(frozen=True)
class Data:
    """Samples of a dataset, and how they become a batch.

    Args:
        samples (Sequence): Some samples.
        collate (Callable): Makes a batch of a list of them.
        batch_size (int): How many are in a batch.
        workers (int): Processes that read them. Defaults to 0.
        prefetch (int): Batches that each of those reads ahead. Defaults to
            0.
    """

    samples: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    batch_size: int
    workers: int = 0
    prefetch: int = 0

    def batch(self, size: int) -> Any:
        """A batch of a size."""
        return batch_of(self.samples, size, self.collate)

    @property
    def host_bytes(self) -> int:
        """What batches that are read ahead take in the memory of the host."""
        batches = max(1, self.workers * self.prefetch)
        return batches * bytes_of(self.batch(self.batch_size))


@dataclass(frozen=True)
class Phase:
    """What one kind of step takes.

    Args:
        batch_size (int): The size of the batch.
        peak (Peak): What it takes.
        line (Line): The same for batches of all sizes.
        why_real (str): Why it was measured with real tensors, on small
            batches, and extrapolated; '' if it was not.
        largest (int, optional): The largest batch that fits, if there is a
            limit. Defaults to None.
    """

    batch_size: int
    peak: Peak
    line: Line
    why_real: str = ''
    largest: int | None = None


class Estimator:
    """Measures a model that can be built any number of times.

    Args:
        build (Callable): Gives a new model.
        build_optimizer (Callable): Gives an optimizer for a model.
        limit (int, optional): Memory of the device, in bytes. Defaults to
            None.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        build_optimizer: Callable[[nn.Module], Optimizer],
        limit: int | None = None,
    ) -> None:
        self._build, self._build_optimizer = build, build_optimizer
        self._limit = limit

    def training(self, data: Data, setup: Setup) -> Phase:
        """What training takes."""

        def measure(meter: StepMeter, size: int, accumulates: bool) -> Peak:
            return meter.training(data.batch(size), accumulates)

        return self._phase(data, setup, measure, trains=True)

    def validation(self, data: Data, setup: Setup) -> Phase:
        """What validation takes."""

        def measure(meter: StepMeter, size: int, _: bool) -> Peak:
            return meter.prediction(data.batch(size))

        return self._phase(data, setup, measure, trains=False)

    def presets(self, data: Data, setup: Setup) -> dict[str, Phase]:
        """What training takes with each of the presets.

        A step sees as many samples as before: where a preset accumulates,
        its batch is smaller.
        """
        found = {}
        for preset in PRESETS:
            size = max(1, data.batch_size // preset.accumulation)
            smaller = replace(data, batch_size=size)
            found[preset.name] = self.training(
                smaller, setup.with_preset(preset)
            )
        return found

    def _phase(
        self,
        data: Data,
        setup: Setup,
        measure: _Measure,
        trains: bool,
    ) -> Phase:
        try:
            return self._fake_phase(data.batch_size, setup, measure, trains)
        except Exception as error:
            # Whatever a model does that needs values: try it with values.
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            phase = self._real_phase(data.batch_size, setup, measure, trains)
            return replace(phase, why_real=reason[:200])

    def _fake_phase(
        self,
        size: int,
        setup: Setup,
        measure: _Measure,
        trains: bool,
    ) -> Phase:
        model = self._build()
        mode = make_fake(model)
        with mode:
            optimizer = self._build_optimizer(model) if trains else None
        meter = StepMeter(model, optimizer, mode, setup.dtype)
        waits = setup.accumulation > 1
        with self._recomputing(model, setup):
            peak = measure(meter, size, waits)
            twice = measure(meter, 2 * size, waits)
            line = Line.through((size, peak.total), (2 * size, twice.total))
            largest = None
            if self._limit is not None:
                largest = largest_batch(
                    line, self._limit, lambda n: measure(meter, n, waits).total
                )
        return Phase(size, peak, line, largest=largest)

    def _real_phase(
        self,
        size: int,
        setup: Setup,
        measure: _Measure,
        trains: bool,
    ) -> Phase:
        model = self._build()
        optimizer = self._build_optimizer(model) if trains else None
        meter = StepMeter(model, optimizer, None, setup.dtype)
        small, large = _REAL_SIZES
        with self._recomputing(model, setup):
            # With all gradients there, activations make the peak of small
            # batches, too.
            low = measure(meter, small, True)
            high = measure(meter, large, True)
            least = measure(meter, large, setup.accumulation > 1)
        line = Line.through((small, low.total), (large, high.total))
        if setup.accumulation == 1:
            line = line._replace(fixed=line.fixed - low.gradients)
        largest = None
        if self._limit is not None:
            fits = least.total <= self._limit
            largest = line.fitting(self._limit) if fits else 0
        peak = low._replace(
            batch=low.batch * size // small,
            total=max(round(line.at(size)), least.total),
        )
        return Phase(size, peak, line, largest=largest)

    @staticmethod
    def _recomputing(
        model: nn.Module, setup: Setup
    ) -> AbstractContextManager[None]:
        chosen = {}
        if setup.recomputed is None:
            chosen = find_backbones(model)
        elif setup.recomputed:
            chosen = choose_modules(model, setup.recomputed, 'modules')
        blocks = [part for one in chosen.values() for part in blocks_of(one)]
        return recomputed(dict.fromkeys(blocks))
