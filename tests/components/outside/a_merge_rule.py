"""A merge rule that counts every holder twice, so that changes are halved."""

from torch import Tensor


class Cautious:
    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor:
        return 2 * holder_weight
