"""A stand-in for ``pynvml``, with its names, its errors and its answers.

The answers are written by hand, in the form that nvidia-ml-py 13 gives them:
structures with attributes, numbers in its units, lists. No device was asked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_AGGREGATE_ECC = 1
NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0
NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
TEXTS = {
    NVML_ERROR_NOT_SUPPORTED: 'Not Supported',
    NVML_ERROR_LIBRARY_NOT_FOUND: 'NVML Shared Library Not Found',
    NVML_ERROR_GPU_IS_LOST: 'GPU is lost',
    NVML_ERROR_LIB_RM_VERSION_MISMATCH: 'Driver/library version mismatch',
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return TEXTS[self.value]


class NVMLError_DriverNotLoaded(NVMLError):
    """What torch catches when it asks for the utilization."""


NOT_SUPPORTED = NVMLError(NVML_ERROR_NOT_SUPPORTED)
A100: dict[str, Any] = {
    'nvmlDeviceGetName': 'NVIDIA A100-SXM4-80GB',
    'nvmlDeviceGetPciInfo': SimpleNamespace(busId='00000000:07:00.0'),
    'nvmlDeviceGetMemoryInfo': SimpleNamespace(
        total=85899345920, free=85343862784, used=555483136
    ),
    'nvmlDeviceGetUtilizationRates': SimpleNamespace(gpu=97, memory=41),
    'nvmlDeviceGetTemperature': 43,
    'nvmlDeviceGetTemperatureThreshold': 89,
    'nvmlDeviceGetPowerUsage': 63412,
    'nvmlDeviceGetEnforcedPowerLimit': 400000,
    'nvmlDeviceGetCurrentClocksEventReasons': 1,
    'nvmlDeviceGetTotalEccErrors': 0,
    'nvmlDeviceGetRemappedRows': [0, 0, 0, 0],
    'nvmlDeviceGetRetiredPages': NOT_SUPPORTED,
    'nvmlDeviceGetRetiredPagesPendingStatus': NOT_SUPPORTED,
    'nvmlDeviceGetCurrPcieLinkWidth': 16,
    'nvmlDeviceGetMaxPcieLinkWidth': 16,
    'nvmlDeviceGetCurrPcieLinkGeneration': 4,
    'nvmlDeviceGetMaxPcieLinkGeneration': 4,
    'nvmlDeviceGetPcieReplayCounter': 0,
}
GEFORCE: dict[str, Any] = {
    **A100,
    # As releases before 11.5 gave it.
    'nvmlDeviceGetName': b'NVIDIA GeForce RTX 3090',
    'nvmlDeviceGetPciInfo': SimpleNamespace(busId=b'00000000:01:00.0'),
    'nvmlDeviceGetUtilizationRates': SimpleNamespace(gpu=0, memory=0),
    'nvmlDeviceGetTotalEccErrors': NOT_SUPPORTED,
    'nvmlDeviceGetRemappedRows': NOT_SUPPORTED,
    'nvmlDeviceGetCurrPcieLinkGeneration': 1,
}


class FakeNvml:
    """The module.

    Args:
        *gpus (dict): Answers by the name of the function; an exception is
            raised, a function called with the arguments after the handle.
        init (NVMLError, optional): What opening it raises.
            Defaults to None.
    """

    def __init__(
        self, *gpus: dict[str, Any], init: NVMLError | None = None
    ) -> None:
        self._gpus = gpus
        self._init = init
        self.is_open = False

    def nvmlInit(self) -> None:
        if self._init is not None:
            raise self._init
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        if name in globals():
            return globals()[name]
        if not name.startswith('nvmlDeviceGet') or not any(
            name in gpu for gpu in self._gpus
        ):
            raise AttributeError(name)

        def ask(handle: int, *args: int) -> Any:
            answer = self._gpus[handle][name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return ask
