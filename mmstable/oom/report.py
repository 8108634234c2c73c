"""Out-of-memory errors: recognise them, free their memory, report them."""

from __future__ import annotations

import ctypes
import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable

import torch
from mmengine.dist import get_rank
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from mmstable import runner_view
from mmstable.batch import batch_shapes, batch_size, name_sample
from mmstable.events.records import OutOfMemory
from mmstable.io.files import append
from mmstable.messages import N_, _, readable
from mmstable.optim.observer import monitor_of

FORWARD, BACKWARD, OPTIMIZER = 'forward', 'backward', 'optimizer'
PHASES = {
    FORWARD: N_('forward pass'),
    BACKWARD: N_('backward pass'),
    OPTIMIZER: N_('optimizer step'),
    'validation': N_('validation'),
    'test': N_('test'),
}
_FACTS = {
    'requested': N_('Asked for: {size}'),
    'allocated': N_('Tensors on the device then: {size}'),
    'reserved': N_('Held by the allocator then: {size}'),
    'peak': N_('Most tensors until then: {size}'),
}
_FOLDER = 'out_of_memory'
_MOST_FILES, _MOST_SAMPLES, _MOST_SHAPES, _MOST_MODULES = 5, 64, 8, 10
_LONGEST = 2000
# A larger share of what the allocator holds is unused: fragmentation.
_FRAGMENTED = 0.2

_UNITS = {'': 1, 'k': 2**10, 'm': 2**20, 'g': 2**30, 't': 2**40}
_REQUESTED = re.compile(
    r'tried to allocate\s+([\d.]+)\s*(?:([kmgt])i?b\b|bytes)', re.IGNORECASE
)
_BACKWARD = (Tensor.backward.__code__, torch.autograd.backward.__code__)


@dataclass(frozen=True)
class Failure:
    """An out-of-memory error.

    Args:
        phase (str): 'forward', 'backward' or 'optimizer'.
        text (str): The message of the error.
        where (str): The innermost line of Python.
        device (torch.device): Where the model is.
        memory (dict): Bytes that were 'requested', 'allocated' by tensors,
            'reserved' by the allocator, and the 'peak' of tensors until
            then; None for those that the device does not count.
    """

    phase: str
    text: str
    where: str
    device: torch.device
    memory: dict[str, int | None]

    @classmethod
    def of(cls, error: BaseException, device: torch.device) -> Failure:
        """Inspect an error and the device that it came from.

        Args:
            error (BaseException): The error.
            device (torch.device): Where the model is.
        """
        frames = traceback.extract_tb(error.__traceback__)
        return cls(
            phase=failed_phase(error),
            text=str(error)[:_LONGEST],
            where=f'{frames[-1].filename}:{frames[-1].lineno}'
            if frames
            else '',
            device=device,
            memory=dict(
                requested=requested_bytes(str(error)),
                allocated=_ask(device, 'memory_allocated'),
                reserved=_ask(device, 'memory_reserved'),
                peak=_ask(device, 'max_memory_allocated'),
            ),
        )

    @property
    def is_fragmented(self) -> bool:
        """Whether the allocator holds much more than tensors take."""
        allocated, reserved = self.memory['allocated'], self.memory['reserved']
        if not reserved or allocated is None:
            return False
        return reserved - allocated > _FRAGMENTED * reserved


def requested_bytes(text: str) -> int | None:
    """Read the size of the failed allocation from a message.

    Args:
        text (str): The message of an error.
    """
    match = _REQUESTED.search(text)
    if match is None:
        return None
    unit = (match[2] or '').lower()
    return int(float(match[1]) * _UNITS[unit])


def was_inside(error: BaseException, owner: object) -> bool:
    """Whether an error came out of a method of this object.

    Args:
        error (BaseException): The error, with its frames.
        owner (object): Any object.
    """
    return any(
        frame.f_locals.get('self') is owner
        for frame, __ in traceback.walk_tb(error.__traceback__)
    )


def failed_phase(error: BaseException) -> str:
    """Say in which phase of a training step an error was raised."""
    for frame, __ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in _BACKWARD:
            return BACKWARD
        owner = frame.f_locals.get('self')
        if frame.f_code.co_name == 'step' and (
            isinstance(owner, Optimizer) or hasattr(owner, 'optimizer')
        ):
            return OPTIMIZER
    return FORWARD


def _ask(device: torch.device, name: str) -> int | None:
    """Call a function of ``torch.cuda`` or the like, if it exists."""
    function = getattr(getattr(torch, device.type, None), name, None)
    return None if function is None else function(device)


