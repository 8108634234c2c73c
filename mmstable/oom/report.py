"""Out-of-memory errors: recognise them, free their memory, report them."""

from __future__ import annotations

import ctypes
import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable

import torch
from mmengine.dist import get_rank
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module

from mmstable import runner_view
from mmstable.batch import batch_shapes, batch_size, bytes_of, name_sample
from mmstable.events.records import OutOfMemory
from mmstable.io.files import append
from mmstable.messages import N_, _, readable
from mmstable.optim.observer import monitor_of
from mmstable.state.device import device_module
from mmstable.torch_internals import in_backward

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
MOST_FILES = 5
_MOST_SAMPLES, _MOST_SHAPES, _MOST_MODULES = 64, 8, 10
_LONGEST = 2000
# A larger share of what the allocator holds is unused: fragmentation.
_FRAGMENTED = 0.2

_UNITS = {'': 1, 'k': 2**10, 'm': 2**20, 'g': 2**30, 't': 2**40}
_REQUESTED = re.compile(
    r'tried to allocate\s+([\d.]+)\s*(?:([kmgt])i?b\b|bytes)', re.IGNORECASE
)
_BACKWARD = (Tensor.backward.__code__, torch.autograd.backward.__code__)


def requested_bytes(text: str) -> int | None:
    """Read the size of the failed allocation from a message.

    Args:
        text (str): The message of an error.
    """
    match = _REQUESTED.search(text)
    if match is None:
        return None
    return int(float(match[1]) * _UNITS[(match[2] or '').lower()])


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
    """Return the phase of a training step in which an error was raised.

    By code alone: :func:`release` clears the variables of frames.
    """
    for frame, __ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code in _BACKWARD:
            return BACKWARD
        # The `step` of a wrapper or of an optimizer.
        if code.co_name == 'step' and '/optim/' in code.co_filename:
            return OPTIMIZER
    return FORWARD


