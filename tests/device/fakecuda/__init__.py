"""A simulated CUDA device on a CPU-only torch; import it before torch.

The README beside this folder says what is simulated, and what is not.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import FrameType, SimpleNamespace
from typing import Any

from tests.device.build import build, torch_folder

if 'torch' in sys.modules:
    raise ImportError('import the simulated device before torch')

_INT, _LONG, _TEXT = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
# By function of device.cpp: what it returns, and what it takes.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    'start': (None, []),
    'hand_out_defaults': (None, [_INT]),
    'devices': (_INT, []),
    'get_device': (_INT, []),
    'set_device': (None, [_INT]),
    'count': (None, [_INT]),
    'trace': (None, [_INT]),
    'callback': (None, [ctypes.c_void_p]),
    'kernels': (_LONG, []),
    'syncs': (_LONG, []),
    'races': (_LONG, []),
    'refused': (_LONG, []),
    'register': (_INT, [ctypes.c_void_p, _LONG]),
    'unregister': (_INT, [ctypes.c_void_p]),
    'pending': (_LONG, []),
    'reset': (None, []),
    'launches': (_LONG, [_TEXT, _LONG]),
    'memory': (_LONG, [_INT, _INT]),
    'reset_peak': (None, [_INT]),
    'set_limit': (None, [_INT, _LONG]),
    'context': (_INT, [_INT]),
    'touch': (None, [_INT]),
    'broken': (_INT, []),
    'break': (None, [_TEXT, _INT, _LONG, _INT]),
    'hang': (None, [_INT]),
    'repair': (None, []),
    'sequence': (ctypes.c_uint64, []),
    'next_stream': (_INT, []),
    'get_stream': (_INT, [_INT]),
    'set_stream': (None, [_INT, _INT]),
    'stream_waits': (None, [_INT, _INT, _INT, ctypes.c_uint64]),
    'query': (_INT, [_INT, _INT, ctypes.c_uint64]),
    'arrive': (None, [_INT, _INT, ctypes.c_uint64]),
    'wait': (_INT, [_TEXT, _INT, _INT]),
}


def _load() -> SimpleNamespace:
    folder = torch_folder() / 'lib'
    for name in ('libc10.so', 'libtorch_cpu.so'):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL)
    found = SimpleNamespace()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f'fc_{name}')
        function.restype, function.argtypes = result, arguments
        # Functions of ctypes have no hash, which torch's compiler asks for.
        setattr(found, name, partial(function))
    return found


_c = _load()
_c.start()

import torch  # noqa: E402
import torch.cuda  # noqa: E402

_CAPACITY = int(float(os.environ.get('FAKECUDA_GIB', '4')) * 2**30)
_ALL_STREAMS = -1
_BROKEN = 2
_EVERYTHING = 2**64 - 1


def break_device(
    words: str = 'device-side assert triggered',
    code: int = 710,
    after: int = -1,
    late: bool = False,
) -> None:
    """Let every call of the device fail until the process ends.

    Args:
        words (str): What CUDA calls the error.
            Defaults to 'device-side assert triggered'.
        code (int): Its number. Defaults to 710.
        after (int): The number of kernels that still work; -1 for now.
            Defaults to -1.
        late (bool): Whether later kernels can be launched until the host
            waits for one. Defaults to False.
    """
    _c.__dict__['break'](words.encode(), code, after, int(late))


def hang_device(on: bool = True) -> None:
    """Let everything wait for ever that waits for the device."""
    _c.hang(int(on))


def repair_device() -> None:
    """End what :func:`break_device` and :func:`hang_device` began."""
    _c.repair()


def set_capacity(size: int, device: int = 0) -> None:
    """Set the memory of a device in bytes; 0 for no limit."""
    _c.set_limit(device, int(size))


def pinned_bytes(peak: bool = False) -> int:
    """Pinned host memory, in powers of two as torch's allocator takes it."""
    return _c.memory(0, 4 if peak else 3)


def pending_copies() -> int:
    """Copies to pinned memory that nothing has waited for."""
    return _c.pending()


def refused_calls() -> int:
    """Calls of the device since it broke, each of which has raised."""
    return _c.refused()


def contexts() -> list[int]:
    """Devices on which this process has opened a context."""
    return [one for one in range(_c.devices()) if _c.context(one)]


@dataclass
class Counts:
    """The work of a device.

    Args:
        kernels (int): Launches.
        syncs (int): Waits of the host.
        races (int): Copies whose source another stream, or the host, may
            write meanwhile.
        launches (Counter): Launches by kernel, copies and their bytes.
        sync_places (Counter): Waits by kind and Python lines.
        kernel_places (Counter): Launches by Python lines.
    """

    kernels: int = 0
    syncs: int = 0
    races: int = 0
    launches: Counter[str] = field(default_factory=Counter)
    sync_places: Counter[str] = field(default_factory=Counter)
    kernel_places: Counter[str] = field(default_factory=Counter)


