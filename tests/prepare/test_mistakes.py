"""Common mistakes: each is reported in a sentence before the first round, without a traceback."""
# ruff: noqa: ARG002, ARG005 - schemes and losses are given more than these look at

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import submodel
from submodel import Dataset, SubmodelError, dataset, declare, trace
from submodel.schemes import Draw, Mask, Random, Scheme
from submodel.testing import check_scheme
from tests.pins import errors
from tests.support.commands import Command

Pair = tuple[Tensor, Tensor]
WHOLE: Mapping[str, Any] = {"clients": {"capacities": [1]}, "local": {"absent_labels": "keep"}}
PLAIN: Mapping[str, Any] = {"data": {"partition": "iid"}, "local": {"absent_labels": "keep"}}
KEEP: Mapping[str, Any] = {"local": {"absent_labels": "keep"}}
ABSENT: Mapping[str, Any] = {"local": {"absent_labels": "leave_out"}}
LABELS: Mapping[str, Any] = {"data": {"partition": "labels"}}
WEIGHTS: Mapping[str, Any] = {"scheme": {"granularity": "coordinate"}, **KEEP}


def config(*changes: Mapping[str, Any], **sections: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "clients": {"count": 4, "per_round": 2, "capacities": [1, 0.5]},
        "data": {"labels_per_client": 2},
        "local": {"steps": 1},
        "train": {"rounds": 1},
    }
    for table in (*changes, sections):
        for name, section in table.items():
            made[name] = {**made.get(name, {}), **section}
    if made["data"].get("partition", "labels") != "labels":
        del made["data"]["labels_per_client"]
    return made


def net(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def pair(classes: int = 3, inputs: int = 6, kind: torch.dtype = torch.float32) -> Pair:
    x = torch.randn(24, inputs, generator=torch.Generator().manual_seed(0))
    return x.to(kind), torch.arange(24) % classes


def own(x: Tensor | None = None, y: Tensor | None = None) -> Dataset:
    given = pair()
    both = (given[0] if x is None else x), (given[1] if y is None else y)
    return dataset(both, both)


def tokens(x: Tensor, test: Tensor | None = None) -> Any:
    words = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(48, 3))
    y = torch.arange(len(x)) % 3
    return lambda: train(words, dataset((x, y), (x if test is None else test, y)))


ROUNDS: list[Mapping[str, Any]] = []


def train(model: Any = None, data: Any = None, given: Any = None, **options: Any) -> Any:
    arguments = {"on_round": ROUNDS.append, **options}
    return submodel.train(
        net() if model is None else model,
        own() if data is None else data,
        config() if given is None else given,
        **arguments,
    )


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x))


class TwoInputs(Layers):
    def forward(self, x: Tensor, scale: Tensor) -> Any:
        return self.last(self.hidden(x) * scale)


class Branching(Layers):
    def forward(self, x: Tensor) -> Any:
        hidden = self.hidden(x)
        return self.last(hidden * 2 if hidden.sum() > 1e9 else hidden)


class Misspelt(Layers):
    def forward(self, x: Tensor) -> Any:
        return self.lost(self.hidden(x))  # type: ignore[operator]


class Returning(Layers):
    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(self.last(self.hidden(x)))


def frozen() -> nn.Module:
    return net().requires_grad_(False)


def infinite() -> nn.Module:
    model = net()
    for parameter in model.parameters():
        parameter.data.fill_(float("inf"))
    return model


def in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return net()


def column(number: int) -> Dataset:
    return own(y=pair()[0][:, number])


