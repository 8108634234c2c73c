"""How are the GPUs?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mmstable.doctor.gpu_library import (
    GpuState,
    NoGpuLibrary,
    gpu_library,
)
from mmstable.doctor.items import Item, Plan, fact, found, not_seen
from mmstable.doctor.texts import FACTS
from mmstable.finding import Severity
from mmstable.memory.sizes import readable
from mmstable.messages import N_, _

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
# Degrees below the point where it slows down.
_WARM = 5
# Below that an idle GPU saves power on its link.
_BUSY = 50
_MANY_REPLAYS = 1000
_MANY_CORRECTED = 1000
# Why a clock is low, if that is nothing that was asked for.
_BAD_THROTTLES = {'hardware', 'software_thermal', 'thermal', 'power_brake'}
_THROTTLES = {
    'power_cap': N_('power limit'),
    'hardware': N_('hardware slowdown'),
    'software_thermal': N_('temperature (driver)'),
    'thermal': N_('temperature (hardware)'),
    'power_brake': N_('power brake of the server'),
}


def gpus(plan: Plan) -> Iterator[Item]:
    """Ask NVIDIA's library about all of them."""
    try:
        with gpu_library() as library:
            states = library.states()
    except NoGpuLibrary as error:
        if error.is_mismatch:
            yield found('driver_mismatch', _ERROR, 'driver', error=error)
        elif Path('/proc/driver/nvidia').exists():
            yield found('nvml_failed', _WARNING, 'driver', error=error)
        yield not_seen('gpus', error)
        return
    for state in states:
        yield from facts(state)
        yield from judge(state)


def facts(gpu: GpuState) -> Iterator[Item]:
    """What is known of one.

    Args:
        gpu (GpuState): How it is.
    """
    device = f'GPU {gpu.index}'
    if gpu.lost:
        return
    yield fact('gpu_name', f'{gpu.name} ({gpu.bus})', device)
    known: dict[str, object] = {
        'gpu_temperature': gpu.temperature,
        'gpu_busy': gpu.busy,
        'ecc_corrected': gpu.corrected,
        'ecc_uncorrected': gpu.uncorrected,
        'ecc_uncorrected_ever': gpu.uncorrected_ever,
        'retired_pages': gpu.retired_pages,
        'remapped_rows': gpu.remapped_rows,
        'replays': gpu.replays,
    }
    if gpu.memory_total is not None:
        used, total = readable(gpu.memory_used or 0), gpu.memory_total
        known['gpu_memory'] = f'{used} / {readable(total)}'
    if gpu.power is not None:
        known['gpu_power'] = f'{gpu.power:.0f} / {gpu.power_limit or 0:.0f}'
    if gpu.link_width is not None:
        known['link_width'] = f'{gpu.link_width} / {gpu.link_width_max}'
    if gpu.link_speed is not None:
        known['link_speed'] = f'{gpu.link_speed} / {gpu.link_speed_max}'
    if gpu.throttles:
        known['throttles'] = ', '.join(throttle_names(gpu))
    for name, value in known.items():
        if value is not None:
            yield fact(name, value, device)
    missing = [_(FACTS[name]) for name in known if known[name] is None]
    if missing:
        what = _('{device}: {names}', device=device, names=missing)
        yield not_seen('gpu_facts', what)


def throttle_names(gpu: GpuState) -> list[str]:
    """Why its clock is low, for people.

    Args:
        gpu (GpuState): How it is.
    """
    return [_(_THROTTLES[name]) for name in gpu.throttles]


def judge(gpu: GpuState) -> Iterator[Item]:
    """What is wrong with one.

    Args:
        gpu (GpuState): How it is.
    """
    device = f'GPU {gpu.index}'
    if gpu.lost:
        yield found('gpu_lost', _ERROR, device, error=gpu.lost)
        return
    yield from _memory_errors(gpu, device)
    yield from _heat(gpu, device)
    yield from _slow_link(gpu, device)


def _memory_errors(gpu: GpuState, device: str) -> Iterator[Item]:
    if gpu.uncorrected:
        yield found('ecc', _ERROR, device, count=gpu.uncorrected)
    elif gpu.uncorrected_ever:
        yield found('ecc_ever', _WARNING, device, count=gpu.uncorrected_ever)
    if (gpu.corrected or 0) > _MANY_CORRECTED:
        yield found('ecc_corrected', _WARNING, device, count=gpu.corrected)
    if gpu.remap_failed:
        yield found('remap_failed', _ERROR, device)
    if gpu.remap_pending or gpu.retire_pending:
        yield found('remap_pending', _WARNING, device)


def _heat(gpu: GpuState, device: str) -> Iterator[Item]:
    bad = _BAD_THROTTLES & set(gpu.throttles)
    if bad:
        names = [_(_THROTTLES[name]) for name in sorted(bad)]
        yield found('throttled', _WARNING, device, names=names)
    if gpu.temperature is None or gpu.slowdown_at is None:
        return
    if gpu.temperature > gpu.slowdown_at - _WARM:
        yield found(
            'hot',
            _WARNING,
            device,
            degrees=gpu.temperature,
            limit=gpu.slowdown_at,
        )


def _slow_link(gpu: GpuState, device: str) -> Iterator[Item]:
    if (gpu.link_width or 0) < (gpu.link_width_max or 0):
        yield found(
            'narrow_link',
            _WARNING,
            device,
            width=gpu.link_width,
            most=gpu.link_width_max,
        )
    is_slow = (gpu.link_speed or 0) < (gpu.link_speed_max or 0)
    if is_slow and (gpu.busy or 0) >= _BUSY:
        yield found(
            'slow_link',
            _WARNING,
            device,
            speed=gpu.link_speed,
            most=gpu.link_speed_max,
        )
    if (gpu.replays or 0) > _MANY_REPLAYS:
        yield found('replays', _WARNING, device, count=gpu.replays)
