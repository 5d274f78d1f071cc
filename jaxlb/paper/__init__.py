"""The paper's figures and claims, computed anew: the main job.

Load balancing in parallel infinite-server queues with action delay via phase representation (2026).
"""

from .cases import IMBALANCE_HORIZON
from .run import PARTS, num_steps, reproduce

__all__ = ["IMBALANCE_HORIZON", "PARTS", "num_steps", "reproduce"]
