"""Estimate the memory of a model, its optimizer and its batches.

torch's MemTracker counts the tensors of a step at its peak, on fake tensors
where the model allows it, else on real ones. Few measurements find the
largest batch that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mmstable.batch import batch_of, bytes_of, tensors_in
from mmstable.oom.recompute import (
    blocks_of,
    choose_modules,
    recomputed,
)
from mmstable.torch_internals import memory_tools

# Measurements to find the largest batch.
_TRIALS = 12
# The search ends there.
LARGEST = 1 << 16


class Line(NamedTuple):
    """Bytes as a line over the size of a batch.

    Args:
        fixed (float): Bytes of an empty batch.
        each (float): Bytes of every sample.
    """

    fixed: float
    each: float

    @classmethod
    def through(cls, first: tuple[int, int], second: tuple[int, int]) -> Line:
        """Make the line through two measured (size, bytes)."""
        (small, low), (large, high) = first, second
        each = (high - low) / (large - small)
        return cls(low - each * small, each)

    def at(self, size: int) -> float:
        """Bytes of a batch of this size."""
        return self.fixed + self.each * size

    def fitting(self, limit: int) -> int:
        """Largest batch within a limit; 0 if none fits."""
        if self.each <= 0:
            return LARGEST if self.fixed <= limit else 0
        return max(0, min(LARGEST, int((limit - self.fixed) / self.each)))


def largest_batch(
    line: Line, limit: int, measure: Callable[[int], int]
) -> int:
    """Find the largest batch that fits, by measuring.

    Args:
        line (Line): A first guess.
        limit (int): Available bytes.
        measure (Callable): Bytes of a batch of a size.
    """
    fits, fails = 0, LARGEST + 1
    guess = line.fitting(limit)
    for _ in range(_TRIALS):
        guess = min(max(guess, fits + 1), fails - 1)
        if guess <= fits:
            break
        spare = limit - measure(guess)
        if spare >= 0:
            fits = guess
        else:
            fails = guess
        if line.each > 0:
            guess += int(spare / line.each)
        else:
            guess = (fits + fails) // 2
    return fits


FakeTensorMode, MemTracker = memory_tools()


class Peak(NamedTuple):
    """Bytes of tensors at the peak of a step.

    Args:
        weights (int): Parameters and buffers.
        gradients (int): Gradients, once all are there.
        optimizer (int): State of the optimizer.
        batch (int): The batch itself.
        total (int): All tensors at the peak, activations included. At that
            moment not all gradients need to be there.
    """

    weights: int
    gradients: int
    optimizer: int
    batch: int
    total: int

    @property
    def activations(self) -> int:
        """Activations and other temporary tensors, at the peak."""
        lasting = self.weights + self.optimizer + self.batch
        return max(0, self.total - lasting)


def can_measure() -> bool:
    """Whether this torch has a MemTracker."""
    return MemTracker is not None


def make_fake(model: nn.Module) -> Any:
    """Replace the tensors of a model by fakes, but for its preprocessor.

    Args:
        model (nn.Module): The model, which cannot be used otherwise.

    Returns:
        FakeTensorMode: The mode to run it in.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    preprocessor = getattr(model, 'data_preprocessor', None)
    kept = set(preprocessor.modules()) if preprocessor is not None else set()
    known: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = mode.from_tensor(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                known[id(tensor)] = nn.Parameter(
                    known[id(tensor)], tensor.requires_grad
                )
        return known[id(tensor)]

    # Keep all of them until the end: ids are reused.
    originals = []
    for module in set(model.modules()) - kept:
        for name, one in [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]:
            originals.append(one)
            setattr(module, name, fake(one))
    return mode


class StepMeter:
    """Measure steps of a model.

    Args:
        model (nn.Module): The model, fake or real.
        optimizer (Optimizer, optional): Its optimizer; None to measure
            predictions. Defaults to None.
        mode (FakeTensorMode, optional): The mode of :func:`make_fake`; None
            for a real model. Defaults to None.
        dtype (torch.dtype, optional): Type of autocast; None for none.
            Defaults to None.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer | None = None,
        mode: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._mode, self._dtype = mode, dtype

    def measure(self, batch: Any, accumulates: bool = False) -> Peak:
        """Measure a training step; without an optimizer, a prediction.

        Args:
            batch (Any): A batch of the data loader.
            accumulates (bool): Whether gradients of an earlier batch are
                there already. Defaults to False.
        """
        optimizer: Any = self._optimizer
        trains = optimizer is not None
        autocast = partial(
            torch.autocast, 'cpu', self._dtype, self._dtype is not None
        )
        model = self._model.train(trains)
        data = model.data_preprocessor(batch, trains)

        def predict() -> None:
            with torch.no_grad(), autocast():
                _call(model, data, 'predict')

        def step() -> None:
            with autocast():
                losses = _call(model, data, 'loss')
                loss, _ = model.parse_losses(losses)
            loss.backward()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        with self._mode or nullcontext():
            if optimizer is None:
                return self._track(data, predict)
            if not optimizer.state:
                step()
                update()
            if accumulates:
                step()
            return self._track(data, step, update)

    def _track(self, data: Any, *actions: Callable[[], None]) -> Peak:
        tracker = MemTracker()
        given = list(tensors_in(data))
        held = [one for one in (self._optimizer,) if one is not None]
        tracker.track_external(self._model, *held)
        tracker.track_external(*(p.grad for p in self._model.parameters()))
        if self._mode is None:
            # Fakes of them are tracked where they are used.
            tracker.track_external(*given)
        with _frozen_as_buffers(self._model), tracker:
            for action in actions:
                action()
        snapshot = tracker.get_tracker_snapshot('peak').values()
        total = sum(
            size
            for sizes in snapshot
            for kind, size in sizes.items()
            if getattr(kind, 'value', kind) == 'Total'
        )
        parameters = list(self._model.parameters())
        states = [dict(one) for opt in held for one in opt.state.values()]
        return Peak(
            weights=_size([*parameters, *self._model.buffers()]),
            gradients=_size(p for p in parameters if p.requires_grad)
            if held
            else 0,
            optimizer=_size(tensors_in(states)),
            batch=_size(given),
            total=total,
        )


@contextmanager
def _frozen_as_buffers(model: nn.Module) -> Iterator[None]:
    """Turn parameters without a gradient into buffers for a while.

    torch's MemTracker (2.13) registers a gradient hook on every parameter,
    which a frozen one refuses.
    """
    frozen = [
        (module, name, one)
        for module in model.modules()
        for name, one in module.named_parameters(recurse=False)
        if not one.requires_grad
    ]
    for module, name, one in frozen:
        del module._parameters[name]
        module.register_buffer(name, one.detach(), persistent=False)
    try:
        yield
    finally:
        for module, name, one in frozen:
            delattr(module, name)
            module.register_parameter(name, one)


def _call(model: Any, data: Any, mode: str) -> Any:
    is_dict = isinstance(data, dict)
    return model(**data, mode=mode) if is_dict else model(*data, mode=mode)


def _size(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


class Preset(NamedTuple):
    """The memory settings of a file in ``configs/_base_/memory``.

    In all of them the backbone keeps no activations.

    Args:
        name (str): Its file.
        dtype (str, optional): Type of autocast; None for that of the config.
        accumulation (int): Batches that make one step; the batch is divided
            by it, so that a step sees as many samples as before.
    """

    name: str
    dtype: str | None
    accumulation: int


# The fastest first.
PRESETS = (
    Preset('balanced', 'bfloat16', 1),
    Preset('max_saving', 'bfloat16', 2),
    Preset('conservative', None, 4),
)


# Sizes of batches that are run with real tensors.
_REAL_SIZES = (4, 8)
# Measures a batch of a size, with or without earlier gradients.
_Measure = Callable[[int, bool], Peak]


@dataclass(frozen=True)
class Setup:
    """The memory settings of a training run.

    Args:
        dtype (torch.dtype, optional): Type of autocast; None for none.
        accumulation (int): Batches that make one step. Defaults to 1.
        recomputed (tuple[str], optional): Patterns of the modules that keep
            no activations; None for all that are called a backbone. Defaults
            to ().
    """

    dtype: torch.dtype | None
    accumulation: int = 1
    recomputed: tuple[str, ...] | None = ()

    def with_preset(self, preset: Preset) -> Setup:
        """Add a preset."""
        return Setup(
            getattr(torch, preset.dtype) if preset.dtype else self.dtype,
            max(self.accumulation, preset.accumulation),
            recomputed=None,
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
        """Make a batch of a size."""
        return batch_of(self.samples, size, self.collate)

    @property
    def host_bytes(self) -> int:
        """Host memory of the batches that are read ahead."""
        batches = max(1, self.workers * self.prefetch)
        return batches * bytes_of(self.batch(self.batch_size))


@dataclass(frozen=True)
class Phase:
    """Memory of training, or of validation.

    Args:
        batch_size (int): The size of the batch.
        peak (Peak): Its memory.
        line (Line): Memory over the size of the batch.
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
    """Measure a model that can be built any number of times.

    Args:
        build (Callable): Returns a new model.
        build_optimizer (Callable): Returns an optimizer for a model.
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
        """Measure training."""
        return self._phase(data, setup, trains=True)

    def validation(self, data: Data, setup: Setup) -> Phase:
        """Measure validation."""
        return self._phase(data, setup, trains=False)

    def presets(self, data: Data, setup: Setup) -> dict[str, Phase]:
        """Measure training with each of the presets.

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

    def _phase(self, data: Data, setup: Setup, trains: bool) -> Phase:
        try:
            return self._phase_of(data, setup, trains, is_fake=True)
        except Exception as error:
            # Some models need values: measure with real tensors.
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            phase = self._phase_of(data, setup, trains, is_fake=False)
            return replace(phase, why_real=reason[:200])

    def _phase_of(
        self, data: Data, setup: Setup, trains: bool, is_fake: bool
    ) -> Phase:
        model = self._build()
        mode = make_fake(model) if is_fake else None
        with mode or nullcontext():
            optimizer = self._build_optimizer(model) if trains else None
        meter = StepMeter(model, optimizer, mode, setup.dtype)

        def measure(size: int, accumulates: bool) -> Peak:
            return meter.measure(data.batch(size), accumulates)

        find = self._fake_phase if is_fake else self._real_phase
        chosen = choose_modules(model, setup.recomputed, 'modules')
        blocks = [part for one in chosen.values() for part in blocks_of(one)]
        with recomputed(dict.fromkeys(blocks)):
            return find(data.batch_size, setup.accumulation > 1, measure)

    def _fake_phase(
        self, size: int, accumulates: bool, measure: _Measure
    ) -> Phase:
        peak = measure(size, accumulates)
        twice = measure(2 * size, accumulates)
        line = Line.through((size, peak.total), (2 * size, twice.total))
        largest = None
        if self._limit is not None:
            largest = largest_batch(
                line, self._limit, lambda n: measure(n, accumulates).total
            )
        return Phase(size, peak, line, largest=largest)

    def _real_phase(
        self, size: int, accumulates: bool, measure: _Measure
    ) -> Phase:
        small, large = _REAL_SIZES
        # With all gradients there, activations make the peak of small
        # batches, too.
        low = measure(small, True)
        high = measure(large, True)
        least = measure(large, accumulates)
        line = Line.through((small, low.total), (large, high.total))
        if not accumulates:
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
