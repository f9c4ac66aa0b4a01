"""Asking a scheme of somebody else once before the first round: does it return masks?"""

from __future__ import annotations

import math

from submodel.algorithm.dispatch import knowledge_of
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Setup
from submodel.errors import SubmodelError
from submodel.schemes import Draw, draw_mask
from submodel.schemes.base import check_members

_CERTAINTY = 30.0
"""Units that are expected over the draws: e^-30 is the chance of none if each is independent."""


def try_scheme(setup: Setup) -> None:
    """Raise unless ``select`` returns a mask for every axis and capacity, and ever holds a unit.

    A single draw may be empty, as Bernoulli draws are. It is asked again as often as makes nothing
    but empty ones beyond belief. The package's own schemes need not be tried. Of members
    that go together a scheme defines all or none.
    """
    scheme = setup.scheme
    check_members(scheme)
    if type(scheme).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return
    try:
        model = knowledge_of(setup, initial_state(setup))
        clients = setup.population.sample(0)
        for capacity in sorted(set(setup.population.capacities)):
            for axis, size in setup.sizes.items():
                share = max(capacity, setup.least.get(axis, 0.0))
                for round_ in range(math.ceil(_CERTAINTY / (size * share))):
                    draw = Draw(setup.seed, round_, clients[0], 0, model)
                    if draw_mask(scheme, axis, size, share, draw).any():
                        break
                else:
                    raise SubmodelError(
                        f"scheme {type(scheme).__name__}: capacity {share:g} never holds anything "
                        f"of axis {axis!r}; select must return a mask that is True somewhere"
                    )
    except SubmodelError:
        raise
    except Exception as error:  # whatever the scheme's own code raises
        raise SubmodelError(
            f"scheme {type(scheme).__name__}: it fails when it is asked for a mask: "
            f"{type(error).__name__}: {error}"
        ) from error
