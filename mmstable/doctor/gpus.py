"""State of NVIDIA's GPUs, by its library and by the kernel's log.

This is the one place that calls nvidia-ml-py. A value that a GPU or its
driver does not know is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from mmstable.doctor import Fact, Item, NotSeen, Plan, found, read_data
from mmstable.doctor.host import ProgramFailed, output_of
from mmstable.errors import UsageError
from mmstable.finding import Finding, Severity
from mmstable.io.files import read_only
from mmstable.messages import N_, _, printable, readable

# Bits of the reasons for a lower clock; the names differ between releases.
_THROTTLE_BITS = {
    0x04: 'power_cap',
    0x08: 'hardware',
    0x20: 'software_thermal',
    0x40: 'thermal',
    0x80: 'power_brake',
}
_THROTTLES = {
    'power_cap': N_('power limit'),
    'hardware': N_('hardware slowdown'),
    'software_thermal': N_('temperature (driver)'),
    'thermal': N_('temperature (hardware)'),
    'power_brake': N_('power brake of the server'),
}


class NoGpuLibrary(Exception):
    """It is not installed, finds no driver, or finds the wrong one.

    Args:
        reason (str): Which of these.
        is_mismatch (bool): Whether the driver and its library are of
            different versions. Defaults to False.
    """

    def __init__(self, reason: str, is_mismatch: bool = False) -> None:
        super().__init__(reason)
        self.is_mismatch = is_mismatch


def _text(name: str | bytes) -> str:
    """Decode a name, which older releases return as bytes."""
    return name.decode(errors='replace') if isinstance(name, bytes) else name


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


# Values of a GPU, and the NVML query of each: the function without
# 'nvmlDeviceGet', its arguments without 'NVML_', and how to read the answer.
# ECC errors are those since the driver was loaded, or ``ever``. Old GPUs
# retire pages of memory, new ones remap rows. Temperatures are in degrees
# Celsius, power is in watts, ``busy`` in percent of the time; a link's speed
# is the generation of PCI Express, ``replays`` are packets sent again.
QUERIES: dict[str, tuple[Any, ...]] = {
    'name': ('Name', _text),
    'bus': ('PciInfo', lambda pci: _text(pci.busId)),
    'memory_total': ('MemoryInfo', lambda memory: memory.total),
    'memory_used': ('MemoryInfo', lambda memory: memory.used),
    'busy': ('UtilizationRates', lambda rates: rates.gpu),
    'temperature': ('Temperature', int, 'TEMPERATURE_GPU'),
    'slowdown_at': (
        'TemperatureThreshold',
        int,
        'TEMPERATURE_THRESHOLD_SLOWDOWN',
    ),
    'power': ('PowerUsage', _watts),
    'power_limit': ('EnforcedPowerLimit', _watts),
    'clock_reasons': ('CurrentClocksEventReasons', int),
    # As older releases call it.
    'old_clock_reasons': ('CurrentClocksThrottleReasons', int),
    'corrected': (
        'TotalEccErrors',
        int,
        'MEMORY_ERROR_TYPE_CORRECTED',
        'VOLATILE_ECC',
    ),
    'uncorrected': (
        'TotalEccErrors',
        int,
        'MEMORY_ERROR_TYPE_UNCORRECTED',
        'VOLATILE_ECC',
    ),
    'uncorrected_ever': (
        'TotalEccErrors',
        int,
        'MEMORY_ERROR_TYPE_UNCORRECTED',
        'AGGREGATE_ECC',
    ),
    'retired_single_bit': (
        'RetiredPages',
        len,
        'PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS',
    ),
    'retired_double_bit': (
        'RetiredPages',
        len,
        'PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR',
    ),
    'retire_pending': ('RetiredPagesPendingStatus', bool),
    'remapped_rows': ('RemappedRows', lambda rows: rows[0] + rows[1]),
    'remap_pending': ('RemappedRows', lambda rows: bool(rows[2])),
    'remap_failed': ('RemappedRows', lambda rows: bool(rows[3])),
    'link_width': ('CurrPcieLinkWidth', int),
    'link_width_max': ('MaxPcieLinkWidth', int),
    'link_speed': ('CurrPcieLinkGeneration', int),
    'link_speed_max': ('MaxPcieLinkGeneration', int),
    'replays': ('PcieReplayCounter', int),
}


class GpuState(SimpleNamespace):
    """One GPU, with a value or None for each of ``QUERIES``.

    Args:
        index (int): Its number.
        lost (str): Why it does not answer; '' if it does. Defaults to ''.
        **values: Those that it has told.
    """

    def __init__(self, index: int, lost: str = '', **values: Any) -> None:
        super().__init__(
            index=index, lost=lost, **{**dict.fromkeys(QUERIES), **values}
        )
        bits = self.clock_reasons or self.old_clock_reasons or 0
        # Why the clock is lower than possible.
        self.throttles = tuple(
            name for bit, name in _THROTTLE_BITS.items() if bits & bit
        )
        # For either cause.
        retired = (self.retired_single_bit, self.retired_double_bit)
        known = [count for count in retired if count is not None]
        self.retired_pages = sum(known) if known else None


def read_gpus() -> list[GpuState]:
    """Read the state of all GPUs by NVIDIA's library.

    Raises:
        NoGpuLibrary: If it cannot be used.
    """
    try:
        import pynvml as nvml
    except ImportError:
        raise NoGpuLibrary(
            _('nvidia-ml-py is not installed (`pip install nvidia-ml-py`)')
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = getattr(error, 'value', None)
        is_mismatch = code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        raise NoGpuLibrary(str(error), is_mismatch) from None
    count = 0
    try:
        with suppress(nvml.NVMLError):
            count = nvml.nvmlDeviceGetCount()
        return [_read_gpu(nvml, index) for index in range(count)]
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int) -> GpuState:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        return GpuState(index, lost=str(error))
    known = {}
    for name, (function, read, *constants) in QUERIES.items():
        # Releases differ in the functions that they have.
        ask = getattr(nvml, f'nvmlDeviceGet{function}', None)
        if ask is None:
            continue
        given = [getattr(nvml, f'NVML_{one}') for one in constants]
        # A GPU does not know every value.
        with suppress(nvml.NVMLError):
            known[name] = read(ask(handle, *given))
    return GpuState(index, **known)


# Degrees below the point where it slows down.
_WARM = 5
# Below that an idle GPU saves power on its link.
_BUSY = 50
_MANY_REPLAYS = 1000
_MANY_CORRECTED = 1000
# Reasons of a low clock that no user has requested.
_BAD_THROTTLES = {'hardware', 'software_thermal', 'thermal', 'power_brake'}


def gpus(plan: Plan) -> Iterator[Item]:
    """Query NVIDIA's library for all GPUs."""
    try:
        states = read_gpus()
    except NoGpuLibrary as error:
        if error.is_mismatch:
            yield found('driver_mismatch', 'driver', error=error)
        elif Path('/proc/driver/nvidia').exists():
            yield found('nvml_failed', 'driver', error=error)
        yield NotSeen(_('state of the GPUs'), str(error))
        return
    for state in states:
        yield from facts(state)
        yield from judge(state)


