"""Several devices and several processes, on the JAX backend."""
