"""Names for configs that are files."""

from mmengine.registry import DATASETS, HOOKS, MODELS

from tests.guard.runs import Poison
from tests.toys import ToyData, ToyModel

MODELS.register_module(name='GuardedToyModel', module=ToyModel, force=True)
DATASETS.register_module(name='GuardedToyData', module=ToyData, force=True)
HOOKS.register_module(name='Poison', module=Poison, force=True)