@dataclass
class ActivationMeter:
    """Bytes of outputs by module, and peaks of the device by phase.

    Args:
        device (torch.device): Where the model is.
        outputs (dict): Bytes by name of the module. Defaults to {}.
        peaks (dict): The most bytes of tensors by phase, if the device
            counts them. Defaults to {}.
    """

    device: torch.device
    outputs: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def watch(self, model: Module) -> Iterator[None]:
        """Measure one forward pass.

        Args:
            model (Module): The model, without DDP and the like around it.
        """
        self.outputs.clear()
        self.peaks.clear()
        _ask(self.device, 'reset_peak_memory_stats')
        handles = [
            module.register_forward_hook(partial(self._add, name))
            for name, module in model.named_modules()
            # A container returns its child's output: do not count it twice.
            if name and not any(True for __ in module.children())
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def end_phase(self, name: str) -> None:
        """Note the peak of the phase that ends now.

        Args:
            name (str): The phase.
        """
        peak = _ask(self.device, 'max_memory_allocated')
        if peak is not None:
            self.peaks[name] = peak
            _ask(self.device, 'reset_peak_memory_stats')

    def _add(
        self, name: str, module: Module, inputs: Any, output: Any
    ) -> None:
        # In the backward pass a module only computes again.
        if torch._C._current_graph_task_id() != -1:
            return
        size = sum(
            leaf.numel() * leaf.element_size()
            for leaf in tree_flatten(output)[0]
            if isinstance(leaf, Tensor)
        )
        self.outputs[name] = self.outputs.get(name, 0) + size


@dataclass
class OomCase:
    """One batch that does not fit.

    Args:
        failure (Failure): The first error.
        iteration (int): The iteration.
        shapes (list[str]): Of its tensors.
        samples (list[str]): Names of its samples.
        size (int): How many it has; 0 if that is unknown.
        accumulation (int): Iterations that make one step.
        meter (ActivationMeter): Measurements of later attempts.
        modules (list[str]): Modules that can recompute. Defaults to [].
        reasons (list[str]): Why strategies could not be tried. Defaults to
            [].
    """

    failure: Failure
    iteration: int
    shapes: list[str]
    samples: list[str]
    size: int
    accumulation: int
    meter: ActivationMeter
    modules: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def describe(self, done: str, snapshot: str | None) -> str:
        """Return the text of the report.

        Args:
            done (str): What was done about it.
            snapshot (str, optional): The allocator's own file.
        """
        failure, advice = self.failure, self.advice()
        if failure.is_fragmented:
            advice.append(
                '    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True'
            )
        lines = [
            _(
                'Iteration {iteration}: out of memory in the {phase}',
                iteration=self.iteration,
                phase=_(PHASES[failure.phase]),
            ),
            failure.text,
            failure.where,
            '',
            _('What was done: {rung}', rung=done),
            _('Batch: {shapes}', shapes=self.shapes),
            _('Samples: {samples}', samples=self.samples or _('unnamed')),
            '',
            *self._memory(snapshot),
            *self._activations(),
            '',
            _('What needs less memory, in the config:'),
            *advice,
        ]
        return '\n'.join(lines) + '\n'

    def advice(self) -> list[str]:
        """Return lines of a config that need less memory, mildest first."""
        lines = []
        if self.modules:
            lines.append(
                "    custom_hooks = [dict(type='mmstable."
                f"SafeActivationCheckpointHook', modules={self.modules!r})]"
            )
        if self.size > 1:
            half = self.size // 2
            count = self.accumulation * -(-self.size // half)
            lines.append(
                f'    train_dataloader = dict(batch_size={half})'
                f'; optim_wrapper = dict(accumulative_counts={count})'
            )
        lines.append(
            "    optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper', "
            "dtype='bfloat16')"
        )
        return lines

    def _memory(self, snapshot: str | None) -> list[str]:
        lines = [
            _(_FACTS[name], size=readable(size))
            for name, size in self.failure.memory.items()
            if size is not None
        ]
        lines += [
            _(
                'Peak in the {phase}, as the batch came through: {size}',
                phase=_(PHASES[name]),
                size=readable(size),
            )
            for name, size in self.meter.peaks.items()
        ]
        if self.failure.is_fragmented:
            lines.append(
                _(
                    'Much of what the allocator holds is in pieces that '
                    'nobody uses (fragmentation): set '
                    'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before '
                    'the run.'
                )
            )
        if snapshot is not None:
            lines.append(
                _(
                    'What the allocator holds, for '
                    'https://pytorch.org/memory_viz: {path}',
                    path=snapshot,
                )
            )
        return lines

    def _activations(self) -> list[str]:
        ordered = sorted(self.meter.outputs.items(), key=lambda one: -one[1])
        largest = ordered[:_MOST_MODULES]
        if not largest:
            return []
        width = max(len(name) for name, __ in largest)
        return [
            '',
            _('Largest outputs of modules in this batch:'),
            *(
                f'    {name:{width}}  {readable(size)}'
                for name, size in largest
            ),
        ]


def save_snapshot(device: torch.device, path: Path) -> str | None:
    """Have the allocator of a device write down what it holds.

    Args:
        device (torch.device): Where the model is.
        path (Path): The file to write.

    Returns:
        str or None: The file; None if the device has no such thing.
    """
    module: Any = getattr(torch, device.type, None)
    memory = getattr(module, 'memory', None)
    dump = getattr(memory, '_dump_snapshot', None)
    if device.type == 'cpu' or dump is None:
        return None
    try:
        with open(path, 'wb', opener=append) as file:
            # By its number: torch would follow a link.
            dump(f'/dev/fd/{file.fileno()}')
    except Exception:
        # It is an extra, and memory is short.
        return None
    return str(path)


class OomReporter:
    """Reports the out-of-memory errors of one run.

    Args:
        runner (Runner): The runner.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._files = 0

    @property
    def writes(self) -> bool:
        """Whether there will be another file."""
        return self._files < _MOST_FILES

    def log(self, text: str) -> None:
        """Log a warning, on the rank that it happens to.

        Args:
            text (str): The warning.
        """
        self._runner.logger.warning(f'mmstable: {text}')

    def open(self, failure: Failure, batch: Any, iteration: int) -> OomCase:
        """Describe a batch that does not fit.

        Args:
            failure (Failure): The first error.
            batch (Any): What the data loader gave.
            iteration (int): Its iteration.
        """
        size, shapes = batch_size(batch), list(batch_shapes(batch))
        if len(shapes) > _MOST_SHAPES:
            shapes[_MOST_SHAPES:] = ['...']
        first = range(min(size, _MOST_SAMPLES))
        named = [name_sample(batch, index) for index in first]
        wrappers = runner_view.wrappers(self._runner).values()
        return OomCase(
            failure,
            iteration,
            shapes=shapes,
            samples=[name for name in named if name],
            size=size,
            accumulation=max(
                map(runner_view.accumulative_counts, wrappers), default=1
            ),
            meter=ActivationMeter(failure.device),
        )

    def write(self, case: OomCase, done: str) -> str | None:
        """Write the report, if there are not too many of them.

        Args:
            case (OomCase): The batch that did not fit.
            done (str): What was done about it.
        """
        if not self.writes:
            return None
        self._files += 1
        folder = runner_view.stability_folder(self._runner) / _FOLDER
        rank = f'.rank{get_rank()}' if get_rank() > 0 else ''
        path = Path(folder, f'iter_{case.iteration}{rank}.txt')
        snapshot = path.with_suffix('.pickle')
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = save_snapshot(case.failure.device, snapshot)
            with open(path, 'w', encoding='utf-8', opener=append) as file:
                file.write(case.describe(done, written))
        except OSError as error:
            # A full disk must not end a run that has just been saved.
            self.log(str(error))
            return None
        return str(path)

    def emit(self, case: OomCase, strategy: str, **more: Any) -> None:
        """Send the event to all hooks.

        Args:
            case (OomCase): The batch that did not fit.
            strategy (str): What was done.
            **more: Other fields of the event.
        """
        fields: dict[str, Any] = dict(
            phase=case.failure.phase,
            rung=strategy,
            rank=get_rank(),
            shapes=tuple(case.shapes),
            samples=tuple(case.samples),
            device=str(case.failure.device),
            **case.failure.memory,
        )
        event = OutOfMemory.now(case.iteration, **{**fields, **more})
        monitor_of(self._runner).emit(self._runner, event)


def file_hint(path: str | None) -> str:
    """Return where the report is, if there is one."""
    return '' if path is None else _(' What to change: {path}', path=path)


# It has another name before torch 2.5.
_TYPES: tuple[type[BaseException], ...] = (
    getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError),
    torch.cuda.OutOfMemoryError,
    MemoryError,
)
# What libraries and back-ends say in a plain RuntimeError, in lower case.
_WORDS = (
    'out of memory',
    "can't allocate memory",
    'cannot allocate memory',
    'not enough memory',
    'insufficient memory',
    'alloc_failed',
    'cublas_status_not_initialized when calling cublascreate',
    'memory allocation failed',
    'failed to allocate memory',
    # Ascend: the runtime's code for it.
    'error code is 207018',
    'ej0001',
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory left.

    Args:
        error (BaseException): Any error.
    """
    if isinstance(error, _TYPES):
        return True
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    text = str(error).lower()
    return any(word in text for word in _WORDS)


def release(error: BaseException) -> None:
    """Drop what an error keeps alive: all variables of the failed calls.

    Without that the activations of a failed forward pass stay in memory as
    long as somebody holds the error.

    Args:
        error (BaseException): An error that was caught.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        # Frames that still run are left alone.
        traceback.clear_frames(one.__traceback__)
        for frame, __ in traceback.walk_tb(one.__traceback__):
            # Whoever has read this before has left a copy in the frame,
            # which is renewed now.
            _renewed = frame.f_locals
        pending += [one.__cause__, one.__context__]


def empty_cache(device: torch.device, everything: bool = True) -> None:
    """Give back all memory of a device that nobody uses.

    Args:
        device (torch.device): Where the model is.
        everything (bool): Whether to look for it among old objects, too,
            which may take a second. Defaults to True.
    """
    gc.collect(2 if everything else 1)
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, 'empty_cache'):
        module.empty_cache()
    trim = _trimmer()
    if trim is not None and device.type == 'cpu':
        trim(0)


@cache
def _trimmer() -> Callable[[int], int] | None:
    """What gives free memory of the host back; only glibc has it."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