_counts: Counts | None = None


def _place() -> str:
    """The two innermost lines outside torch and this file."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < 2:
        name = _shown_name(frame.f_code.co_filename)
        if name:
            lines.append(f'{name}:{frame.f_lineno}')
        frame = frame.f_back
    return ' < '.join(lines)


@cache
def _shown_name(path: str) -> str:
    """The name of a file in a place; empty for those that are left out."""
    hidden = ('/torch/', __file__, 'contextlib')
    if any(part in path for part in hidden):
        return ''
    return path.rsplit('site-packages/', maxsplit=1)[-1]


@ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64)
def _notify(kind: bytes, name: bytes, amount: int) -> None:
    if _counts is None:
        return
    if kind == b'sync':
        _counts.sync_places[f'{name.decode()}: {_place()}'] += 1
    elif kind == b'kernel':
        _counts.kernel_places[_place()] += amount


_c.callback(_notify)


@contextmanager
def counting(places: bool = False) -> Iterator[Counts]:
    """Count launches and waits; with ``places``, by line of launch too."""
    global _counts
    counts = _counts = Counts()
    _c.reset()
    _c.trace(int(places))
    _c.count(1)
    try:
        yield counts
    finally:
        _c.count(0)
        _c.trace(0)
        _counts = None
        counts.kernels, counts.syncs = _c.kernels(), _c.syncs()
        counts.races = _c.races()
        buffer = ctypes.create_string_buffer(_c.launches(None, 0) + 4096)
        _c.launches(buffer, len(buffer))
        for line in buffer.value.decode().splitlines():
            name, number = line.rsplit(' ', 1)
            counts.launches[name] += int(number)


def _raise_if_broken() -> None:
    if _c.broken():
        # Raises the error in torch's words.
        torch.empty(1, device='cuda').fill_(0)


def _index(device: Any) -> int:
    if device is None:
        return _c.get_device()
    if isinstance(device, int):
        return device if device >= 0 else _c.get_device()
    index = torch.device(device).index
    return _c.get_device() if index is None else index


def _wait(name: str, device: int, stream: int) -> None:
    if _c.wait(name.encode(), device, stream) == _BROKEN:
        _raise_if_broken()


class Stream:
    """``torch.cuda.Stream``."""

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.device_index = (
            _index(device) if device_index is None else device_index
        )
        self.device = torch.device('cuda', self.device_index)
        self.device_type = 1
        self.priority = priority
        self.stream_id = _c.next_stream() if stream_id is None else stream_id
        self.cuda_stream = self.stream_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((self.device_index, self.stream_id))

    def synchronize(self) -> None:
        _wait('stream.synchronize', self.device_index, self.stream_id)

    def query(self) -> bool:
        return _query(self.device_index, self.stream_id, _EVERYTHING)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


def _query(device: int, stream: int, seq: int) -> bool:
    found = _c.query(device, stream, seq)
    if found == _BROKEN:
        _raise_if_broken()
    return found == 0


class Event:
    """``torch.cuda.Event``; work arrives with the third query at last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._stream: Stream | None = None
        self._seq = self._queries = 0
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        _raise_if_broken()
        self._stream = stream or torch.cuda.current_stream()
        self._seq, self._queries = _c.sequence(), 0
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        if self._stream is not None:
            waiting = stream or torch.cuda.current_stream()
            _c.stream_waits(
                waiting.device_index,
                waiting.stream_id,
                self._stream.stream_id,
                self._seq,
            )

    def query(self) -> bool:
        if self._stream is None:
            return True
        place = self._stream.device_index, self._stream.stream_id, self._seq
        self._queries += 1
        if self._queries > 2:
            _c.arrive(*place)
        return _query(*place)

    def synchronize(self) -> None:
        stream = self._stream
        if stream is not None:
            _wait('event.synchronize', stream.device_index, stream.stream_id)

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other._time - self._time)


def _set_device(index: int) -> None:
    if index >= _c.devices():
        raise torch._C.AcceleratorError('CUDA error: invalid device ordinal')
    if index >= 0:
        _c.set_device(index)
        _c.touch(index)


def _exchange_device(index: int) -> int:
    before = _c.get_device()
    if index >= 0:
        _c.set_device(index)
    return before


def _current_stream(index: int) -> tuple[int, int, int]:
    return _c.get_stream(_index(index)), _index(index), 1


def _set_stream(stream_id: int, device_index: int, **kwargs: Any) -> None:
    _c.set_device(device_index)
    _c.set_stream(device_index, stream_id)


def _memory_stats(device: int) -> dict[str, Any]:
    now, peak = _c.memory(device, 0), _c.memory(device, 1)
    used = dict(current=now, peak=peak, allocated=peak, freed=peak - now)
    pools = ('all', 'small_pool', 'large_pool')
    kinds = ('allocated', 'reserved', 'active', 'requested')
    stats: dict[str, Any] = {
        f'{kind}_bytes': {pool: dict(used) for pool in pools} for kind in kinds
    }
    nothing = dict.fromkeys(used, 0)
    stats['inactive_split_bytes'] = {pool: dict(nothing) for pool in pools}
    return {**stats, 'num_ooms': _c.memory(device, 5), 'num_alloc_retries': 0}


