"""Commands of federations: credentials of real devices, and their state in a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from submodel.cli import completion
from submodel.cli.common import AsJson, CommandGroup, console, print_json, register_command
from submodel.core.errors import ConfigError, SubmodelError

if TYPE_CHECKING:  # imports of Flower stay inside the functions
    from submodel.federation.flower.control import Node
    from submodel.federation.flower.credentials import Federation
    from submodel.runs.folder import RunFolder

federation_commands = typer.Typer(
    cls=CommandGroup,
    help="Manage credentials of real devices and their server.",
    no_args_is_help=True,
)

FederationFolder = Annotated[Path, typer.Option("--federation", help="Folder made by init.")]


def init_command(
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="NAME_OR_IP", help="Address of the server for devices; repeatable."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="New folder.")] = Path("federation"),
    count: Annotated[
        int | None,
        typer.Option("--devices", help="Number of devices: device-1, ... (default: 3).", min=1),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="Instead: name of a device; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a federation: certificate authority, server, keys of devices.

    Examples:
        submodel federation init --host fl.example.org
        submodel federation init home --host 192.168.1.10 --device phone
    JSON:
        folder: folder of the federation
        hosts: addresses of the server
        devices: names of the devices; each has a folder of credentials under devices
        expires: last day of the server's certificate
    """
    from submodel.federation.flower import credentials

    if count is not None and names:
        raise ConfigError("--devices: give a number of devices or their names, not both")
    numbers = [str(number) for number in range(1, (count or 3) + 1)]
    names = names or [f"device-{number.zfill(len(numbers[-1]))}" for number in numbers]
    federation = credentials.create(folder, hosts, names)
    if as_json:
        print_json(_plain_federation(folder, federation))
        return
    print(f"made {folder}: a federation of a server and {len(federation.devices)} device(s)")
    print(_validity(federation))
    print(_delivery(folder, federation.devices))
    print(
        f"{folder}/ca.key: do not copy it, and better keep it offline. A holder of it can pose as "
        "the server;\n  only 'submodel federation renew' needs it."
    )
    print(f"next, on the server:    submodel serve CONFIG.toml --federation {folder}")
    print(f"next, on every device:  submodel join {hosts[0]} --data DIR")


def add_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of new devices.")],
    folder: FederationFolder = Path("federation"),
    as_json: AsJson = False,
) -> None:
    """Create keys of more devices; existing keys stay.

    Examples:
        submodel federation add device-4 device-5
        submodel federation add watch --federation home
    JSON:
        folder: folder of the federation
        hosts: addresses of the server
        devices: names of all devices
        expires: last day of the server's certificate
        added: names of the new devices
    """
    from submodel.federation.flower import credentials

    federation = credentials.add(folder, names)
    if as_json:
        print_json({**_plain_federation(folder, federation), "added": names})
        return
    print(f"{folder}: {len(names)} device(s) more, now {len(federation.devices)}")
    print(_delivery(folder, names))


def renew_command(
    folder: FederationFolder = Path("federation"),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="Address of the server for devices; repeatable (default: as before).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a new key and certificate of the server.

    Devices keep their files. The command needs ca.key in the federation's folder.

    Examples:
        submodel federation renew
        submodel federation renew --federation home --host fl.example.org
    JSON:
        folder: folder of the federation
        hosts: addresses of the server
        devices: names of all devices
        expires: last day of the new certificate
    """
    from submodel.federation.flower import credentials

    federation = credentials.renew_certificate(folder, hosts or [])
    if as_json:
        print_json(_plain_federation(folder, federation))
        return
    print(_validity(federation))
    print("devices keep their files; 'submodel serve' uses it from its next start on")


def status_command(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="Folder of a run (default: the last one served).",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's devices: their capacities, states and answers.

    Examples:
        submodel federation status
        submodel federation status runs/digits --json
    JSON:
        run: folder of the run
        port: port of the server; null if it does not run
        problem: why connections are unknown; null if they are known
        devices: for each its client, name, state, capacity (null: as configured), examples,
            answered and missed tasks, last_seen (ISO 8601) and last_problem; null where a device
            has not taken part yet
    """
    from submodel.federation.roster import read_roster
    from submodel.report.tables import devices_table, plain_devices
    from submodel.runs.folder import RunFolder

    folder = RunFolder(run or _newest())
    folder.config()  # raises if it is no run
    entries = read_roster(folder.devices_file)
    nodes: dict[int, Node] = {}
    port = problem = None
    if folder.serving_file.is_file():
        try:
            port, nodes = _list_nodes(folder)
            where = f"served on port {port}; {len(nodes)} device(s) registered"
        except SubmodelError as error:
            problem = str(error)
            where = f"not served now ({error})"
    else:
        problem = where = "begun by 'flwr run'; 'flwr supernode list' shows the connected devices"
    devices = plain_devices(entries, nodes)
    if as_json:
        print_json({"run": folder.path, "port": port, "problem": problem, "devices": devices})
        return
    print(f"{folder.path}: {where}")
    console.print(devices_table(devices))


def _list_nodes(folder: RunFolder) -> tuple[int, dict[int, Node]]:
    """Return the port of a served run and the devices registered at its SuperLink."""
    from submodel.federation.flower.control import Control
    from submodel.federation.flower.serving import ServingPlace

    place = ServingPlace.load(folder)
    control = Control(place.address, place.certificate())
    try:
        return place.port, {node.id: node for node in control.nodes()}
    finally:
        control.close()


def app_command(
    folder: Annotated[Path, typer.Argument(help="New folder.")] = Path("submodel-app"),
    as_json: AsJson = False,
) -> None:
    """Write an app for 'flwr run'.

    It is for an existing Flower deployment.

    Examples:
        submodel federation app
        submodel federation app apps/submodel
    JSON:
        folder: folder of the app
        command: command that runs it
    """
    from submodel.federation.flower.control import thin_app

    if folder.exists():
        raise SubmodelError(f"{folder} exists already")
    shutil.copytree(thin_app(), folder)
    run_config = 'config="/abs/config.toml" folder="/abs/run"'
    command = f"flwr run {folder} --run-config '{run_config}' --stream"
    if as_json:
        print_json({"folder": folder, "command": command})
    else:
        print(f"made {folder}: {command}")


for _command in (init_command, add_command, renew_command, status_command, app_command):
    register_command(federation_commands, _command.__name__.removesuffix("_command"), _command)


def _newest() -> Path:
    """Return the folder of the run that was served last."""
    files = Path("runs").glob("*/serving.json")
    newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise SubmodelError("no run under 'runs' was served; give the folder of one")
    return newest.parent


def _plain_federation(folder: Path, federation: Federation) -> dict[str, Any]:
    return {
        "folder": folder,
        "hosts": list(federation.hosts),
        "devices": list(federation.devices),
        "expires": f"{federation.expires:%Y-%m-%d}",
    }


def _validity(federation: Federation) -> str:
    return (
        f"{federation.server.certificate}: valid for {', '.join(federation.hosts)} "
        f"until {federation.expires:%Y-%m-%d}"
    )


def _delivery(folder: Path, names: list[str] | tuple[str, ...]) -> str:
    lines = [f"  {folder}/devices/{name}  ->  'device' on {name}" for name in names]
    return "\n".join(
        (
            "copy one folder to each device, and no other file:",
            *lines,
            "  device.key is private to its device: once it is there, it can be deleted here",
        )
    )
