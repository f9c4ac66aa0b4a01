"""Training over real devices: the commands serve and join."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from submodel.amounts import parse_amount, parse_capacity, si
from submodel.cli.common import AsJson, ConfigFile, Force, SetOptions, print_json, talk
from submodel.errors import ConfigError, Interruption, SubmodelError, refuse

if TYPE_CHECKING:  # PyTorch, and an extra: imported where they are used
    from submodel.config import Config
    from submodel.federation.flower.serving import ServingPlace
    from submodel.runs.folder import RunFolder

PORT = 8000
"""Where servers listen, if nothing else is said."""
_FEDERATION, _CREDENTIALS = Path("federation"), Path("device")


def need_flower() -> None:
    """Say in a sentence that the extra is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise SubmodelError(
            "real devices need Flower, which is not installed: pip install 'submodel[flower]'"
        )


def serve_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    federation: Annotated[
        Path, typer.Option(help="The folder that 'submodel federation init' made.")
    ] = _FEDERATION,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on (default: all; insecure: loopback)")
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen on.")] = PORT,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Train on a SuperLink that runs on this machine."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA certificate of --superlink.")] = None,
    insecure: Annotated[
        bool, typer.Option(help="Neither encrypt nor check keys; on loopback only.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train over real devices: start a server for them, or use one.

    Examples:
        submodel serve examples/mnist.toml --federation federation
        submodel serve --insecure --set train.rounds=5
        submodel serve --superlink 127.0.0.1:9093 --ca ca.crt --json
    JSON:
        run: the run's folder
        summary: what it came to, as of submodel train
        curves: the picture of its curves; null without matplotlib
    """
    need_flower()
    from submodel.config import read
    from submodel.federation.flower.serving import ServingPlace
    from submodel.federation.server import problems_over_devices
    from submodel.prepare.setup import prepare
    from submodel.runs.folder import RunFolder, new_folder

    full_config = read(config, [*(settings or []), "engine.name=flower"])
    refuse(problems_over_devices(full_config))
    if force and out is None:
        raise ConfigError("--force: goes with --out, the run to replace")
    if superlink is not None:
        if (ca is None) != insecure:
            raise ConfigError("--superlink: give its --ca, or --insecure")
        place = ServingPlace.of(superlink, ca)
    elif insecure:
        place = ServingPlace(host or "127.0.0.1", port, None)
    else:
        place = ServingPlace(host or "0.0.0.0", port, str(federation.resolve()))
    folder = RunFolder(out) if out else new_folder(full_config.name)
    prepare(full_config)  # what does not fit is said before anything starts
    folder.create(full_config, force)
    place.save(folder)
    follow(full_config, folder, place, as_json)


def follow(config: Config, folder: RunFolder, place: ServingPlace, as_json: bool) -> None:
    """Serve a run that has a folder, from its last round on."""
    need_flower()
    from submodel.federation.flower.serving import ServedRun
    from submodel.report.tables import plain_end
    from submodel.runs.callbacks.progress import describe_end, show_progress

    console = talk(as_json)
    served_run = ServedRun(folder, place, console.print)
    console.print(
        f"serving {folder.path}: {config.model.name}, scheme {config.scheme.name}, "
        f"{config.clients.sample_size} of at most {config.clients.client_count} devices per round, "
        f"{config.train.rounds} rounds, on port {place.port} of {place.host}"
        + ", insecure"
        * (place.certificate() is None)
    )
    try:
        with show_progress(config.train.rounds, console) as on_round:
            served_run.follow(on_round)
    except Interruption as stop:
        console.print(f"{stop}; continue with: submodel resume {folder.path}", soft_wrap=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(plain_end(folder))
        return
    console.print(describe_end(folder.summary() or {}))


def join_command(
    host: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="The server.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|NAME",
            help="CLASS/*.png in a folder, x and y in .npz or .safetensors, or as data.name: "
            "csv:PATH, text:PATH, mnist, ...",
        ),
    ] = None,
    part: Annotated[
        int | None, typer.Option(help="Or play this client of the run's own data, to try it out.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="The share of the model to hold, as 1/4.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Or what training may take, as 2GB (default: half of what is free)."),
    ] = None,
    credentials: Annotated[
        Path, typer.Option(help="The device's folder of 'submodel federation init'.")
    ] = _CREDENTIALS,
    name: Annotated[str | None, typer.Option(help="What the server calls this device.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="data.KEY=VALUE",
            help="A key of --data that is another here than on the server; repeatable.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Neither encrypt nor show a key; on loopback only.")
    ] = False,
) -> None:
    """Take part as a device: hold what fits, train on the own data.

    Nothing leaves the device but updates. It needs no PyTorch until it trains.

    Examples:
        submodel join fl.example.org --data pictures --memory 2GB
        submodel join 127.0.0.1 --insecure --part 0 --capacity 1/4
        submodel join fl.example.org:9000 --data csv:table.csv --set data.label=kind
    """
    need_flower()
    from submodel.federation.flower.credentials import load_device
    from submodel.federation.flower.supernode import Supernode, keep_running

    app_settings = node_settings(data, part, capacity, memory, name, settings or ())
    files = None if insecure else load_device(credentials)
    address = host if ":" in host.rpartition("]")[2] else f"{host}:{PORT}"
    with tempfile.TemporaryDirectory(prefix="submodel-") as temporary:
        home = Path(temporary)
        journal = home / "journal.jsonl"
        config = {**app_settings, "journal": str(journal)}
        node = Supernode(address, home, home / "supernode.log", files, config)
        print(f"joining {address}; Ctrl-C leaves", flush=True)
        over = threading.Event()
        teller = threading.Thread(target=_tell, args=(journal, over), daemon=True)
        teller.start()
        try:
            keep_running(node, lambda text: print(text, flush=True), over.is_set)
        except KeyboardInterrupt:
            print("left", flush=True)
        finally:
            over.set()
            teller.join(timeout=5)


def node_settings(
    data: str | None,
    part: int | None,
    capacity: str | None,
    memory: str | None,
    name: str | None,
    settings: Sequence[str] = (),
) -> dict[str, str | int | float | bool]:
    """The settings of the device's app, checked here, where the owner sees the errors."""
    problems = []
    if (data is None) == (part is None):
        problems.append("give --data DIR (or --part NUMBER, to try it out), and only one of them")
    place, problem = ("", "") if data is None else find_own_data(data)
    problems += [f"--data: {problem}"] * bool(problem)
    if data is None and settings:
        problems.append("--set: goes with --data; a part of the run's data has the run's keys")
    problems += [
        f"--set {setting}: want data.KEY=VALUE"
        for setting in settings
        if not setting.strip().startswith("data.") or "=" not in setting or "\n" in setting
    ]
    if capacity is not None and memory is not None:
        problems.append("give --capacity or --memory, not both")
    refuse(problems)
    values = {
        "data": place or None,
        "set": "\n".join(settings) or None,
        "part": part,
        "capacity": None if capacity is None else parse_capacity(capacity),
        "memory": None if memory is None else parse_amount(memory),
        "name": name,
    }
    return {key: value for key, value in values.items() if value is not None}


def find_own_data(text: str) -> tuple[str, str]:
    """Resolve ``--data``: the name or absolute path, and what is wrong with it, if anything.

    >>> find_own_data("mnist")
    ('mnist', '')
    >>> find_own_data("/nowhere/pictures")[1]
    '/nowhere/pictures: no such file or folder, nor the name of a data source'
    """
    from submodel.data.registry import SOURCES

    path = Path(text).expanduser()
    if path.exists():
        return str(path.resolve()), ""
    if text == "own" or not SOURCES.knows(text):
        return text, f"{text}: no such file or folder, nor the name of a data source"
    prefix, _, argument = text.partition(":")
    if prefix not in SOURCES.prefixes or SOURCES.offers[prefix].argument != "PATH":
        return text, ""
    path = Path(argument).expanduser()
    problem = "" if path.exists() else f"{argument}: no such file or folder"
    return f"{prefix}:{path.resolve()}", problem


def _tell(journal: Path, over: threading.Event) -> None:
    """Print the journal of the device's app, line by line."""
    read_so_far = 0
    while True:
        last = over.is_set()
        if journal.is_file():
            with journal.open("rb") as file:
                file.seek(read_so_far)
                for line in file:
                    if line.endswith(b"\n"):
                        read_so_far += len(line)
                        print(describe_entry(json.loads(line)), flush=True)
        if last:
            return
        over.wait(0.5)


def describe_entry(line: Mapping[str, Any]) -> str:
    """One line of the journal for people.

    >>> describe_entry({"kind": "report", "seconds": 1.5, "capacity": 0.25, "examples": 300})
    'reported: capacity 0.25, 300 examples'
    """
    if "problem" in line:
        return f"cannot take part: {line['problem']}"
    if line["kind"] == "report":
        share = "as configured" if line["capacity"] is None else f"{line['capacity']:g}"
        return f"reported: capacity {share}, {line['examples']} examples"
    sizes = f"{si(line['bytes_down'], 'B')} down, {si(line['bytes_up'], 'B')} up"
    if line["kind"] == "moments":
        return f"measured for the norms in {line['seconds']:.1f} s, {sizes}"
    return (
        f"round {line['topic']}: trained on {line['processed']} examples in "
        f"{line['seconds']:.1f} s, loss {line['loss']:.4f}, {sizes}"
    )
