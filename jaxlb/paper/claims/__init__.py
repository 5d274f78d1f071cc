"""What the paper claims in sections 3 to 5, each claim computed anew and held against a truth.

The truth is a closed form, written out here in numpy, or a published or high-precision value; never
the function that computed the number.
"""

from . import fluid_limit, linear, numerics
from .claim import Claim

# In the order of the paper.
CLAIMS = (
    *fluid_limit.CLAIMS,
    *linear.CLAIMS,
    *numerics.CLAIMS[:2],
    fluid_limit.one_path_follows_the_fluid_limit,
    *numerics.CLAIMS[2:],
)

__all__ = ["CLAIMS", "Claim"]