# mistakes in Python with parts of the messages
MODELS: dict[str, tuple[Callable[[], Any], *tuple[str, ...]]] = {
    "two inputs": (lambda: train(TwoInputs()), "TwoInputs", "takes (x", "'scale'"),
    "two inputs, uncut": (lambda: train(TwoInputs(), None, config(WHOLE)), "'scale'"),
    "another shape": (lambda: train(net(7)), "training data", "(2, 6)", "'0' (Linear)", "7x8"),
    "another shape, masks": (lambda: train(net(7), None, config(WEIGHTS)), "(2, 6)", "7x8"),
    "another shape, uncut": (lambda: train(net(7), None, config(WHOLE)), "(2, 6)", "7x8"),
    "not flat": (lambda: train(net(64), own(torch.randn(24, 8, 8))), "x.flatten(1)"),
    "no channel": (
        lambda: train(nn.Sequential(nn.Conv2d(1, 8, 8), nn.Flatten(), nn.Linear(8, 3)),
                      own(torch.randn(24, 8, 8))), "'0' (Conv2d)", "x.unsqueeze(1)"),
    "channels last": (
        lambda: train(nn.Sequential(nn.Conv2d(3, 8, 8), nn.Flatten(), nn.Linear(8, 3)),
                      own(torch.randn(24, 8, 8, 3))), "x.movedim(-1, 1)"),
    "all frozen": (lambda: train(frozen()), "frozen", "requires_grad_(True)"),
    "no parameters": (lambda: train(nn.Flatten()), "Flatten", "no parameters"),
    "a misspelt layer": (lambda: train(Misspelt()), "Misspelt", "AttributeError", "'lost'"),
    "a tuple": (lambda: train(Returning(lambda o: (o, o))), "returns a tuple", "one output tensor"),
    "a dictionary": (lambda: train(Returning(lambda o: {"logits": o})), "returns a dict"),
    "nothing": (lambda: train(Returning(lambda o: None)), "returns a NoneType"),
    "an array": (lambda: train(Returning(lambda o: o.detach().numpy())), "returns a ndarray"),
    "a recurrent layer": (lambda: train(nn.LSTM(6, 3)), "returns a tuple"),
    "detached": (lambda: train(Returning(Tensor.detach)), "depend"),
    "one number each": (lambda: train(Returning(lambda o: o[:, 0])), "(2,)", "class"),
    "a third dimension": (lambda: train(Returning(lambda o: o[:, :, None])), "(2, 3, 1)"),
    "lazy": (lambda: train(nn.Sequential(nn.LazyLinear(3))), "0.weight", "shape"),
    "lazy, uncut": (
        lambda: train(nn.Sequential(nn.LazyLinear(3)), None, config(WHOLE)), "shape"),
    "on the meta device": (lambda: train(net().to("meta")), "0.weight", "meta", "no values"),
    "not finite": (lambda: train(infinite()), "0.weight", "not finite"),
    "made in inference mode": (lambda: train(in_inference_mode()), "inference mode"),
    "half precision": (lambda: train(net().half()), "float32", "x.half()"),
    "a name": (lambda: train("cnn"), "a str ", "nn.Module"),
    "a class": (lambda: train(TwoInputs), "TwoInputs", "class"),
    "a function": (lambda: train(lambda x: x), "a function ", "nn.Module"),
    "of NaN": (lambda: train(Returning(lambda o: o * float("nan"))), "the loss", "nan"),
}  # fmt: skip
DATA: dict[str, tuple[Callable[[], Any], *tuple[str, ...]]] = {
    "a name": (lambda: train(data="digits"), "'digits'", "submodel.dataset", "submodel.digits()"),
    "three parts": (lambda: train(data=(pair(),) * 3), "a tuple", "submodel.dataset"),
    "a TensorDataset": (lambda: train(data=TensorDataset(*pair())), "a TensorDataset"),
    "words": (lambda: dataset((np.array(["a", "b"]), np.arange(2)), pair()),
              "training data: inputs", "ndarray of <U1", "numbers"),
    "objects": (lambda: dataset(pair(), (pair()[0], np.array([None] * 24))),
                "test data: targets", "ndarray of object"),
    "lists": (lambda: dataset(([[1.0]], [0]), pair()),
              "a list", "torch.tensor"),
    "no test part": (lambda: dataset(pair(), None), "test data", "pair"),
    "x and y": (lambda: dataset(*pair()), "a Tensor "),
    "three of them": (lambda: dataset((*pair(), pair()[1]), pair()),
                      "a tuple of 3"),
    "a DataLoader": (lambda: dataset(DataLoader(TensorDataset(*pair())), pair()),
                     "a DataLoader "),
    "single numbers": (lambda: dataset((torch.tensor(1.0), torch.tensor(0)), pair()),
                       "entry"),
    "sparse": (lambda: own(torch.eye(24).to_sparse()), "sparse", "to_dense"),
    "on another device": (lambda: own(pair()[0].to("meta")), "meta", "engine.device"),
    "NaN": (lambda: own(pair()[0].index_fill(0, torch.tensor(3), float("nan"))), "example 3"),
    "none": (lambda: own(pair()[0][:0], pair()[1][:0]), "0 inputs"),
    "other lengths": (lambda: own(pair()[0][:9]), "9 inputs", "24 targets"),
    "another shape to test": (
        lambda: train(data=dataset(pair(), pair(inputs=7))), "test data", "(2, 7)"),
    "another type to test": (
        lambda: train(data=dataset(pair(), pair(kind=torch.float64))), "test data", "x.float()"),
    "other targets to test": (
        lambda: dataset(pair(), (pair()[0], pair()[1].float())), "float32", "both alike"),
    "uint8": (lambda: train(data=own(pair()[0].to(torch.uint8))), "uint8", "x.float()"),
    "uint8 images": (
        lambda: train(nn.Sequential(nn.Conv2d(1, 8, 4), nn.Flatten(), nn.Linear(8, 3)),
                      own(torch.ones(24, 1, 4, 4, dtype=torch.uint8))), "x.float() / 255"),
    "float64": (lambda: train(data=own(pair()[0].double())), "float64", "x.float()"),
    "float64, uncut": (
        lambda: train(None, own(pair()[0].double()), config(WHOLE)), "float64", "x.float()"),
    "float16": (lambda: train(data=own(pair()[0].half())), "float16", "x.float()"),
    "booleans": (lambda: train(data=own(pair()[0] > 0)), "bool", "x.float()"),
    "tokens of no entry": (
        tokens(torch.full((24, 6), 10)), "training data", "0 to 9", "10 to 10"),
    "one such token, late": (
        tokens((torch.arange(24) > 22).long()[:, None] * torch.full((24, 6), 10)),
        "training data: example 23", "0 to 9"),
    "one such token to test": (
        tokens(torch.zeros(24, 6).long(), torch.eye(24, 6).long() * 11), "test data", "0 to 9"),
    "a token below zero": (tokens(torch.full((24, 6), -1)), "0 to 9", "-1 to -1"),
    "tokens that are floats": (tokens(torch.zeros(24, 6)), "'0' (Embedding)", "x.long()"),
    "labels above the outputs": (
        lambda: train(net(6, 2)), "0 to 2", "2 outputs", "0 to 1"),
    "labels above the outputs, kept": (
        lambda: train(net(6, 2), None, config(KEEP)), "0 to 2", "2 outputs"),
    "labels from 1": (
        lambda: train(data=own(y=pair()[1] + 1)), "1 to 3", "y - 1"),
    "labels from 1, a spare output": (
        lambda: train(net(6, 4), own(y=pair()[1] + 1)), "none of 0", "y - 1", "'iid'"),
    "labels with gaps": (
        lambda: train(net(6, 9), own(y=pair()[1] * 4)), "0 to 8", " 1, 2, 3, 5, 6"),
    "identifiers": (lambda: own(y=pair()[1] * 10**12), "2,000,000,000,000", "torch.unique"),
    "a negative label": (lambda: own(y=pair()[1] - 1), "negative"),
    "two classes": (
        lambda: train(net(6, 2), own(y=pair(2)[1]), config(data={"labels_per_client": 3})),
        "labels_per_client: 3", "2 classes", "'iid'"),
    "one class": (lambda: train(net(6, 1), own(y=pair(1)[1])), "two classes"),
    "one example": (lambda: train(data=own(pair()[0][:1], pair()[1][:1])), "two classes"),
    "float labels": (lambda: train(data=own(y=pair()[1].float())), "float32", "y.long()"),
    "labels in a column": (lambda: train(data=own(y=pair()[1][:, None])), "y.squeeze(1)"),
    "one-hot labels": (
        lambda: train(data=own(y=functional.one_hot(pair()[1]))), "(2, 3)", "y.argmax(1)"),
}  # fmt: skip
LOSSES: dict[str, tuple[Callable[[], Any], *tuple[str, ...]]] = {
    "a class": (lambda: train(loss=nn.CrossEntropyLoss), "class", "CrossEntropyLoss()"),
    "a name": (lambda: train(loss="cross_entropy"), "'cross_entropy'", "function"),
    "a sum": (lambda: train(loss=nn.CrossEntropyLoss(reduction="sum")), "'sum'", "the mean"),
    "of each": (lambda: train(loss=nn.CrossEntropyLoss(reduction="none")), "'none'", "the mean"),
    "weighted": (
        lambda: train(None, None, config(ABSENT), loss=nn.CrossEntropyLoss(weight=torch.ones(3))),
        "weight", "'keep'"),
    "that ignores a label": (
        lambda: train(None, None, config(ABSENT), loss=nn.CrossEntropyLoss(ignore_index=0)),
        "ignore_index = 0", "'keep'"),
    "a vector": (
        lambda: train(None, None, config(KEEP), loss=lambda o, _: o[:, 0]), "shape (2,)", "mean"),
    "a float": (lambda: train(None, None, config(KEEP), loss=lambda *_: 1.0), "returns a float"),
    "without gradient": (
        lambda: train(None, None, config(KEEP), loss=lambda o, _: o.detach().mean()),
        "depend"),
    "of one argument": (
        lambda: train(None, None, config(KEEP), loss=lambda o: o.mean()), "take"),
    "swapped": (
        lambda: train(None, None, config(KEEP), loss=lambda y, o: functional.cross_entropy(o, y)),
        "outputs", "(2, 3)"),
    "NaN": (
        lambda: train(None, None, config(KEEP), loss=lambda o, _: o.mean() * float("nan")),
        "loss", "2 examples", "nan"),
    "broadcast": (
        lambda: train(net(6, 1), column(0), config(PLAIN), loss=functional.mse_loss),
        "(2, 1)", "y.unsqueeze(1)"),
    "of whole numbers": (
        lambda: train(net(6, 1), own(y=pair(2)[1][:, None]), config(PLAIN),
                      loss=functional.binary_cross_entropy_with_logits), "y.to(torch.float32)"),
    "of numbers, with labels' settings": (
        lambda: train(net(6, 1), own(y=pair()[0][:, :1]), config(ABSENT, LABELS),
                      loss=functional.mse_loss),
        "local.absent_labels: 'leave_out' ", "float32", "(24, 1)", "data.partition: 'labels' "),
}  # fmt: skip