class OomReport:
    """One batch that does not fit: the log lines, the event and the file.

    Args:
        runner (Runner): The runner.
        error (BaseException): The first error, with its frames.
        batch (Any): What the data loader gave.
        iteration (int): Its iteration.
    """

    def __init__(
        self,
        runner: Runner,
        error: BaseException,
        batch: Any,
        iteration: int,
    ) -> None:
        self._runner, self.iteration = runner, iteration
        self.phase = failed_phase(error)
        self.text = str(error)[:_LONGEST]
        *__, last = traceback.extract_tb(error.__traceback__) or [None]
        self._where = f'{last.filename}:{last.lineno}' if last else ''
        self.device = runner_view.device_of(runner.model)
        self.memory = dict(
            requested=requested_bytes(self.text),
            allocated=_ask(self.device, 'memory_allocated'),
            reserved=_ask(self.device, 'memory_reserved'),
            peak=_ask(self.device, 'max_memory_allocated'),
        )
        self.shapes = list(batch_shapes(batch))
        if len(self.shapes) > _MOST_SHAPES:
            self.shapes[_MOST_SHAPES:] = ['...']
        self._size = batch_size(batch)
        first = range(min(self._size, _MOST_SAMPLES))
        named = [name_sample(batch, index) for index in first]
        self.samples = [name for name in named if name]
        # Modules that can recompute, and why strategies cannot be tried.
        self.modules: list[str] = []
        self.reasons: list[str] = []
        self._outputs: dict[str, int] = {}

    def log(self, text: str) -> None:
        """Log a warning, on the rank that it happens to."""
        self._runner.logger.warning(f'mmstable: {text}')

    def emit(self, strategy: str, **more: Any) -> None:
        """Send the event to all hooks.

        Args:
            strategy (str): What was done.
            **more: Other fields of the event.
        """
        fields: dict[str, Any] = dict(
            phase=self.phase,
            rung=strategy,
            rank=get_rank(),
            shapes=tuple(self.shapes),
            samples=tuple(self.samples),
            device=str(self.device),
            **self.memory,
        )
        event = OutOfMemory.now(self.iteration, **{**fields, **more})
        monitor_of(self._runner).emit(self._runner, event)

    def write(self, done: str) -> str | None:
        """Write the file ``stability/out_of_memory/iter_N.txt``.

        Args:
            done (str): What was done about it.

        Returns:
            str or None: Its path; None if it cannot be written.
        """
        folder = runner_view.stability_folder(self._runner) / _FOLDER
        rank = f'.rank{get_rank()}' if get_rank() > 0 else ''
        path = Path(folder, f'iter_{self.iteration}{rank}.txt')
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(path, 'w', encoding='utf-8', opener=append) as file:
                file.write('\n'.join(self._lines(done)) + '\n')
        except OSError as error:
            # A full disk must not end a run that has just been saved.
            self.log(str(error))
            return None
        return str(path)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the outputs of modules in one forward pass."""
        self._outputs.clear()
        model = runner_view.saved_model(self._runner)
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

    def _add(
        self, name: str, module: Module, inputs: Any, output: Any
    ) -> None:
        # In the backward pass a module only computes again.
        if not in_backward():
            known = self._outputs.get(name, 0)
            self._outputs[name] = known + bytes_of(output)

    @property
    def is_fragmented(self) -> bool:
        """Whether the allocator holds much more than tensors take."""
        allocated, reserved = self.memory['allocated'], self.memory['reserved']
        if not reserved or allocated is None:
            return False
        return reserved - allocated > _FRAGMENTED * reserved

    def advice(self) -> list[str]:
        """Return lines of a config that need less memory, mildest first."""
        lines = []
        if self.modules:
            lines.append(
                "    custom_hooks = [dict(type='mmstable."
                f"SafeActivationCheckpointHook', modules={self.modules!r})]"
            )
        if self._size > 1:
            half = self._size // 2
            wrappers = runner_view.wrappers(self._runner).values()
            counts = max(map(runner_view.accumulative_counts, wrappers))
            lines.append(
                f'    train_dataloader = dict(batch_size={half}); '
                'optim_wrapper = dict(accumulative_counts='
                f'{counts * -(-self._size // half)})'
            )
        lines.append(
            "    optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper', "
            "dtype='bfloat16')"
        )
        return lines

    def _lines(self, done: str) -> Iterator[str]:
        yield _(
            'Iteration {iteration}: out of memory in the {phase}',
            iteration=self.iteration,
            phase=_(PHASES[self.phase]),
        )
        yield from (self.text, self._where, '')
        yield _('What was done: {rung}', rung=done)
        yield _('Batch: {shapes}', shapes=self.shapes)
        yield _('Samples: {samples}', samples=self.samples or _('unnamed'))
        yield ''
        for name, size in self.memory.items():
            if size is not None:
                yield _(_FACTS[name], size=readable(size))
        if self.is_fragmented:
            yield _(
                'Much of what the allocator holds is in pieces that nobody '
                'uses (fragmentation): set '
                'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the '
                'run.'
            )
        ordered = sorted(self._outputs.items(), key=lambda one: -one[1])
        largest = ordered[:_MOST_MODULES]
        if largest:
            yield ''
            yield _('Largest outputs of modules in this batch:')
        width = max((len(name) for name, __ in largest), default=0)
        for name, size in largest:
            yield f'    {name:{width}}  {readable(size)}'
        yield ''
        yield _('What needs less memory, in the config:')
        yield from self.advice()


def file_hint(path: str | None) -> str:
    """Return where the report is, if there is one."""
    return '' if path is None else _(' What to change: {path}', path=path)


def _ask(device: torch.device, name: str) -> int | None:
    """Call a function of ``torch.cuda`` or the like, if it exists."""
    function = getattr(device_module(device), name, None)
    return None if function is None else function(device)


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

    Without that the activations of a failed forward pass stay in memory for
    as long as the error.

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
            # Reading `f_locals` before has left a copy in the frame, which
            # is renewed now.
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
    module: Any = device_module(device)
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
