"""Losses, the logits that they and the metrics read, and the number of terms a loss averages.

The mean of the means of batches is the mean of all only if each batch has the weight of the terms
that its loss averages: tokens that are not ignored, say, rather than sequences. A loss may give
their number by its method ``count``; for others, the averaging calls are observed while the loss
is computed.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from submodel.core.errors import ConfigError, SubmodelError
from submodel.tasks.builtin_tasks import AbsentLabels

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss over the batch.

If not all examples count alike, the optional ``loss.count(targets)`` gives the number of averaged
terms (`submodel.tasks.loss`)."""

NO_LABEL = -100
"""A label to ignore: the default of torch's cross-entropy, and of Hugging Face."""


def by_label(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return one row of logits for every label that is not ignored.

    Outputs are (examples, classes) for labels (examples,). For sequences (examples, places) they
    are (examples, places, classes), as of language models, or (examples, classes, places), as
    torch's cross-entropy takes them; the former if both fit.

    >>> logits, labels = by_label(torch.zeros(2, 3, 5), torch.tensor([[1, 2, -100], [0, 4, 4]]))
    >>> logits.shape, labels.tolist()
    (torch.Size([5, 5]), [1, 2, 0, 4, 4])
    """
    rows, labels = flat_logits(outputs, targets)
    counts = labels != NO_LABEL
    if not bool(counts.all()):
        rows, labels = rows[counts], labels[counts]
    if len(labels) and int(labels.max()) >= rows.shape[1]:
        raise ConfigError(
            f"task: {rows.shape[1]} outputs are not logits for labels up to {int(labels.max())}"
        )
    return rows, labels


def flat_logits(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same as `by_label`, including ignored labels.

    >>> flat_logits(torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.long))[0].shape
    torch.Size([6, 5])
    """
    if outputs.shape[:-1] == targets.shape:
        return outputs.flatten(0, -2), targets.flatten()
    if outputs.dim() == targets.dim() + 1 and outputs[:, 0].shape == targets.shape:
        return torch.movedim(outputs, 1, -1).flatten(0, -2), targets.flatten()
    raise ConfigError(
        f"task: outputs of shape {tuple(outputs.shape)} are not logits for targets of shape "
        f"{tuple(targets.shape)}; want {(*targets.shape, 'classes')}"
    )


class MaskedCrossEntropy:
    """Cross-entropy for a client that lacks some labels.

    ``zero`` sets the absent logits to zero, as HeteroFL and FedRolex do: they still count in the
    softmax. ``leave_out`` removes them from it. The logits may be those of all classes or, if the
    rows of the classifier are cut, of the present classes only.

    >>> import math
    >>> loss = MaskedCrossEntropy(torch.tensor([2, 5]), classes=10, absent="leave_out")
    >>> round(float(loss(torch.zeros(1, 10), torch.tensor([5]))), 4) == round(math.log(2), 4)
    True
    """

    def __init__(
        self, present: Tensor, classes: int, absent: AbsentLabels, smoothing: float = 0.0
    ) -> None:
        self.present, self.smoothing = present, smoothing
        self.padding = classes - len(present) if absent == "zero" else 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the batch."""
        return functional.cross_entropy(
            self.logits(logits),
            torch.searchsorted(self.present, targets),
            label_smoothing=self.smoothing,
        )

    def count(self, targets: Tensor) -> int:
        """Return the number of examples."""
        return len(targets)

    def logits(self, logits: Tensor) -> Tensor:
        """Return the logits that enter the softmax."""
        if logits.shape[1] != len(self.present):
            logits = logits[:, self.present]
        return functional.pad(logits, (0, self.padding)) if self.padding else logits


def smoothing_of(loss: Loss) -> float:
    """Return the label smoothing of a cross-entropy; 0 for any other loss.

    >>> smoothing_of(nn.CrossEntropyLoss(label_smoothing=0.1)), smoothing_of(nn.MSELoss())
    (0.1, 0.0)
    """
    return loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0


@dataclass(frozen=True)
class TokenCrossEntropy:
    """The mean cross-entropy over all places whose target is not -100.

    >>> loss = TokenCrossEntropy()
    >>> targets = torch.tensor([[0, -100], [1, 1]])
    >>> round(float(loss(torch.zeros(2, 2, 4), targets)), 3), loss.count(targets)
    (1.386, 3)
    """

    label_smoothing: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the targets that count."""
        rows, labels = flat_logits(outputs, targets)
        return functional.cross_entropy(
            rows, labels.long(), ignore_index=NO_LABEL, label_smoothing=self.label_smoothing
        )

    def count(self, targets: Tensor) -> int:
        """Return the number of targets that count."""
        return int((targets != NO_LABEL).sum())


_log = logging.getLogger(__name__)
_CROSS_ENTROPIES = (functional.cross_entropy, functional.nll_loss)
_MEANS = (torch.mean, Tensor.mean)
_SUMS = (torch.sum, Tensor.sum)
_QUOTIENTS = (torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__)
NOTHING_COUNTS = "none of its targets counts in the loss"


@dataclass(frozen=True)
class Value:
    """The loss of a batch."""

    mean: Tensor
    count: float  # of the averaged terms, as a number of examples with all their targets
    is_count_known: bool = True  # otherwise all examples are assumed to count alike


def value_of(loss: Loss, outputs: Tensor, targets: Tensor) -> Value:
    """Compute the loss of a batch, and the number of terms it averages.

    >>> targets = torch.tensor([[1, -100], [0, 1]])
    >>> value_of(functional.cross_entropy, torch.zeros(2, 3, 2), targets).count
    1.5
    """
    examples = len(targets)
    if (count_terms := getattr(loss, "count", None)) is not None:
        return Value(loss(outputs, targets), _count_by_loss(count_terms, targets))
    each = targets.numel() / examples  # targets of an example
    if loss is functional.cross_entropy and not targets.is_floating_point():
        count = examples if targets.dim() == 1 else int((targets != NO_LABEL).sum()) / each
        return Value(loss(outputs, targets), count)
    with _Averages(outputs, targets) as averages:
        mean = loss(outputs, targets)
    terms = averages.count()
    if terms == 0 and bool(torch.isfinite(mean)):
        terms = None  # a mean over nothing is NaN, so the loss must average something else
    return Value(mean, examples if terms is None else terms / each, terms is not None)


class CountingLoss:
    """A loss that stores the number of terms of its last value; None before the first.

    >>> loss = CountingLoss(functional.mse_loss)
    >>> float(loss(torch.zeros(3, 2), torch.ones(3, 2))), loss.last
    (1.0, 3.0)
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.last: float | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the batch."""
        value = value_of(self.loss, outputs, targets)
        self.last = value.count
        return value.mean


def _count_by_loss(count_terms: Callable[[Tensor], Any], targets: Tensor) -> float:
    """Evaluate the attribute ``count`` of the loss."""
    answer = count_terms(targets) if callable(count_terms) else count_terms
    try:
        count = _number(answer) if callable(count_terms) else math.nan
    except (TypeError, ValueError, RuntimeError):
        count = math.nan
    if not 0 <= count < math.inf:
        raise SubmodelError(
            f"loss.count(targets): {answer!r} given; want the number of terms averaged in the "
            "loss of these targets, 0 or more"
        )
    return count


class _Averages(TorchFunctionMode):
    """A context that observes torch functions which average results computed from given tensors."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__()
        self._results = {id(tensor): ref(tensor) for tensor in tensors}  # weak: they may be large
        self._entropies: list[float] = []
        self._others: list[float] = []
        self._totals: list[Tensor] = []  # results of sums, which may be divided explicitly

    def count(self) -> float | None:
        """Return the number of terms of the last mean; cross-entropies take precedence."""
        counts = self._entropies or self._others
        return counts[-1] if counts else None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function and record the number of averaged terms."""
        keywords = kwargs or {}
        result = func(*args, **keywords)
        if any(self._is_result(tensor) for tensor in _tensors((args, *keywords.values()))):
            for tensor in _tensors(result):
                self._results[id(tensor)] = ref(tensor)
            if isinstance(result, Tensor) and result.dim() == 0:
                self._note(func, args, keywords, result)
        return result

    def _is_result(self, tensor: Tensor) -> bool:
        reference = self._results.get(id(tensor))
        return reference is not None and reference() is tensor

    def _note(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        result: Tensor,
    ) -> None:
        if func in _MEANS:
            self._others.append(_first(args, keywords).numel())
        elif func in _SUMS:
            self._totals.append(result)
        elif func in _QUOTIENTS and len(args) == 2:
            if any(args[0] is total for total in self._totals) and args[1] >= 0:
                self._others.append(_number(args[1]))
        elif inspect.isfunction(func) and func.__module__ == functional.__name__:
            call = _arguments(func, args, keywords)
            reduction = call.get("reduction")
            if reduction == "sum":
                self._totals.append(result)
            elif reduction in ("mean", "batchmean"):
                if func in _CROSS_ENTROPIES:
                    self._entropies.append(_terms(call))
                else:
                    self._others.append(_first(args, keywords).numel())


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def _first(args: Sequence[Any], keywords: Mapping[str, Any]) -> Tensor:
    tensor: Tensor = args[0] if args else keywords["input"]
    return tensor


def _arguments(
    func: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments of a call by parameter name, with defaults."""
    call = _signature(func).bind(*args, **keywords)
    call.apply_defaults()
    return call.arguments


_signature = lru_cache(maxsize=64)(inspect.signature)


def _terms(call: Mapping[str, Any]) -> float:
    """Return the divisor of a cross-entropy: the total weight of the targets not ignored."""
    inputs, targets, weight = call["input"], call["target"], call["weight"]
    if targets.is_floating_point():  # a distribution over the classes
        return float(targets.numel() / inputs.shape[min(1, inputs.dim() - 1)])
    is_term = targets != call["ignore_index"]
    return _number(is_term.sum() if weight is None else weight[targets[is_term]].sum())


def _number(value: Tensor | float) -> float:
    return value.item() if isinstance(value, Tensor) else float(value)


class LossSums:
    """The mean losses of some clients, accumulated batch by batch."""

    def __init__(self, clients: int = 1, device: torch.device | str = "cpu") -> None:
        self._totals = torch.zeros(clients, dtype=torch.float64, device=device)
        self._units = [0.0] * clients  # count of a client's first batch, so equal batches weigh 1
        self._weights = [0.0] * clients
        self.counts = [0.0] * clients

    def add(self, values: Tensor, counts: Sequence[float], start: int = 0) -> None:
        """Add one batch of each of some neighbouring clients."""
        weights = []
        for client, count in enumerate(counts, start):
            self._units[client] = self._units[client] or count
            weights.append(count / self._units[client] if count else 0.0)
            self._weights[client] += weights[-1]
            self.counts[client] += count
        values = values.detach().to(self._totals)
        if any(weight != 1 for weight in weights):
            factors = values.new_tensor(weights)
            values = torch.where(factors > 0, values * factors, 0.0)
        self._totals[start : start + len(counts)] += values

    def means(self) -> list[float]:
        """Return the mean loss of each client; 0 for a client without counted targets."""
        return [
            total / weight if weight else 0.0
            for total, weight in zip(self._totals.tolist(), self._weights, strict=True)
        ]


def batch_weights(counts: Sequence[float], lengths: Sequence[int]) -> Sequence[float]:
    """Return the weights of batches with these counts; their lengths if examples count alike.

    >>> batch_weights([6.0, 6.0, 3.0], [2, 2, 1]), batch_weights([6.0, 5.0], [2, 2])
    ([2, 2, 1], [6.0, 5.0])
    """
    alike = all(c * lengths[0] == counts[0] * n for c, n in zip(counts, lengths, strict=True))
    return lengths if alike and counts[0] else counts


def check_unknown(loss: Loss, outputs: Tensor, targets: Tensor, whole: Tensor) -> None:
    """Warn once if a loss that averages in an unobserved way does not count examples alike."""
    half = len(targets) // 2
    if not half:
        return
    parts = [
        (len(y), float(loss(o, y)))
        for o, y in ((outputs[:half], targets[:half]), (outputs[half:], targets[half:]))
    ]
    mean = sum(n * value for n, value in parts) / len(targets)
    error = 1000 * torch.finfo(whole.dtype).eps  # generous, for sums in another order
    if not math.isclose(mean, float(whole), rel_tol=error, abs_tol=error):
        _warn(getattr(loss, "__qualname__", type(loss).__qualname__))


@lru_cache(maxsize=64)
def _warn(name: str) -> None:
    _log.warning(
        "the loss %s of a batch is not the mean over its examples, and its number of terms is "
        "unknown: losses in the metrics weigh batches by examples. Define "
        "loss.count(targets) -> number of terms",
        name,
    )
