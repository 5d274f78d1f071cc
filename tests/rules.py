"""Rules that know nothing of the package, as users write them."""

import equinox as eqx
import jax
import jax.random as jr


class Perceptron(eqx.Module):
    """A rule of a user's own, that knows nothing of this package."""

    network: eqx.nn.MLP

    def __init__(self, servers):
        self.network = eqx.nn.MLP(servers, servers, width_size=8, depth=1, key=jr.key(0))

    def __call__(self, queue):
        return jax.nn.softmax(self.network(queue))


class Fixed(eqx.Module):
    """The same shares whatever the queues, be they probabilities or not."""

    shares: jax.Array

    def __call__(self, queue):
        return self.shares + 0 * queue


class Counted(eqx.Module):
    """The logit rule; `traces` grows by one each time that it is traced."""

    sensitivity: jax.Array
    traces: list = eqx.field(static=True)

    def __call__(self, queue):
        self.traces.append(None)
        return jax.nn.softmax(-self.sensitivity * queue)
