"""What the machines of these tests lack, so that OpenMMLab can be imported.

Python runs this file at its start if its folder is in ``PYTHONPATH``. It
stands in for three things, each only where it is missing:

- ``mmcv.ops``, whose compiled part mmcv-lite does not have: every name in it
  is a class that cannot be built.
- ``torchvision::nms`` and ``torchvision::qnms``, without which torchvision
  cannot be imported next to a torch that its compiled operators were not
  made for: they are declared, not implemented.
- ``numpy.bool8``, which numpy 2 has no longer and mmagic 1.2.0 asks for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OPS = 'mmcv.ops'
NMS = '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'
# Libraries of torch live as long as somebody holds them.
held: list[Any] = []


def stub_class(name: str) -> type:
    """A class that can be derived from and registered, but not built."""
    from torch import nn

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f'{OPS}.{name} is a stub of the tests')

    return type(name, (nn.Module,), {'__init__': refuse})


class StubLoader(Loader):
    """Makes a module that has every name."""

    def create_module(self, spec: Any) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give it every name."""
        module.__path__ = []

        def attribute(name: str) -> type:
            if name.startswith('__'):
                raise AttributeError(name)
            found = stub_class(name)
            setattr(module, name, found)
            return found

        vars(module)['__getattr__'] = attribute


class StubFinder(MetaPathFinder):
    """Asked first for every module that is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """A stub, or None for the others to find it."""
        if fullname == 'torchvision':
            declare_nms()
        if fullname == 'mmagic':
            restore_bool8()
        is_op = fullname == OPS or fullname.startswith(OPS + '.')
        if is_op and PathFinder.find_spec('_ext', places('mmcv')) is None:
            return importlib.util.spec_from_loader(fullname, StubLoader())
        return None


def places(package: str) -> list[str]:
    """The folders of a package, without importing it."""
    spec = PathFinder.find_spec(package)
    return list(spec.submodule_search_locations or []) if spec else []


def declare_nms() -> None:
    """Declare what torchvision asks for, if it does not bring it along."""
    import torch

    for place in places('torchvision'):
        for file in Path(place).glob('_C*.so'):
            try:
                torch.ops.load_library(str(file))
            except (OSError, RuntimeError):
                continue
            return
    library = torch.library.Library('torchvision', 'DEF')
    library.define('nms' + NMS)
    library.define('qnms' + NMS)
    held.append(library)


def restore_bool8() -> None:
    """The old name of numpy's bool."""
    import numpy

    if not hasattr(numpy, 'bool8'):
        numpy.bool8 = numpy.bool_


sys.meta_path.insert(0, StubFinder())