def _capacity(index: int) -> int:
    return _c.memory(index, 2) or _CAPACITY


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    _raise_if_broken()
    index = _index(device)
    _c.touch(index)
    return max(0, _capacity(index) - _c.memory(index, 0)), _capacity(index)


def _properties(device: Any = None) -> SimpleNamespace:
    index = _index(device)
    return SimpleNamespace(
        name='Simulated GPU',
        major=8,
        minor=0,
        total_memory=_capacity(index),
        multi_processor_count=108,
        is_integrated=False,
        is_multi_gpu_board=False,
        uuid=f'GPU-fake-{index}',
        gcnArchName='',
        L2_cache_size=0,
        max_threads_per_multi_processor=2048,
        warp_size=32,
    )


def _synchronize() -> None:
    _wait('torch.cuda.synchronize', _c.get_device(), _ALL_STREAMS)


_new_storage = torch.UntypedStorage.__new__


def _storage(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    if device is None:
        return _new_storage(cls, *args, **kwargs)
    if torch.device(device).type != 'cuda':
        return _new_storage(cls, *args, device=device, **kwargs)
    (size,) = args
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    return memory.untyped_storage()


def _refuse_compile(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError('the simulated device does not run torch.compile')


def after_fork() -> None:
    """Let a process that was forked before any context use the device."""
    _owner[0] = os.getpid()


_owner = [os.getpid()]


def _install() -> None:
    """Put the device in the place of what a build with CUDA has."""
    core, cuda = torch._C, torch.cuda
    is_forked = lambda: os.getpid() != _owner[0]  # noqa: E731
    nothing = lambda *args, **kwargs: None  # noqa: E731
    for name, value in dict(
        getDeviceCount=_c.devices,
        init=nothing,
        isInBadFork=is_forked,
        setDevice=_set_device,
        getDevice=_c.get_device,
        exchangeDevice=_exchange_device,
        maybeExchangeDevice=_exchange_device,
        synchronize=_synchronize,
        getCurrentStream=_current_stream,
        getDefaultStream=lambda index: (0, _index(index), 1),
        getCurrentRawStream=lambda index: _c.get_stream(_index(index)),
        setStream=_set_stream,
        emptyCache=_raise_if_broken,
        memoryStats=_memory_stats,
        resetPeakMemoryStats=_c.reset_peak,
        resetAccumulatedMemoryStats=nothing,
        getArchFlags=lambda: 'sm_80',
        hasPrimaryContext=lambda index: bool(_c.context(index)),
        isCurrentStreamCapturing=lambda: False,
        canDeviceAccessPeer=lambda one, other: True,
        ipc_collect=nothing,
        get_sync_debug_mode=lambda: 0,
        set_sync_debug_mode=nothing,
        getAllocatorBackend=lambda: 'native',
        lock_mutex=nothing,
        unlock_mutex=nothing,
        resetPeakHostMemoryStats=nothing,
        resetAccumulatedHostMemoryStats=nothing,
    ).items():
        setattr(core, f'_cuda_{name}', value)
    # torch asks for a stream of its own class; memory is never given on.
    torch.Tensor.record_stream = lambda tensor, stream: None
    for name, value in dict(
        _exchange_device=_exchange_device,
        _maybe_exchange_device=_exchange_device,
        _is_in_bad_fork=is_forked,
        _cudart=SimpleNamespace(
            cudaHostRegister=lambda pointer, size, flags: _c.register(
                pointer, size
            ),
            cudaHostUnregister=_c.unregister,
        ),
        Stream=Stream,
        Event=Event,
        _get_device_properties=_properties,
        get_device_properties=_properties,
        get_device_capability=lambda device=None: (8, 0),
        get_device_name=lambda device=None: 'Simulated GPU',
        mem_get_info=_mem_get_info,
        device_count=_c.devices,
        _device_count_nvml=lambda: -1,
        is_current_stream_capturing=lambda: False,
        is_bf16_supported=lambda including_emulation=True: True,
        _check_capability=nothing,
        _check_cubins=nothing,
    ).items():
        setattr(cuda, name, value)
    cuda.streams.Stream, cuda.streams.Event = Stream, Event
    cuda.memory.mem_get_info = _mem_get_info
    cuda._queued_calls.clear()
    _c.hand_out_defaults(1)
    cuda.default_generators = tuple(
        torch.Generator(device=f'cuda:{index}')
        for index in range(_c.devices())
    )
    _c.hand_out_defaults(0)
    torch.version.cuda = '12.6'
    torch.UntypedStorage.__new__ = staticmethod(_storage)  # type: ignore
    torch.compile = _refuse_compile  # type: ignore[assignment]


_install()