def into(path: str, **options: Any) -> Callable[[], Any]:
    return lambda: train(out=path, **options)


RUNS: dict[str, tuple[Callable[[], Any], *tuple[str, ...]]] = {
    "into a file": (into("file"), "file already exists"),
    "below a file": (into("file/run"), "file/run: "),
    "where nothing can be made": (into("/proc/run"), "/proc/run: "),
    "a long name": (into("a" * 300), "a" * 300 + ": "),
    "a number": (lambda: train(out=3), "out: 3 ", "folder"),
    "resumed where nothing is": (into("nowhere", resume=True), "nowhere: "),
    "resumed in an empty folder": (into("folder", resume=True), "folder: "),
    "resumed in a file": (into("file", resume=True), "file: "),
    "resumed nowhere": (lambda: train(resume=True), "resume: ", "out"),
    "on mps": (lambda: train(given=config(engine={"device": "mps"})), "'mps'", "auto, cpu, cuda"),
    "on meta": (lambda: train(given=config(engine={"device": "meta"})), "'meta'", "auto, cpu"),
    "on a GPU": (lambda: train(given=config(engine={"device": "gpu"})), "engine.device: 'gpu' "),
    "of too many threads": (
        lambda: train(given=config(engine={"threads": 100_000})), "engine.threads", "1024"),
    "over devices": (
        lambda: train(given=config(engine={"name": "flower"})), "this process", "submodel serve"),
    "in processes": (
        lambda: train(given=config(engine={"processes": 2})), "this process", "submodel train"),
    "by a path": (lambda: train(given="run.toml"), "a str", "submodel.config.read"),
    "by a list": (lambda: train(given=["train.rounds=3"]), "a list"),
    "by dotted keys": (
        lambda: train(given={"train.rounds": 3}), "{'train': {'rounds': ...}}"),
    "told to nobody": (lambda: train(on_round=None), "on_round: None"),
    "more than it has": (lambda: train(given=config(data={"examples": 1000})), "1,000", "24"),
    "an unknown axis": (
        lambda: train(given=config(axes={"freeze": ["lost"]})), "freeze: 'lost'"),
    "axes by a list": (lambda: train(axes=["0"]), "axes", "a list "),
    "axes by a word": (
        lambda: train(axes={"0.weight": "hidden"}), "axes.0.weight", "'hidden' ", "tuple"),
    "axes of another model": (
        lambda: train(axes=trace(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), pair()[0])),
        "another model", "0.weight", "(4, 6)", "(8, 6)"),
    "an option of nobody": (
        lambda: train(given=config(scheme={"options": {"a": 1}})), "scheme.options", "'rolling'"),
}  # fmt: skip