def facts(gpu: GpuState) -> Iterator[Item]:
    """List the known values of a GPU, and the names of missing ones.

    Args:
        gpu (GpuState): Its state.
    """
    device = f'GPU {gpu.index}'
    if gpu.lost:
        return
    yield Fact('gpu_name', f'{gpu.name} ({gpu.bus})', _('name'), device)
    values: list[tuple[str, str, object]] = [
        ('gpu_temperature', _('temperature (°C)'), gpu.temperature),
        ('gpu_busy', _('utilisation (%)'), gpu.busy),
        ('ecc_corrected', _('ECC errors, corrected'), gpu.corrected),
        ('ecc_uncorrected', _('ECC errors, uncorrected'), gpu.uncorrected),
        (
            'ecc_uncorrected_ever',
            _('ECC errors, uncorrected, of its life'),
            gpu.uncorrected_ever,
        ),
        ('retired_pages', _('retired pages'), gpu.retired_pages),
        ('remapped_rows', _('remapped rows'), gpu.remapped_rows),
        ('replays', _('PCI Express packets sent again'), gpu.replays),
    ]
    for id, label, value in values:
        if value is not None:
            yield Fact(id, str(value), label, device)
    if gpu.memory_total is not None:
        sizes = readable(gpu.memory_used or 0), readable(gpu.memory_total)
        yield Fact('gpu_memory', ' / '.join(sizes), _('memory used'), device)
    if gpu.power is not None:
        watts = f'{gpu.power:.0f} / {gpu.power_limit or 0:.0f}'
        yield Fact('gpu_power', watts, _('power and its limit (W)'), device)
    if gpu.link_width is not None:
        lanes = f'{gpu.link_width} / {gpu.link_width_max}'
        yield Fact('link_width', lanes, _('PCI Express lanes'), device)
    if gpu.link_speed is not None:
        speed = f'{gpu.link_speed} / {gpu.link_speed_max}'
        yield Fact('link_speed', speed, _('PCI Express generation'), device)
    if gpu.throttles:
        names = ', '.join(_(_THROTTLES[name]) for name in gpu.throttles)
        yield Fact('throttles', names, _('clock held down by'), device)
    missing = [label for __, label, value in values if value is None]
    if missing:
        what = _('{device}: {names}', device=device, names=missing)
        yield NotSeen(_('what a GPU does not tell'), what)


