"""What an optimizer wrapper adds to a training step, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from mmstable import run_view
from mmstable.events.samples import read_scale
from mmstable.optim.parameter_names import clean_name, first_parameter


@dataclass(frozen=True)
class StepSetup:
    """How the loss of a wrapper is computed and scaled.

    Args:
        dtype (str, optional): What autocast casts to; None without autocast.
            Defaults to None.
        loss_scale (float): What the loss is multiplied by. Defaults to 1.0.
        loss_factor (int): What it is divided by: iterations that make one
            step. Defaults to 1.
        parameters (tuple[str]): Names of the parameters that are trained.
            Defaults to ().
    """

    dtype: str | None = None
    loss_scale: float = 1.0
    loss_factor: int = 1
    parameters: tuple[str, ...] = ()

    @contextmanager
    def autocast(
        self, device_type: str, dtype: str | None = None
    ) -> Iterator[None]:
        """The context of a forward pass.

        Args:
            device_type (str): Where the model is: 'cpu', 'cuda', ...
            dtype (str, optional): What to cast to instead; 'float32' means
                no autocast. Defaults to None.
        """
        name = dtype or self.dtype
        if name is None or name == 'float32':
            yield
            return
        with torch.autocast(device_type, dtype=getattr(torch, name)):
            yield


def setup_of(
    wrapper: Any, model: Module, loss_scale: float | None = None
) -> StepSetup:
    """The setup of an optimizer wrapper.

    Args:
        wrapper (Any): A wrapper of mmengine or of mmstable.
        model (Module): The model, without DDP and the like around it.
        loss_scale (float, optional): The scale of the step; that of now if
            not given. Defaults to None.
    """
    names = {id(one): name for name, one in model.named_parameters()}
    trained = [
        names.get(id(one))
        for group in wrapper.optimizer.param_groups
        for one in group['params']
    ]
    scale = read_scale(wrapper) if loss_scale is None else loss_scale
    return StepSetup(
        _cast_dtype(wrapper),
        1.0 if scale is None else scale,
        run_view.accumulative_counts(wrapper),
        tuple(clean_name(name) for name in trained if name is not None),
    )


def _cast_dtype(wrapper: Any) -> str | None:
    if not hasattr(wrapper, 'cast_dtype'):
        return None
    dtype = wrapper.cast_dtype
    if dtype is None:
        # mmengine leaves the choice to torch.
        kind = first_parameter(wrapper.optimizer).device.type
        dtype = torch.bfloat16 if kind == 'cpu' else torch.float16
    name = str(dtype).replace('torch.', '')
    return None if name in ('float32', 'float64') else name
