"""How GPUs are, as NVIDIA's library would tell it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from mmstable.doctor import Fact, NotSeen, Plan
from mmstable.doctor import gpus as module
from mmstable.doctor.gpus import (
    QUERIES,
    GpuState,
    NoGpuLibrary,
    facts,
    gpus,
    judge,
    read_gpus,
)
from mmstable.finding import Finding
from tests.doctor.fake_nvml import (
    A100,
    GEFORCE,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    NVML_ERROR_LIBRARY_NOT_FOUND,
    FakeNvml,
    NVMLError,
)


def states(*gpus: dict) -> list[GpuState]:
    with patch.dict(sys.modules, pynvml=FakeNvml(*gpus)):
        return read_gpus()


def ids(state: GpuState) -> list[tuple[str, str]]:
    return [(one.id, one.severity.value) for one in judge(state)]


def test_a_healthy_gpu():
    (gpu,) = states(A100)
    assert (gpu.name, gpu.bus) == ('NVIDIA A100-SXM4-80GB', '00000000:07:00.0')
    assert (gpu.temperature, gpu.power, gpu.power_limit) == (43, 63.412, 400)
    assert (gpu.link_width, gpu.link_speed_max, gpu.busy) == (16, 4, 97)
    assert (gpu.uncorrected, gpu.remapped_rows, gpu.throttles) == (0, 0, ())
    assert gpu.retired_pages is None
    assert ids(gpu) == []


def test_what_a_gpu_does_not_know_is_named():
    (gpu,) = states(GEFORCE)
    # An idle one has a slow link.
    assert ids(gpu) == []
    items = list(facts(gpu))
    (unseen,) = [one for one in items if isinstance(one, NotSeen)]
    assert 'GPU 0: ECC errors, corrected' in unseen.why
    names = [one.value for one in items if isinstance(one, Fact)]
    assert names[0] == 'NVIDIA GeForce RTX 3090 (00000000:01:00.0)'


def ecc(kind: int, counter: int) -> int:
    return {(1, 1): 7, (1, 0): 2}.get((kind, counter), 0)


@pytest.mark.parametrize(
    ('answers', 'expected'),
    [
        ({'nvmlDeviceGetTotalEccErrors': ecc}, ('ecc', 'error')),
        (
            {'nvmlDeviceGetTotalEccErrors': lambda kind, ever: kind * ever},
            ('ecc_ever', 'warning'),
        ),
        (
            {
                'nvmlDeviceGetTotalEccErrors': lambda kind, ever: (
                    5000 * (1 - kind)
                )
            },
            ('ecc_corrected', 'warning'),
        ),
        (
            {'nvmlDeviceGetRemappedRows': [1, 2, 0, 1]},
            ('remap_failed', 'error'),
        ),
        (
            {'nvmlDeviceGetRemappedRows': [0, 1, 1, 0]},
            ('remap_pending', 'warning'),
        ),
        (
            {'nvmlDeviceGetRetiredPagesPendingStatus': 1},
            ('remap_pending', 'warning'),
        ),
        ({'nvmlDeviceGetTemperature': 86}, ('hot', 'warning')),
        (
            {'nvmlDeviceGetCurrentClocksEventReasons': 0x40},
            ('throttled', 'warning'),
        ),
        ({'nvmlDeviceGetCurrPcieLinkWidth': 8}, ('narrow_link', 'warning')),
        (
            {'nvmlDeviceGetCurrPcieLinkGeneration': 1},
            ('slow_link', 'warning'),
        ),
        ({'nvmlDeviceGetPcieReplayCounter': 4321}, ('replays', 'warning')),
        (
            {'nvmlDeviceGetMemoryInfo': NVMLError(NVML_ERROR_GPU_IS_LOST)},
            ('gpu_lost', 'error'),
        ),
    ],
)
def test_what_is_wrong_is_found(answers, expected):
    healthy, sick = states(A100, {**A100, **answers})
    assert ids(healthy) == []
    assert ids(sick) == [expected]


def test_a_power_limit_is_no_fault():
    (gpu,) = states({**A100, 'nvmlDeviceGetCurrentClocksEventReasons': 4})
    assert gpu.throttles == ('power_cap',)
    assert ids(gpu) == []


def test_old_releases_have_another_name_for_the_clock():
    old = dict(A100)
    del old['nvmlDeviceGetCurrentClocksEventReasons']
    old['nvmlDeviceGetCurrentClocksThrottleReasons'] = 0x88
    (gpu,) = states(old)
    assert gpu.throttles == ('hardware', 'power_brake')


def test_no_driver(monkeypatch):
    fake = FakeNvml(init=NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND))
    monkeypatch.setitem(sys.modules, 'pynvml', fake)
    with pytest.raises(NoGpuLibrary, match='NVML Shared Library Not Found'):
        read_gpus()


def test_a_driver_that_was_updated_is_an_error(monkeypatch):
    fake = FakeNvml(init=NVMLError(NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    monkeypatch.setitem(sys.modules, 'pynvml', fake)
    found = list(gpus(Plan()))
    assert isinstance(found[0], Finding)
    assert (found[0].id, found[0].severity) == ('driver_mismatch', 'error')
    assert isinstance(found[1], NotSeen)


def test_the_library_is_closed_again(monkeypatch):
    fake = FakeNvml(A100)
    monkeypatch.setitem(sys.modules, 'pynvml', fake)

    def fail(nvml, index):
        assert nvml.is_open
        raise KeyError

    monkeypatch.setattr(module, '_read_gpu', fail)
    with pytest.raises(KeyError):
        read_gpus()
    assert not fake.is_open


def test_a_lost_gpu_has_no_facts():
    assert list(facts(GpuState(0, lost='GPU is lost'))) == []


def asked() -> set[str]:
    """All names of NVIDIA's library that are used."""
    names = {f'nvmlDeviceGet{row[0]}' for row in QUERIES.values()}
    names |= {f'NVML_{name}' for row in QUERIES.values() for name in row[2:]}
    tree = ast.parse(Path(module.__file__).read_text(encoding='utf-8'))
    words = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    return names | {one for one in words if re.match('nvml[A-Z]|NVML', one)}


def test_every_name_is_that_of_the_real_module():
    real = pytest.importorskip('pynvml')
    assert len(asked()) > 30
    assert not [name for name in asked() if not hasattr(real, name)]


def test_every_name_is_in_the_fake():
    fake = FakeNvml({**A100, 'nvmlDeviceGetCurrentClocksThrottleReasons': 0})
    assert not [name for name in asked() if not hasattr(fake, name)]