def judge(gpu: GpuState) -> Iterator[Item]:
    """Report the problems of a GPU.

    Args:
        gpu (GpuState): Its state.
    """
    device = f'GPU {gpu.index}'
    if gpu.lost:
        yield found('gpu_lost', device, error=gpu.lost)
        return
    if gpu.uncorrected:
        yield found('ecc', device, count=gpu.uncorrected)
    elif gpu.uncorrected_ever:
        yield found('ecc_ever', device, count=gpu.uncorrected_ever)
    if (gpu.corrected or 0) > _MANY_CORRECTED:
        yield found('ecc_corrected', device, count=gpu.corrected)
    if gpu.remap_failed:
        yield found('remap_failed', device)
    if gpu.remap_pending or gpu.retire_pending:
        yield found('remap_pending', device)
    bad = _BAD_THROTTLES & set(gpu.throttles)
    if bad:
        names = [_(_THROTTLES[name]) for name in sorted(bad)]
        yield found('throttled', device, names=names)
    degrees, limit = gpu.temperature, gpu.slowdown_at
    if degrees is not None and limit is not None and degrees > limit - _WARM:
        yield found('hot', device, degrees=degrees, limit=limit)
    width, most = gpu.link_width or 0, gpu.link_width_max or 0
    if 0 < width < most:
        yield found('narrow_link', device, width=width, most=most)
    speed, most = gpu.link_speed or 0, gpu.link_speed_max or 0
    if 0 < speed < most and (gpu.busy or 0) >= _BUSY:
        yield found('slow_link', device, speed=speed, most=most)
    if (gpu.replays or 0) > _MANY_REPLAYS:
        yield found('replays', device, count=gpu.replays)