def traced(**options: Any) -> Callable[[], Any]:
    return lambda: trace(net(), torch.ones(2, 6), **options)


def cut(units: Any, model: Any = None) -> Callable[[], Any]:
    given = net()
    axes = trace(given, torch.ones(2, 6))
    return lambda: submodel.build(given if model is None else model, axes, units)


def table(members: Any) -> Callable[[], Any]:
    return lambda: declare(dict(net().named_parameters()), members)


TOOLS: dict[str, tuple[Callable[[], Any], *tuple[str, ...]]] = {
    "trace a name": (lambda: trace("cnn", torch.ones(1)), "nn.Module"),  # type: ignore[arg-type]
    "trace another shape": (lambda: trace(net(), torch.ones(2, 7)), "(2, 7)", "'0' (Linear)"),
    "trace two inputs": (lambda: trace(TwoInputs(), torch.ones(2, 6)), "'scale'"),
    "trace another name": (lambda: trace(net(), {"lost": torch.ones(2, 6)}), "lost", "'input'"),
    "trace words": (lambda: trace(net(), np.array(["a", "b"])), "ndarray"),
    "trace a shape": (lambda: trace(net(), (2, 6)), "torch.ones(shape)"),
    "trace nothing": (lambda: trace(net(), torch.ones(0, 6)), "example_inputs"),
    "trace whole numbers": (lambda: trace(net(), torch.ones(2, 6).long()), "x.float()"),
    "trace two devices": (
        lambda: trace(net(), torch.ones(2, 6, device="meta")), "on cpu", "on meta"),
    "trace a branch without values": (
        lambda: trace(Branching().to("meta"), torch.ones(2, 6, device="meta")),
        "Branching", "branch", "cpu"),
    "freeze by a word": (traced(freeze="0"), "freeze: '0' "),
    "tie one axis": (traced(tie=["0"]), "tie: '0' "),
    "outputs by a word": (traced(outputs="logits"), "outputs: 'logits' "),
    "outputs that fail": (traced(outputs=lambda o: o.logits), "a Tensor", "logits"),
    "declare a module": (lambda: declare(net(), {}), "named_parameters()"),  # type: ignore[arg-type]
    "declare nothing": (table(None), "table"),
    "declare a number": (table({"0.weight": (3,)}), "axes.0.weight[0]: 3"),
    "declare no part": (table({"0.weight": (("h", 0),)}), "('h', 0)"),
    "declare below zero": (table({"0.weight": (("h", -2),)}), "('h', -2)"),
    "build a mask": (cut({"0": np.ones(8, bool)}), "units['0']", "np.flatnonzero(mask)"),
    "build a list": (cut({"0": [1, 2]}), "units['0']", "NumPy array"),
    "build too far": (cut({"0": np.array([1, 8])}), "from 0 to 7", "[1, 8]"),
    "build nothing": (cut({"0": np.array([], int)}), "units['0']", "least"),
    "build twice the same": (cut({"0": np.array([1, 1])}), "twice"),
    "build another axis": (cut({"lost": np.array([1])}), "'lost' ", " 0"),
    "build another model": (cut({"0": np.array([1])}, net(7)), "another model"),
    "build a name": (cut({"0": np.array([1])}, "net"), "a str ", "nn.Module"),
}  # fmt: skip

