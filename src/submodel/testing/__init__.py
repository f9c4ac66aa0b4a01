"""Checks for anybody's scheme, tried on a small net."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from submodel.errors import ConfigError, SubmodelError
from submodel.testing.bench import BudgetScope, SchemeBench, require
from submodel.testing.checks import CHECKS, everything

__all__ = ["check_scheme"]


def check_scheme(
    scheme: Any,
    *,
    budget: BudgetScope | None = "axis",
    whole: bool = True,
    **sections: Mapping[str, Any],
) -> list[str]:
    """Try a scheme on a small net with the serial engine; returns what was checked.

    ``scheme`` is what stands under ``scheme`` in a configuration: a name, a table of keys, or the
    class or object itself. Other sections of one (``clients``, ``merge``, ...) adapt the small run
    of five clients, three per round, of capacities 1, 1/2 and 1/4. Unless a granularity is named,
    both are tried, and one that the scheme refuses is left out.

    ``budget`` says what a capacity bounds: its share of every axis, on average; the shares of all
    axes in total; or, None, nothing. ``whole`` says that a client of capacity 1 holds everything
    and trains as FedAvg does.

    Raises AssertionError with the reason where the scheme breaks what every scheme must keep.

    >>> check_scheme({"name": "static", "granularity": "unit"})[:2]
    ['unit: masks have the right form', 'unit: a draw depends on its arguments alone']
    """
    choice = dict(scheme) if isinstance(scheme, Mapping) else {"name": scheme}
    granularities = [choice["granularity"]] if "granularity" in choice else ["unit", "coordinate"]
    findings: list[str] = []
    refusals: list[str] = []
    for granularity in granularities:
        bench = SchemeBench({**choice, "granularity": granularity}, sections, budget)
        bench.config()  # what is misspelt is no refusal
        try:
            bench.setup  # noqa: B018 - made on the first access
        except ConfigError as error:
            refusals.append(f"{granularity}: {error}")
            continue
        except SubmodelError as error:  # what is not even asked in a run
            raise AssertionError(f"{granularity}: {error}") from error
        for check in (*CHECKS, everything) if whole else CHECKS:
            findings += [f"{granularity}: {what}" for what in check(bench)]
    require(bool(findings), "\n".join(["the scheme refuses the run", *refusals]))
    return findings
