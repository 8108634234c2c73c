from __future__ import annotations

import pytest

from mmstable.events import Fault
from mmstable.events.records import classify


@pytest.mark.parametrize(
    ('loss_is_finite', 'scale_can_shrink', 'fault'),
    [
        (False, True, Fault.NAN_LOSS),
        (False, False, Fault.NAN_LOSS),
        (True, True, Fault.OVERFLOW),
        (True, False, Fault.NAN_GRAD),
    ],
)
def test_fault_classes(loss_is_finite, scale_can_shrink, fault):
    assert classify(loss_is_finite, scale_can_shrink) is fault