def devices() -> list[str]:
    """List the CPU, and every GPU that torch can use."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ['cpu', *(f'cuda:{index}' for index in range(gpus))]


_PROGRAMS = ('dmesg', 'journalctl -k -q --no-pager -n 100000')
_PROGRAM_TIMEOUT_S = 20.0
_MAX_LOG_BYTES = 64 << 20
# Longer lines are no lines of a kernel.
_MAX_LINE = 8192
_MAX_SHOWN = 300


class KernelLog(NamedTuple):
    """Lines of the kernel's log.

    Args:
        lines (list[str]): The oldest first.
        source (str): A file or a program; '' if none could be read.
        refused (list[str]): Sources that could not be read, with the reason.
    """

    lines: list[str]
    source: str
    refused: list[str]


def kernel_log(path: str | None = None) -> KernelLog:
    """Read the kernel's log of this machine, or a file.

    Args:
        path (str, optional): The file. Defaults to None.
    """
    if path is not None:
        return KernelLog(_lines(_file(path)), path, [])
    refused = []
    for command in _PROGRAMS:
        name = command.split()[0]
        try:
            text = output_of(command.split(), _PROGRAM_TIMEOUT_S)
        except ProgramFailed as error:
            refused.append(str(error))
            continue
        if text.strip():
            return KernelLog(_lines(text), name, refused)
        refused.append(f'{name}: ' + _('nothing to read, or no permission'))
    return KernelLog([], '', refused)


def check_log(path: str) -> None:
    """Refuse a file that cannot be a log.

    Args:
        path (str): The file.
    """
    _file(path, max_bytes=1 << 16)


def _file(path: str, max_bytes: int = _MAX_LOG_BYTES) -> str:
    """Read the end of a file; logs that are never rotated are large."""
    try:
        with open(path, 'rb', opener=read_only) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            content = file.read(max_bytes)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            _('--log: {path}: {error}', path=path, error=reason)
        ) from None
    # A crash leaves zeros at the end of a log, but not first.
    if b'\0' in content[:4096] or content[:2] == b'\x1f\x8b':
        raise UsageError(
            _(
                '--log: {path} is no text; give the log as `dmesg` or '
                '`journalctl -k` print it.',
                path=path,
            )
        )
    return content.decode(errors='replace')


def _lines(text: str) -> list[str]:
    return [line[:_MAX_LINE] for line in text.splitlines()]


# Old drivers leave out 'PCI:', the process or its name.
_XID = re.compile(
    r'NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:'
    r'[0-9a-fA-F]{2})(?:\.\d)?[^)]{0,40}\): (?P<code>\d{1,4})\b'
)
_OFF = re.compile(r'NVRM:.{0,200}fallen off the bus', re.I)
_BUS = re.compile(r'\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\b')


@dataclass
class Complaint:
    """Lines of one kind about one GPU.

    Args:
        code (int, optional): The Xid; None if the GPU has fallen off the
            bus and no number was given.
        bus (str): Where the GPU is; '' if the line does not name it.
        count (int): How many lines. Defaults to 0.
        line (str): The last of them. Defaults to ''.
    """

    code: int | None
    bus: str
    count: int = 0
    line: str = ''


def xid(plan: Plan) -> Iterator[Item]:
    """Report the errors of the NVIDIA driver in the kernel's log."""
    log = kernel_log(plan.log)
    if not log.source:
        yield NotSeen(_('kernel log'), '; '.join(log.refused))
        return
    found = complaints(log.lines)
    count = sum(one.count for one in found)
    yield Fact('kernel_log', log.source, _('read from'))
    yield Fact('xid_lines', str(count), _('Xid lines'))
    for one in found:
        yield judge_xid(one)


def complaints(lines: Iterable[str]) -> list[Complaint]:
    """Collect the driver's complaints, in the order of their first lines.

    Args:
        lines (Iterable[str]): Of the kernel's log.
    """
    found: dict[tuple[int | None, str], Complaint] = {}
    for line in lines:
        key = _read(line)
        if key is not None:
            one = found.setdefault(key, Complaint(*key))
            one.count += 1
            one.line = line.strip()
    lost = {bus for code, bus in found if code == 79}
    # A line without a number often repeats Xid 79 in words.
    return [
        one
        for one in found.values()
        if one.code is not None or not lost or (one.bus not in {*lost, ''})
    ]


def _read(line: str) -> tuple[int | None, str] | None:
    match = _XID.search(line)
    if match is not None:
        return int(match['code']), match['bus'].lower()
    if _OFF.search(line) is None:
        return None
    bus = _BUS.search(line)
    return None, bus[1].lower() if bus else ''


def judge_xid(one: Complaint) -> Finding:
    """Explain a complaint by ``data/xids.json``.

    Args:
        one (Complaint): Its lines.
    """
    table = read_data('xids.json')
    xids = table['xids']
    row = xids.get(str(79 if one.code is None else one.code), xids['unknown'])
    what = _(row['meaning'])
    if one.code is not None:
        what = _('Xid {code}: {meaning}', code=one.code, meaning=what)
    return Finding(
        id='xid_off_bus' if one.code is None else f'xid_{one.code}',
        severity=Severity(row['severity']),
        path=f'GPU {one.bus}'.strip(),
        what=_(
            '{what} ({count:line|lines}), at last: {line}',
            what=what,
            count=one.count,
            line=printable(one.line, _MAX_SHOWN),
        ),
        why=_(table['why'][row['cause']]),
        fix=_(table['fix'][row['advice']]),
        source=table['source'],
    )
