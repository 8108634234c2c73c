"""Give every Python process that a run starts the simulated device."""

import sys

from tests.doctor.fake_nvml import A100, FakeNvml

# Before torch, which looks for it when it is imported.
sys.modules['pynvml'] = FakeNvml(*[A100] * 8)  # type: ignore[assignment]

from tests.device import fakecuda  # noqa: E402, F401
