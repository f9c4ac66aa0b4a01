"""Federations: who may take part in a training over real devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from submodel.errors import ConfigError

if TYPE_CHECKING:  # an extra: imported where it is used
    from submodel.engines.flower.credentials import Federation

app = typer.Typer(
    help="Make and look after the credentials of real devices and their server.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Option("--federation", help="The folder that init made.")]


@app.command()
def init(
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="NAME_OR_IP", help="Where devices reach the server; repeatable."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("federation"),
    count: Annotated[
        int | None,
        typer.Option("--devices", help="How many, named device-1, ... (default: 3).", min=1),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="Or devices by name; repeatable."),
    ] = None,
) -> None:
    """Make a federation: an authority of its own, a server, keys for every device."""
    from submodel.engines.flower import credentials

    if count is not None and names:
        raise ConfigError(["--devices: give a number of devices or their names, not both"])
    made = credentials.create(folder, hosts, names or _numbered(count or 3))
    print(f"made {folder}: a federation of a server and {len(made.devices)} device(s)")
    print(_validity(made))
    print(_delivery(folder, made.devices))
    print(
        f"{folder}/ca.key: copy it to nowhere, best keep it offline. Whoever has it can pose as "
        "the server;\n  only 'submodel federation renew' needs it."
    )
    print(f"next, on the server:    submodel serve CONFIG.toml --federation {folder}")
    print(f"next, on every device:  submodel join {hosts[0]} --data DIR")


@app.command()
def add(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of the new devices.")],
    folder: Folder = Path("federation"),
) -> None:
    """Make keys for more devices; those that are there stay as they are."""
    from submodel.engines.flower import credentials

    made = credentials.add(folder, names)
    print(f"{folder}: {len(names)} device(s) more, now {len(made.devices)}")
    print(_delivery(folder, names))


@app.command()
def renew(
    folder: Folder = Path("federation"),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="Where devices reach the server; repeatable. Default: as before.",
        ),
    ] = None,
) -> None:
    """Make a new key and certificate for the server; devices need not change. Needs ca.key."""
    from submodel.engines.flower import credentials

    print(_validity(credentials.renew(folder, hosts or [])))
    print("devices need nothing new; a running 'submodel serve' shows it when it starts next")


def _numbered(count: int) -> list[str]:
    width = len(str(count))
    return [f"device-{number:0{width}}" for number in range(1, count + 1)]


def _validity(federation: Federation) -> str:
    return (
        f"{federation.server.certificate}: valid for {', '.join(federation.hosts)} "
        f"until {federation.expires:%Y-%m-%d}"
    )


def _delivery(folder: Path, names: list[str] | tuple[str, ...]) -> str:
    lines = [f"  {folder}/devices/{name}  ->  'device' on {name}" for name in names]
    return "\n".join(
        (
            "copy one folder to each device, and nothing else:",
            *lines,
            "  device.key is private to its device: once it is there, it can be deleted here",
        )
    )
