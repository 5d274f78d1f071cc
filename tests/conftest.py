import jax

# The library leaves precision to its caller; closed forms are compared in double.
jax.config.update("jax_enable_x64", True)
