"""Empty modules in place of torchvision, which timm imports and which has no build for a CPU-only torch."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


class StandIns(importlib.abc.Loader):
    """Finds torchvision and whatever is asked of it."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = self.attribute
        return module

    def attribute(self, name):
        if name.startswith("__") or name == "InterpolationMode":
            raise AttributeError(name)
        return type(name, (), {})

    def exec_module(self, module):
        """Nothing to run."""


def stand_in():
    """From now on, unless the real one is installed."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, StandIns())
