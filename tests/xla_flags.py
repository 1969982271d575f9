"""Flags with which XLA compiles sooner: that takes most of its time in tests, and few of them look at what follows."""

from importlib import metadata

from packaging.version import Version


def quick_flags():
    """The last one is the older way to emit fusions, which takes half as long.

    XLA ends a process at a flag that it lacks: TensorFlow has that one from 2.21 on, and JAX lost it with 0.11.
    """
    has_it = version("tensorflow-cpu", "0") >= Version("2.21") and version("jaxlib", "0") < Version("0.11")
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return f"{quick} --xla_cpu_use_fusion_emitters=false" if has_it else quick


def version(distribution, otherwise):
    """The version that is installed, or the one that is said."""
    return Version(next((each.version for each in metadata.distributions(name=distribution)), otherwise))
