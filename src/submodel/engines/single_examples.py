"""Batches of a single example, on which norms over the batch cannot be trained.

If the server knows the number of examples of each client, such batches are refused before the first
round; otherwise the training that fails on one raises an error with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Setup, Task
from submodel.core.errors import DataError
from submodel.core.randomness import seeded
from submodel.engines.estimate import Estimate
from submodel.model.axes.forward import innermost
from submodel.model.build import build_module
from submodel.model.inputs import Inputs, call, map_inputs, take_rows
from submodel.tasks.training import LocalWork, batch_length, batches_per_pass

_MOST_CLIENTS = 10_000
"""The largest number of clients to check before the first round, in the order of training."""
_MOST_NAMED = 5
_CANNOT = "the model cannot be trained on one example"


def gets_one(total: int, work: LocalWork) -> bool:
    """Return whether a client with ``total`` examples takes a step on a single one.

    >>> work = LocalWork(lr=0.1, batch_size=10)
    >>> [gets_one(total, work) for total in (1, 2, 20, 21)]
    [True, False, False, True]
    >>> gets_one(21, LocalWork(lr=0.1, epochs=None, steps=2, batch_size=10))
    False
    """
    size = batch_length(total, work)
    if size == 1:
        return True
    reaches_last = work.steps is None or work.steps >= batches_per_pass(total, work)
    return total % size == 1 and not work.drop_last and reaches_last


def refusal(module: nn.Module, example: Inputs) -> str | None:
    """The reason why a module can be trained on two examples but not on one; None if it can.

    The module is run, which may change its state.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    >>> refusal(net, torch.zeros(2, 1, 4, 4)) is None, refusal(net, torch.zeros(2, 1, 3, 3))[:31]
    (True, '1 (BatchNorm2d): Expected more ')
    """
    module.train()
    if module_is_empty := any(p.is_meta for p in module.parameters()):
        example = map_inputs(lambda tensor: tensor.to("meta"), example)
    two = map_inputs(lambda tensor: torch.cat([tensor, tensor])[:2], example)
    outputs = []
    with torch.no_grad(), seeded(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in (two, take_rows(two, slice(1))):
            try:
                outputs.append(call(module, batch))
            except Exception as error:
                if not outputs:
                    return None  # the number of examples is not the reason
                text = str(error).splitlines() or [type(error).__name__]
                path, layer = innermost(module, error.__traceback__)
                kind = type(layer).__name__
                return f"{path} ({kind}): {text[0]}" if path else f"{kind}: {text[0]}"
    if module_is_empty or not all(isinstance(out, Tensor) for out in outputs):
        return None
    finite = [bool(torch.isfinite(out).all()) for out in outputs]
    return "its outputs are not finite" if finite == [True, False] else None


def problems(setup: Setup, rounds: int) -> list[str]:
    """The problems of a configuration that gives clients such batches; empty if it does not."""
    size, work = setup.clients.size, setup.work
    affected = [
        client for client in _training_clients(setup, rounds) if gets_one(size(client), work)
    ]
    why = {c: _why(setup, c) for c in set(setup.population.capacities)} if affected else {}
    failing = [c for c in affected if any(why[capacity] for capacity in _capacities(setup, c))]
    if not failing:
        return []
    reason = next(filter(None, why.values()))
    if work.batch_size == 1:
        return [f"local.batch_size: 1 given, but {_CANNOT}: {reason}"]
    several = [client for client in failing if size(client) > 1]
    single = [client for client in failing if size(client) == 1]
    problem_lines = []
    if several:
        problem_lines.append(
            f"local.batch_size: {work.batch_size} leaves a last batch of one example to "
            f"{_name_clients(several)}, but {_CANNOT}: {reason}; set local.drop_last = true, or "
            "another batch size"
        )
    if single:
        problem_lines.append(
            f"clients.count: only one example for {_name_clients(single)}, but {_CANNOT}: "
            f"{reason}; give every client at least two"
        )
    return problem_lines


def _training_clients(setup: Setup, rounds: int) -> Iterable[int]:
    """The clients that will train: all, or if there are very many, those of the first rounds."""
    population = setup.population
    if population.count <= _MOST_CLIENTS:
        return range(population.count)
    sampled_clients = chain.from_iterable(population.sample(round_) for round_ in range(rounds))
    return dict.fromkeys(islice(sampled_clients, _MOST_CLIENTS))


def _capacities(setup: Setup, client: int) -> Iterable[float]:
    """The capacities that a client may have."""
    if setup.population.capacity_mode == "dynamic":
        return setup.population.capacities
    return [setup.population.capacity(client, 0)]


def _why(setup: Setup, capacity: float) -> str | None:
    """The reason why sub-models of a capacity cannot be trained on one example."""
    cut, example = Estimate(setup).cut, setup.clients.dataset.example
    rule = setup.scheme.step_rule(capacity)
    widths = (capacity,) if rule is None else rule.widths
    reasons = (refusal(build_module(setup.module, cut(width)), example) for width in widths)
    return next((reason for reason in reasons if reason), None)


def _name_clients(clients: Sequence[int]) -> str:
    """A short list of clients.

    >>> _name_clients([3]), _name_clients(range(7))
    ('client 3', 'clients 0, 1, 2, 3, 4 and 2 more')
    """
    if len(clients) == 1:
        return f"client {clients[0]}"
    rest = f" and {len(clients) - _MOST_NAMED} more" if len(clients) > _MOST_NAMED else ""
    return f"clients {', '.join(map(str, clients[:_MOST_NAMED]))}{rest}"


class SingleExampleCheck:
    """Checks numbers of examples for batches of one; each capacity is computed once."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._why = lru_cache(maxsize=None)(lambda capacity: _why(setup, capacity))

    def problem(self, examples: int, capacity: float | None) -> str | None:
        """The reason why a client cannot train; capacity None: any capacity of the run."""
        if not gets_one(examples, self._setup.work):
            return None
        capacities = set(self._setup.population.capacities) if capacity is None else {capacity}
        for reason in filter(None, map(self._why, sorted(capacities))):
            remedy = "it needs two" if examples == 1 else "local.drop_last = true omits it"
            return f"{examples} examples give a batch of one, but {_CANNOT}: {reason}; {remedy}"
        return None


FAILURES = (ValueError, RuntimeError, IndexError)
"""Exceptions of modules that cannot be trained on a single example."""


def explain_failure(setup: Setup, tasks: Sequence[Task], error: Exception) -> None:
    """Explain failed training if a batch of a single example is the cause.

    Raises:
        DataError: with the clients and a remedy, if that is the cause; else nothing is raised.
    """
    size = setup.clients.size
    affected = [t for t in tasks if gets_one(size(t.assignment.client), t.work)]
    if not affected:
        return
    reason = refusal(build_module(setup.module, affected[0].cut), setup.clients.dataset.example)
    if reason is not None:
        raise DataError(
            f"{_name_clients([t.assignment.client for t in affected])}: a batch of one example "
            f"occurred, but {_CANNOT}: {reason}; local.drop_last = true omits it, unless a client "
            "has no other example"
        ) from error
