"""Schemes by name: the package's own, those of installed packages, and classes by their path.

An installed package offers a scheme by an entry point of the group ``submodel.schemes``; a class in
any module is named as ``package.module:Class``. Both are called with ``scheme.options``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from submodel.errors import ConfigError, SubmodelError
from submodel.plugins import find, is_path
from submodel.schemes.base import Scheme
from submodel.schemes.dropout import Dropout
from submodel.schemes.full import Full
from submodel.schemes.hierarchical import Hierarchical
from submodel.schemes.importance import Importance
from submodel.schemes.masked_sgd import MaskedSgd
from submodel.schemes.ordered.scheme import Ordered
from submodel.schemes.partition import Partition
from submodel.schemes.pruned import Pruned
from submodel.schemes.random.scheme import Random
from submodel.schemes.rolling import Rolling, default_windows
from submodel.schemes.static import Static
from submodel.schemes.unbiased.scheme import Unbiased

if TYPE_CHECKING:
    from submodel.schemes.choice import SchemeChoice

GROUP = "submodel.schemes"
"""The entry-point group in which packages offer schemes."""
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Offer:
    """A scheme that can be named in a configuration."""

    about: str
    make: Callable[[SchemeChoice, Sizes], Scheme]


OFFERS: dict[str, Offer] = {
    "full": Offer("everything (FedAvg)", lambda _choice, _sizes: Full()),
    "static": Offer("the first units (HeteroFL)", lambda _choice, _sizes: Static()),
    "rolling": Offer(
        "windows (Algorithm 2, FedRolex)",
        lambda choice, sizes: Rolling(choice.windows or default_windows(sizes), choice.order),
    ),
    "random": Offer("fresh draws (Algorithm 1)", lambda choice, _sizes: Random(choice.sampling)),
    "ordered": Offer(
        "prefixes, a width per step (FjORD)",
        lambda choice, _sizes: Ordered(tuple(choice.widths or ()), choice.distill),
    ),
    "unbiased": Offer(
        "fresh draws, divided by their chances (MAST)",
        lambda choice, _sizes: Unbiased(choice.sampling),
    ),
    "masked-sgd": Offer(
        "one machine, another scheme's masks (Mohtashami et al.)",
        lambda choice, sizes: MaskedSgd(
            make(choice.model_copy(update={"name": choice.sequence}), sizes)
        ),
    ),
    "dropout": Offer(
        "fresh draws of fixed size (Federated Dropout)", lambda _choice, _sizes: Dropout()
    ),
    "partition": Offer("disjoint parts (IST)", lambda choice, _sizes: Partition(choice.every or 1)),
    "importance": Offer("the largest (FIARSE)", lambda choice, _sizes: Importance(choice.scope)),
    "hierarchical": Offer(
        "a part of the model for each cell of clients (HIST)",
        lambda choice, _sizes: Hierarchical(choice.cells, choice.every or 5),
    ),
    "pruned": Offer(
        "one sparse model for all, adapted to gradients (PruneFL)",
        lambda choice, _sizes: Pruned(
            choice.every or 5, choice.prunable, choice.base_cost, choice.reentry
        ),
    ),
}


def names() -> list[str]:
    """Every name that can be given, but for paths of classes.

    >>> names()[:2]
    ['full', 'static']
    """
    return [*OFFERS, *(e.name for e in entry_points(group=GROUP) if e.name not in OFFERS)]


def descriptions() -> list[str]:
    """Name and purpose of every scheme of the package.

    >>> descriptions()[0]
    'full: everything (FedAvg)'
    """
    return [
        *(f"{name}: {offer.about}" for name, offer in OFFERS.items()),
        "or an installed package's, or package.module:Class",
    ]


def is_scheme(name: str) -> bool:
    """Whether the name can be one of a scheme; whether its class loads is found out later.

    >>> is_scheme("rolling"), is_scheme("mine.schemes:Mine"), is_scheme("roling")
    (True, True, False)
    """
    return is_path(name) or name in OFFERS or name in names()


def make(choice: SchemeChoice, sizes: Sizes) -> Scheme:
    """The scheme of a configuration, for axes of these sizes."""
    if choice.name in OFFERS:
        own = choice.name == "masked-sgd" and choice.sequence not in OFFERS
        if choice.options and not own:
            raise ConfigError([f"scheme.options: for own schemes, not for {choice.name!r}"])
        return OFFERS[choice.name].make(choice, sizes)
    return _own(choice.name, choice.options)


def _own(name: str, options: Mapping[str, Any]) -> Scheme:
    if is_path(name):
        made = find(name, "scheme.name")
    else:
        (entry,) = (e for e in entry_points(group=GROUP) if e.name == name)
        made = entry.load()
    try:
        scheme = made(**options)
    except TypeError as error:
        wrong = "options: {} does not take them" if options else "name: {} cannot be made"
        raise ConfigError([f"scheme.{wrong.format(name)} ({error})"]) from None
    except SubmodelError:
        raise
    except Exception as error:  # whatever the scheme's own code raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError([f"scheme.name: {name} fails: {reason}"]) from error
    if not isinstance(scheme, Scheme):
        raise ConfigError([f"scheme.name: {name} is not a submodel.schemes.Scheme"])
    return scheme
