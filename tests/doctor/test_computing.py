"""Devices that compute right, and such that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmstable.doctor import NotSeen, Plan
from mmstable.doctor.compute import (
    allocation,
    arithmetic,
    fill,
    multiply,
    precision,
    start,
    try_precision,
)
from mmstable.finding import Finding

QUICK = Plan(seconds=0.05)


def test_this_cpu_computes_right():
    outcome = multiply('cpu', seconds=0.05, size=64)
    assert outcome.products >= 2
    assert outcome.wrong == 0
    assert outcome.speed > 0


def test_one_wrong_bit_is_seen():
    calls = []

    def sometimes_wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = a @ b
        calls.append(product)
        if len(calls) == 2:
            product[3, 5] += 1
        return product

    outcome = multiply('cpu', 0.05, size=64, product=sometimes_wrong)
    assert outcome.wrong == 1


def test_values_in_the_wrong_place_are_seen():
    calls = []

    def swaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = a @ b
        calls.append(product)
        # The sum of the row stays.
        return product if len(calls) == 1 else product.flip(1)

    outcome = multiply('cpu', 0.0, size=64, product=swaps)
    assert outcome.wrong == outcome.products - 1


def test_always_wrong_is_seen():
    outcome = multiply('cpu', 0.0, size=64, product=lambda a, b: a @ b + 1)
    assert outcome.wrong == outcome.products


def test_memory_holds():
    assert fill('cpu', 4 << 20, block=1 << 20) == (4 << 20, 0)


def test_memory_that_forgets_a_bit():
    def forget(blocks: list[torch.Tensor]) -> None:
        blocks[2][17] ^= 1 << 40

    assert fill('cpu', 4 << 20, block=1 << 20, change=forget) == (4 << 20, 1)


def test_half_precision_of_this_cpu():
    assert try_precision('cpu', 'bfloat16') == ''
    assert [one.id for one in precision(QUICK)] == ['float16', 'bfloat16']


def test_a_precision_that_is_not_there(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("not implemented for 'Half'\nat line 1")

    monkeypatch.setattr(torch, 'ones', refuse)
    problem = try_precision('cpu', 'float16')
    assert problem == "not implemented for 'Half'"


def test_a_precision_that_is_wrong(monkeypatch):
    if try_precision('cpu', 'float16'):
        pytest.skip(f'torch {torch.__version__} has no float16 on a CPU')
    monkeypatch.setattr(torch, 'ones', torch.zeros)
    assert try_precision('cpu', 'float16') == 'the product is wrong'


def test_memory_of_a_gpu_that_others_use_is_left_alone(monkeypatch):
    monkeypatch.setattr('mmstable.doctor.compute.devices', lambda: ['cuda:0'])
    monkeypatch.setattr(
        torch.cuda, 'mem_get_info', lambda device: (8 << 30, 24 << 30)
    )
    (item,) = allocation(QUICK)
    assert isinstance(item, NotSeen)
    assert item.what == 'memory of cuda:0'
    assert 'another program uses it' in item.why


def test_memory_that_cannot_be_had_is_told(monkeypatch):
    real = torch.empty
    given = []

    def some(*args, **kwargs):
        given.append(args)
        if len(given) > 2:
            raise RuntimeError('out of memory')
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, 'empty', some)
    assert fill('cpu', 8 << 20, block=1 << 20) == (2 << 20, 0)


def test_findings_of_this_machine(monkeypatch):
    monkeypatch.setattr(
        'mmstable.doctor.compute._MOST_OF_HOST', {False: 64 << 20}
    )
    # A broken one would fail here, and should.
    items = [*arithmetic(QUICK), *allocation(QUICK)]
    assert not [one for one in items if isinstance(one, Finding)]


@pytest.mark.dist
def test_two_processes_find_each_other():
    assert start('gloo', 2, patience=100) == ''


@pytest.mark.dist
@pytest.mark.parametrize(
    ('program', 'message'),
    [
        ('import time\ntime.sleep(60)', 'rank 0 has not ended within 0.5 s'),
        ('raise SystemExit("no interface")', 'rank 0 ended with code 1: no'),
        ('print(1, 2.0)', 'rank 0 got 1 2.0'),
    ],
)
def test_processes_that_fail(tmp_path: Path, program: str, message: str):
    path = tmp_path / 'rank.py'
    path.write_text(program)
    patience = 0.5 if 'sleep' in program else 60
    assert start('gloo', 2, patience, path).startswith(message)
