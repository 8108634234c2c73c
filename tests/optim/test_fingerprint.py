"""Fingerprints of tensors."""

import pytest
import torch

from mmstable.optim.grad_health import fingerprints

KINDS = [torch.float32, torch.float16, torch.float64, torch.int64, torch.bool]


@pytest.mark.parametrize('dtype', [*KINDS, torch.complex64])
def test_one_bit_makes_a_difference(dtype):
    tensor = torch.ones(3, 5, dtype=dtype)
    other = tensor.clone()
    assert torch.equal(fingerprints([tensor]), fingerprints([other]))
    other[1, 2] = 0
    assert not torch.equal(fingerprints([tensor]), fingerprints([other]))


def test_the_smallest_change_of_one_weight_is_seen():
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    other = tensor.clone()
    other[500] = torch.nextafter(other[500], torch.tensor(9.0))
    marks = fingerprints([tensor, other, tensor[:], torch.zeros(0)])
    assert marks[0] != marks[1]
    assert marks[0] == marks[2]


def test_without_torch_that_hashes(monkeypatch):
    monkeypatch.delattr(torch, 'hash_tensor', raising=False)
    tensor = torch.randn(7)
    assert fingerprints([tensor]) == fingerprints([tensor.clone()])
    assert fingerprints([tensor]) != fingerprints([tensor + 1])
    assert fingerprints([]).numel() == 0
