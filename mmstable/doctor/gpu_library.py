"""What does NVIDIA's library say about its GPUs?

The one place that calls nvidia-ml-py. What a GPU or its driver does not know
is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mmstable.messages import _

# Bits of the reasons for a lower clock; the names differ between releases.
THROTTLES = {
    0x04: 'power_cap',
    0x08: 'hardware',
    0x20: 'software_thermal',
    0x40: 'thermal',
    0x80: 'power_brake',
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


@dataclass(frozen=True)
class GpuState:
    """One GPU; None is what nobody knows.

    Args:
        index (int): Its number.
        name (str): What it is.
        bus (str): Where it is.
        lost (str): Why it does not answer; '' if it does.
        memory_total (int, optional): In bytes.
        memory_used (int, optional): In bytes.
        busy (int, optional): Percent of the time that it computes.
        temperature (int, optional): In degrees Celsius.
        slowdown_at (int, optional): Temperature at which it slows down.
        power (float, optional): In watts.
        power_limit (float, optional): In watts.
        throttles (tuple[str, ...]): Why its clock is lower than possible.
        corrected (int, optional): Corrected ECC errors since the driver
            was loaded.
        uncorrected (int, optional): Uncorrected ones since then.
        uncorrected_ever (int, optional): Uncorrected ones of its life.
        retired_pages (int, optional): Of memory, older GPUs.
        retire_pending (bool, optional): Whether more are to be retired.
        remapped_rows (int, optional): Of memory, newer GPUs.
        remap_pending (bool, optional): Whether a reset would remap more.
        remap_failed (bool, optional): Whether there are no spare rows.
        link_width (int, optional): Lanes of PCI Express.
        link_width_max (int, optional): Lanes that it could have.
        link_speed (int, optional): Generation of PCI Express.
        link_speed_max (int, optional): Generation that it could have.
        replays (int, optional): Packets that had to be sent again.
    """

    index: int
    name: str = ''
    bus: str = ''
    lost: str = ''
    memory_total: int | None = None
    memory_used: int | None = None
    busy: int | None = None
    temperature: int | None = None
    slowdown_at: int | None = None
    power: float | None = None
    power_limit: float | None = None
    throttles: tuple[str, ...] = ()
    corrected: int | None = None
    uncorrected: int | None = None
    uncorrected_ever: int | None = None
    retired_pages: int | None = None
    retire_pending: bool | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    link_speed: int | None = None
    link_speed_max: int | None = None
    replays: int | None = None


@contextmanager
def gpu_library(module: Any = None) -> Iterator[GpuLibrary]:
    """Open the library.

    Args:
        module (Any, optional): In place of ``pynvml``. Defaults to None.

    Raises:
        NoGpuLibrary: If that is not possible.
    """
    nvml = _import() if module is None else module
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = getattr(error, 'value', None)
        is_mismatch = code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        raise NoGpuLibrary(str(error), is_mismatch) from None
    try:
        yield GpuLibrary(nvml)
    finally:
        nvml.nvmlShutdown()


def _import() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NoGpuLibrary(
            _('nvidia-ml-py is not installed (`pip install nvidia-ml-py`)')
        ) from None
    return pynvml


class GpuLibrary:
    """NVIDIA's library, opened.

    Args:
        module (Any): ``pynvml``.
    """

    def __init__(self, module: Any) -> None:
        self._nvml = module

    def states(self) -> list[GpuState]:
        """All GPUs, as they are now."""
        count = self._ask('nvmlDeviceGetCount') or 0
        return [self._state(index) for index in range(count)]

    def _state(self, index: int) -> GpuState:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return GpuState(index, lost=str(error))
        return GpuState(
            index,
            name=_text(self._ask('nvmlDeviceGetName', handle)),
            bus=self._bus(handle),
            **self._load(handle),
            **self._errors(handle),
            **self._link(handle),
        )

    def _load(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        memory = self._ask('nvmlDeviceGetMemoryInfo', handle)
        rates = self._ask('nvmlDeviceGetUtilizationRates', handle)
        power = self._ask('nvmlDeviceGetPowerUsage', handle)
        limit = self._ask('nvmlDeviceGetEnforcedPowerLimit', handle)
        bits = self._ask('nvmlDeviceGetCurrentClocksEventReasons', handle)
        if bits is None:
            # As older releases call it.
            old = 'nvmlDeviceGetCurrentClocksThrottleReasons'
            bits = self._ask(old, handle)
        return {
            'memory_total': getattr(memory, 'total', None),
            'memory_used': getattr(memory, 'used', None),
            'busy': getattr(rates, 'gpu', None),
            'temperature': self._ask(
                'nvmlDeviceGetTemperature', handle, nvml.NVML_TEMPERATURE_GPU
            ),
            'slowdown_at': self._ask(
                'nvmlDeviceGetTemperatureThreshold',
                handle,
                nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            ),
            # It speaks of milliwatts.
            'power': None if power is None else power / 1000,
            'power_limit': None if limit is None else limit / 1000,
            'throttles': tuple(
                name for bit, name in THROTTLES.items() if (bits or 0) & bit
            ),
        }

    def _errors(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        corrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        now, ever = nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC
        count = 'nvmlDeviceGetTotalEccErrors'
        rows = self._ask('nvmlDeviceGetRemappedRows', handle)
        pending = self._ask('nvmlDeviceGetRetiredPagesPendingStatus', handle)
        errors = {
            'corrected': self._ask(count, handle, corrected, now),
            'uncorrected': self._ask(count, handle, uncorrected, now),
            'uncorrected_ever': self._ask(count, handle, uncorrected, ever),
            'retired_pages': self._retired_pages(handle),
            'retire_pending': None if pending is None else bool(pending),
        }
        if rows is not None:
            errors['remapped_rows'] = rows[0] + rows[1]
            errors['remap_pending'] = bool(rows[2])
            errors['remap_failed'] = bool(rows[3])
        return errors

    def _retired_pages(self, handle: Any) -> int | None:
        nvml = self._nvml
        causes = (
            nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
        pages = [
            self._ask('nvmlDeviceGetRetiredPages', handle, cause)
            for cause in causes
        ]
        known = [len(one) for one in pages if one is not None]
        return sum(known) if known else None

    def _link(self, handle: Any) -> dict[str, Any]:
        asked = {
            'link_width': 'nvmlDeviceGetCurrPcieLinkWidth',
            'link_width_max': 'nvmlDeviceGetMaxPcieLinkWidth',
            'link_speed': 'nvmlDeviceGetCurrPcieLinkGeneration',
            'link_speed_max': 'nvmlDeviceGetMaxPcieLinkGeneration',
            'replays': 'nvmlDeviceGetPcieReplayCounter',
        }
        return {key: self._ask(name, handle) for key, name in asked.items()}

    def _bus(self, handle: Any) -> str:
        info = self._ask('nvmlDeviceGetPciInfo', handle)
        return _text(getattr(info, 'busId', ''))

    def _ask(self, name: str, *args: Any) -> Any:
        """What a function answers; None if it cannot, or is not there."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self._nvml.NVMLError:
            return None


def _text(value: Any) -> str:
    """Older releases give bytes."""
    if isinstance(value, bytes):
        return value.decode(errors='replace')
    return str(value or '')