MISTAKES = {
    f"{what}: {name}": case
    for what, table_ in {
        "model": MODELS, "data": DATA, "loss": LOSSES, "run": RUNS, "tools": TOOLS
    }.items()
    for name, case in table_.items()
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with obstacles."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "mistaken.py").write_text(NETS)
    (tmp_path / "torn.py").write_text("def net(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_before_the_first_round(mistake: str, place: Path) -> None:
    make, *words = MISTAKES[mistake]
    ROUNDS.clear()
    with pytest.raises(SubmodelError) as error:
        make()
    errors.check("from Python", mistake, error.value)
    assert not ROUNDS
    assert [word for word in words if word not in str(error.value)] == []


def returns(answer: Callable[[int, float], Any]) -> type[Scheme]:
    class Own(Scheme):
        def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
            return answer(size, capacity)  # type: ignore[no-any-return]

    return Own


ANSWERS: dict[str, tuple[type[Scheme], str]] = {
    "Positions": (returns(lambda n, c: np.arange(int(n * c))), "int64, not bool"),
    "Numbers": (returns(lambda n, c: (np.arange(n) < n * c) * 1), "int64, not bool"),
    "Tensors": (returns(lambda n, c: torch.arange(n) < n * c), "a Tensor "),
    "Lists": (returns(lambda n, c: [i < n * c for i in range(n)]), "a list "),
    "Nothing": (returns(lambda n, c: None), "a NoneType "),
    "Long": (returns(lambda n, c: np.ones(n + 1, bool)), "shape ("),
    "Short": (returns(lambda n, c: np.ones(int(n * c), bool)), "shape ("),
    "Square": (returns(lambda n, c: np.ones((1, n), bool)), "shape (1, "),
    "Empty": (returns(lambda n, c: np.zeros(n, bool)), " axis '"),
    "Failing": (returns(lambda n, c: n / 0), "ZeroDivisionError"),
}
globals().update({name: kind for name, (kind, _) in ANSWERS.items()})


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_scheme_that_returns_no_mask_is_refused(answer: str, granularity: str) -> None:
    scheme = {"name": f"{__name__}:{answer}", "granularity": granularity}
    with pytest.raises(SubmodelError) as error:
        train(given=config(scheme=scheme))
    errors.check("own scheme", f"{answer}, {granularity}", error.value)
    assert str(error.value).startswith("scheme Own: ")
    assert ANSWERS[answer][1] in str(error.value)
    if answer != "Failing":
        assert "select " in str(error.value)
        assert ("axis '0'" if granularity == "unit" else "axis 'coordinates'") in str(error.value)
    with pytest.raises(AssertionError) as failure:
        check_scheme(scheme)
    assert ANSWERS[answer][1] in str(failure.value)


class Later(Scheme):
    """Positions from the second round on."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        mask = np.arange(size) < size * capacity
        return np.flatnonzero(mask) if draw.round else mask  # type: ignore[return-value]


class Sparse(Random):
    """Draws that are mostly empty."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return super().select(axis, size, capacity / 16, draw)


def test_every_draw_is_checked_and_an_empty_one_is_none_to_refuse() -> None:
    later = config(scheme={"name": f"{__name__}:Later"}, train={"rounds": 2})
    with pytest.raises(SubmodelError, match=r"scheme Later: axis '0' of 8 units.*round 1.*int64"):
        train(given=later)
    sparse = config(scheme={"name": f"{__name__}:Sparse"}, clients={"capacities": [0.5]})
    assert len(train(given=sparse).history) == 1


NETS = """
import torch
from torch import nn

def good(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
def narrow(): return nn.Sequential(nn.Flatten(), nn.Linear(63, 8), nn.ReLU(), nn.Linear(8, 10))
def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 9))
def frozen(): return good().requires_grad_(False)
def fails(): raise RuntimeError("no weights here")
def word(): return "cnn"

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1)))
        return self.last(hidden if hidden.sum() > 0 else 2 * hidden)
"""
COMMANDS: dict[str, tuple[str, ...]] = {
    # mistakes on the command line with parts of the messages
    "train --out file/run": ("file/run: ", "Not a directory"),
    "train --out /proc/run": ("/proc/run: ",),
    "train --out file": ("file already exists",),
    "train lost.toml": ("lost.toml: ",),
    "train folder": ("folder: ",),
    "train --set engine.device=mps": ("engine.device: 'mps'", "auto, cpu, cuda"),
    "train --set engine.device=meta": ("engine.device: 'meta'",),
    "train --set engine.threads=100000": ("engine.threads: 100000", "1024"),
    "train --processes 0": ("engine.processes: 0 ",),
    "train --processes 100000": ("engine.processes: 100000", "too many"),
    "train --engine local --processes 2": ("--processes", "torchrun", "'local'"),
    "train --set train.rounds": ("key.path=value",),
    "train --set train.rounds=-1": ("train.rounds: -1 ",),
    "train --set model.name=mistaken:narrow": ("(2, 1, 8, 8)", "63x8"),
    "train --set model.name=mistaken:few": ("0 to 9", "9 outputs"),
    "train --set model.name=mistaken:frozen": ("frozen",),
    "train --set model.name=mistaken:fails": ("'mistaken:fails'", "no weights here"),
    "train --set model.name=mistaken:word": ("a str",),
    "train --set model.name=mistaken:lost": ("'lost'",),
    "train --set model.name=torn:net": ("'torn' fails", "SyntaxError"),
    "train --set model.name=mistaken:good --set model.width=4": (
        "model.width",
        "'mistaken:good'",
        "mlp or cnn",
    ),
    "train --set model.options={a=1}": ("model.options", "'cnn'"),
    "train --set model.width=100000000000": ("model.width: 100000000000",),
    "train --set scheme.options={a=1}": ("scheme.options", "'rolling'"),
    "train --set scheme.name=submodel.schemes:Scheme": ("scheme.name", "select"),
    "train --set axes.freeze=['lost']": ("freeze: 'lost'",),
    "resume nowhere": ("nowhere: ",),
    "show file": ("file: ",),
    "cost --set model.name=mistaken:narrow": ("63x8",),
    "config --set lost=1": ("lost: ",),
    "inspect mistaken:narrow --input 1,8,8": ("63x8",),
    "inspect mistaken:Branching --input 1,8,8 --meta": ("branch", "meta"),
    "inspect mistaken:fails --input 1": ("no weights here",),
    "inspect cnn --input 1": ("4 x 4",),
    "inspect cnn --input 1,2,2": ("4 x 4",),
    "inspect cnn --input -1,8,8": ("--input", "'-1,8,8'"),
    "inspect cnn --set width=0": ("model.width: 0",),
    "inspect cnn --set width=wide": ("model.width: 'wide'",),
    "inspect preresnet18 --input 8,8": ("images",),
    "inspect cnn --capacities 2": ("capacity: 2",),
    "plan --memory 1e400": ("'1e400'",),
    "export folder": ("folder: ",),
    "data --out file/a.png": ("file: ",),
    "data --out folder": ("--out: folder ",),
    "data --labels-per-client 11": ("labels_per_client: 11", " 10 "),
    "compare static --seeds 1 --out file": ("--out: file: ",),
    "compare statc": ("'statc'",),
    "reproduce heterofl --scale smoke --out file/x": ("--out: file/x: ",),
    "study residual --out file": ("--out: file: ",),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistaken_command_ends_with_a_sentence(
    command: str, place: Path, submodel: Command
) -> None:
    ended = submodel(*command.split())
    errors.check("command", command, ended)
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert [word for word in COMMANDS[command] if word not in lines[0]] == []
    left = {path.name for path in place.iterdir()} - {"__pycache__"}
    assert left == {"file", "folder", "mistaken.py", "torn.py"}


@pytest.fixture(scope="module")
def usual() -> Any:
    return submodel.train(net(), own(), config())


def weights(result: Any) -> dict[str, bytes]:
    return {n: t.numpy().tobytes() for n, t in result.state.tensors.items()}


def train_without_gradients() -> Any:
    with torch.no_grad():
        return train()


SAME: dict[str, Callable[[], Any]] = {
    "the module of the cross-entropy": lambda: train(loss=nn.CrossEntropyLoss()),
    "one that ignores what does not occur": lambda: train(loss=nn.CrossEntropyLoss(ignore_index=7)),
    "labels of four bytes": lambda: train(data=own(y=pair()[1].int())),
    "labels of one byte": lambda: train(data=own(y=pair()[1].to(torch.uint8))),
    "a model to evaluate": lambda: train(net().eval()),
    "where no gradients are wanted": train_without_gradients,
    "inputs with gradients": lambda: train(data=own(pair()[0].requires_grad_())),
}


@pytest.mark.parametrize("case", SAME)
def test_what_means_the_same_is_the_same(case: str, usual: Any) -> None:
    assert weights(SAME[case]()) == weights(usual)


@pytest.mark.parametrize("capacity", ["1/2", " 0.5", 0.5, np.float32(0.5)])
def test_a_submodel_takes_capacities_as_people_write_them(capacity: Any, usual: Any) -> None:
    assert usual.submodel(capacity)[0].out_features == 4


@pytest.mark.parametrize("capacity", [0, 2, -0.5, "0", "3/2", "1/0", "half", "50%", "", None, True,
                                      float("nan"), [0.5], torch.tensor(0.5)])  # fmt: skip
def test_a_submodel_of_no_capacity_is_refused(capacity: Any, usual: Any) -> None:
    with pytest.raises(SubmodelError, match=r"capacity: .* in \(0, 1\]"):
        usual.submodel(capacity)


TEXTS = functional.one_hot(torch.arange(24) % 6) * 9
"""Every text has one token; some positions are padding only."""


class Padded(nn.Module):
    """A model that fails on a text of padding only."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        counts = (x > 0).sum(1, keepdim=True)
        if not bool(counts.all()):
            raise ValueError("an empty text")
        return self.last((self.words(x) * (x > 0)[..., None]).sum(1) / counts)


TAKEN: dict[str, Callable[[], Any]] = {
    "a branch that depends on values": lambda: train(Branching()),
    "texts with padding": lambda: train(Padded(), own(TEXTS)),
    "more outputs than labels": lambda: train(net(6, 5)),
    "some layers frozen": lambda: train(_with_frozen_first()),
    "a weighted loss, labels kept": lambda: train(
        None, None, config(KEEP), loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    ),
    "labels that are true or false": lambda: train(net(6, 2), own(y=pair()[1] > 0)),
    "both in double precision": lambda: train(net().double(), own(pair()[0].double())),
}  # fmt: skip


def _with_frozen_first() -> nn.Module:
    model = net()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("what", TAKEN)
def test_what_is_no_mistake_is_trained(what: str) -> None:
    assert len(TAKEN[what]().history) == 1


def test_probabilities_as_targets_train_alike_in_stacks_and_one_by_one() -> None:
    targets = functional.one_hot(pair()[1]).float() * 0.8 + 0.2 / 3
    one, other = (
        train(None, own(y=targets), config(PLAIN, engine={"batching": batching}))
        for batching in ("always", "never")
    )
    for name, tensor in one.state.tensors.items():
        torch.testing.assert_close(tensor, other.state.tensors[name], rtol=1e-5, atol=1e-6)


def test_trying_a_model_leaves_it_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model, None, config(local={"batch_size": 0}))
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"clients": {"count": 20_000, "per_round": 16_385}}, "clients.per_round: 16,385"),
        ({"clients": {"count": 100_000, "per_round": 0.2}}, "clients.per_round: 20,000"),
        ({"clients": {"count": 20_000}, "train": {"output_step": 50.0}}, "train.output_step: "),
    ],
)
def test_more_clients_than_a_round_can_merge_are_refused_before_training(
    sections: dict[str, Any], key: str
) -> None:
    trained: list[dict[str, Any]] = []
    with pytest.raises(SubmodelError, match=key) as error:
        submodel.train(net(), own(), config(PLAIN, sections), on_round=trained.append)
    errors.check("many clients", sections, error.value)
    assert "16,384" in str(error.value)
    assert not trained
