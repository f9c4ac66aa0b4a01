"""Built-in data sources, tokenisers, partitions and augmentations, as entries of registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.core.registry import Entry, Registry

if TYPE_CHECKING:
    from submodel.data.augmentations import Augmentation
    from submodel.data.examples import Dataset
    from submodel.data.partitions import Partition
    from submodel.data.text.tokens import Tokeniser


SOURCES: Registry[Dataset] = Registry(
    noun="data source",
    key="data.name",
    group="submodel.data",
    expected="a submodel.Dataset, nor a pair of its parts, training and test",
    of_class="submodel.data.examples:Dataset",
    adapt="submodel.data.examples:as_dataset",
    entries={
        "digits": Entry("submodel.data.sources.digits:Digits", "scikit-learn's 1,797 images"),
        "cifar10": Entry("submodel.data.sources.cifar:Cifar10"),
        "cifar100": Entry("submodel.data.sources.cifar:Cifar100"),
        "mnist": Entry("submodel.data.sources.mnist:Mnist", "70,000 digits of 28 x 28"),
        "fashion-mnist": Entry(
            "submodel.data.sources.mnist:FashionMnist", "clothing, in the shape of mnist"
        ),
        "csv": Entry(
            "submodel.data.sources.table:Table", "columns, a target, optionally clients", "PATH"
        ),
        "parquet": Entry("submodel.data.sources.table:Table", "likewise", "PATH"),
        "hf": Entry(
            "submodel.data.sources.hub:Hub",
            "of the Hugging Face hub: images, a column of texts, or a table",
            "NAME",
        ),
        "folder": Entry(
            "submodel.data.sources.folder:Folder",
            "train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png",
            "PATH",
        ),
        "text": Entry(
            "submodel.data.sources.text:Text",
            "a file; a folder, each file a client; a column of .csv, .jsonl, .parquet",
            "PATH",
        ),
        "shakespeare": Entry(
            "submodel.data.sources.shakespeare:Shakespeare", "by speaking role, as text"
        ),
        "own": Entry("submodel.data.sources:OwnDataset", is_hidden=True),
    },
)

_TOKENISER = ("vocabulary", "byte_lengths", "encode", "decode", "to_json")
TOKENS: Registry[Tokeniser] = Registry(
    noun="tokeniser",
    key="data.tokens",
    group="submodel.tokens",
    expected=f"a tokeniser: an object with {', '.join(_TOKENISER)}",
    members=_TOKENISER,
    with_context=True,
    entries={
        "bytes": Entry("submodel.data.text.tokens:ByteTokens", "256 values"),
        "characters": Entry(
            "submodel.data.text.tokens:CharacterTokens",
            "those of the training part; all that occur there at most once share one token",
        ),
        "bpe": Entry("submodel.data.text.tokens:BpeTokens", "byte pairs of the training part"),
        "file": Entry("submodel.data.text.tokens:FileTokens", "a tokenizer.json", "PATH"),
    },
)


PARTITIONS: Registry[Partition] = Registry(
    noun="partition",
    key="data.partition",
    group="submodel.partitions",
    expected="a partition: lists of positions, or an object with size(client) and indices(client)",
    members=("size", "indices"),
    adapt="submodel.data.partitions:as_partition",
    with_context=True,
    entries={
        "auto": Entry(
            "submodel.data.partitions:PartitionOfData",
            "natural if the data names clients, labels if it has any, otherwise iid",
        ),
        "iid": Entry("submodel.data.partitions:Iid", "equal random parts"),
        "labels": Entry("submodel.data.partitions:ByLabel", "L labels per client, equal shards"),
        "dirichlet": Entry("submodel.data.partitions:Dirichlet", "each label split by Dir(alpha)"),
        "natural": Entry(
            "submodel.data.partitions:Natural", "a role, file or column value is a client"
        ),
        "own": Entry("submodel.data.partitions:ClientLists", is_hidden=True),
        "flwr": Entry("submodel.data.partitions:Flower", "a partitioner of flwr-datasets"),
    },
)

AUGMENTATIONS: Registry[Augmentation] = Registry(
    noun="augmentation",
    key="data.augment",
    group="submodel.augmentations",
    expected="an augmentation: a function of (examples, generator)",
    is_function=True,
    entries={
        "crop": Entry(
            "submodel.data.augmentations:Crop", "shifted by up to 4 pixels, padded with black"
        ),
        "flip": Entry("submodel.data.augmentations:Flip", "mirrored with probability 1/2"),
    },
)
