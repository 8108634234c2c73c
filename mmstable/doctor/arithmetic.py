"""Does it compute the same every time, and right?

The matrices hold small whole numbers, so that every sum is exact in float32,
in TF32 too, and in any order: one wrong bit is a broken device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mmstable.doctor.devices import devices
from mmstable.doctor.items import Item, Plan, fact, found
from mmstable.finding import Severity
from mmstable.messages import _

_SIZES = {'cpu': 512, 'cuda': 4096}
_LARGEST = 4


class Outcome(NamedTuple):
    """What became of it.

    Args:
        products (int): How many were computed.
        wrong (int): How many of them were wrong.
        speed (float): Operations per second, of multiplying and adding.
    """

    products: int
    wrong: int
    speed: float


def arithmetic(plan: Plan) -> Iterator[Item]:
    """Multiply the same matrices again and again, on every device."""
    for device in devices():
        outcome = multiply(device, plan.seconds)
        yield fact('products', outcome.products, device)
        yield fact('speed', f'{outcome.speed / 1e9:.0f} GFLOP/s', device)
        if outcome.wrong:
            yield found(
                'wrong_products',
                Severity.ERROR,
                device,
                wrong=outcome.wrong,
                products=outcome.products,
            )
        else:
            yield fact('checksum', _('right'), device)


def multiply(
    device: str,
    seconds: float,
    size: int | None = None,
    product: Callable[[Any, Any], Any] | None = None,
) -> Outcome:
    """Multiply, and compare every product with its checksum.

    Args:
        device (str): Where.
        seconds (float): How long; at least two products are computed.
        size (int, optional): Rows of the matrices; by the device if None.
            Defaults to None.
        product (Callable, optional): How to multiply; ``torch.matmul`` if
            None. Defaults to None.
    """
    import torch

    multiply_by = torch.matmul if product is None else product
    rows = size or _SIZES[device.partition(':')[0]]
    left, right = _matrix(rows, 1), _matrix(rows, 2)
    # By whole numbers on the CPU, in another way than the product's.
    expected = left @ right.sum(1, keepdim=True)
    a, b = left.to(device).float(), right.to(device).float()
    sums = expected.flatten().to(device)
    count = wrong = 0
    start = time.monotonic()
    first = None
    while count < 2 or time.monotonic() - start < seconds:
        result = multiply_by(a, b)
        first = result if first is None else first
        # Row sums find any wrong value, and equal bits any swapped ones.
        is_right = torch.equal(result.long().sum(1), sums)
        wrong += not (is_right and torch.equal(result, first))
        count += 1
    took = time.monotonic() - start
    return Outcome(count, wrong, 2.0 * rows**3 * count / took)


def _matrix(rows: int, seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        -_LARGEST, _LARGEST + 1, (rows, rows), generator=generator
    )
