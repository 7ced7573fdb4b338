"""The folder of a deployment: where everything lies, and the app that `deploy init` writes into it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from os.path import relpath
from pathlib import Path
from shlex import quote
from typing import Any
from unicodedata import category

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mppfl.errors import BadFile, BadInput
from mppfl.experiment import Experiment, network_of, require_capped_clients
from mppfl.files import write_whole
from mppfl.flower.identity import PATHS, NodeSettings, read_node

DAYS = 365
CA, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"


def make_certificates(folder: Path, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> None:
    """An authority and a server certificate for these hosts, as ca.crt, server.crt and server.key in `folder`.

    The authority's own key is forgotten: nobody, not even who holds the folder, can sign a second server with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    start, end = datetime.now(UTC) - timedelta(minutes=5), datetime.now(UTC) + timedelta(days=DAYS)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mppfl local authority")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    of_authority = (
        x509.CertificateBuilder()
        .subject_name(issuer)
        .issuer_name(issuer)
        .public_key(authority.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    of_server = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]))
        .issuer_name(issuer)
        .public_key(server.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server.public_key()), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    # The key first, which is never written over, and last what says that all are there: of two who make certificates
    # in one folder only one gets past the first line.
    _write_secret(
        folder / KEY,
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    (folder / CERTIFICATE).write_bytes(of_server.public_bytes(pem))
    (folder / CA).write_bytes(of_authority.public_bytes(pem))


def make_node_key(path: Path) -> str:
    """A node's private key at `path`, its public key beside it as .pub; the latter is returned. OpenSSH, P-384."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write_secret(path, secret)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    path.with_name(path.name + ".pub").write_text(public + "\n")
    return public


def _write_secret(path: Path, content: bytes) -> None:
    """For the owner's eyes alone, from the first byte on; never in place of another key."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as cause:
        raise BadInput(
            f"{path} exists already; a key is not written over. Remove it, or choose another place."
        ) from cause
    with os.fdopen(opened, "wb") as file:
        file.write(content)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


# ---- The folder of a deployment: where everything lies, and the app that `deploy init` writes into it ---------------

EXPERIMENT, NODE, LEDGER = "experiment.toml", "node.toml", "ledger.sqlite"
DECIDED = ("client", "cap", "accept", "without_noise")  # settings of a node that the experiment file decides

PYPROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "A priced and private federation, made by mppfl deploy init."
license = "Apache-2.0"
dependencies = ["mppfl[flower]"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
publisher = "mppfl"
fab-include = ["federation/*.py", "experiment.toml"]  # nothing of deployment/: keys and accounts stay where they are

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
experiment = ""        # the experiment file on the server's machine
state = ""             # the folder in which the server keeps its state and accounts
keys = ""              # whose key is whose; empty believes the names that nodes declare
nodes = ""             # simulation only: the folder of the simulated nodes' settings
wait-seconds = 180     # the first round waits so long for everybody
round-seconds = 600    # a round waits so long for answers
"""

SERVER_APP = '''\
"""The server: prices every round of the experiment, checks and books what comes back, tests the model."""

from mppfl.flower import experiment_server

app = experiment_server()
'''

CLIENT_APP = '''\
"""A client: trains on its own data as the experiment says, and lets out only what its own settings allow."""

from pathlib import Path

from mppfl.flower import experiment_client

# Of the app that Flower hands to a node, for nodes whose settings name no experiment of their own.
app = experiment_client(Path(__file__).parents[1] / "experiment.toml")
'''

EXPERIMENT_FILE = """\
# The same file runs on one machine (mppfl train experiment.toml) and on Flower (mppfl deploy local .).
name = "{name}"
seed = 0
mechanism = "mppfl"

[network]                       # who exposes whom; or: source = "friends.csv"
generate = "erdos_renyi"
num_clients = {num_clients}

[game]
preset = "paper-like"
num_rounds = {num_rounds}

[data]
name = "digits"                 # comes with scikit-learn: nothing to fetch

[training]
model = "linear"                # few parameters: sound noise grows with their number
learning_rate = 1.0
privacy = "full_batch"          # ρ-zCDP per record and round, whatever the data
clip_norm = 1.0
noise = "gaussian"              # drawn by each client from its operating system
dp_epsilon = 4.0                # with which the client who gives most ends, at dp_delta = 1e-5
aggregation = "noise_aware"

[ledger]
cap = 1.0                       # ρ that a client lets out in all, over all runs; each node keeps its own
"""

GITIGNORE = "deployment/\n__pycache__/\n"


def write_app(folder: Path, num_clients: int = 5, num_rounds: int = 5) -> list[Path]:
    """Writes a Flower app that is ready to run. Refuses a folder in which one of its files stands already."""
    require_plain_path(folder)
    name = folder.absolute().name
    safe = (
        "".join(sign if sign.isascii() and (sign.isalnum() or sign == "-") else "-" for sign in name).strip("-")
        or "app"
    )
    files = {
        "pyproject.toml": PYPROJECT.format(name=safe.lower()),
        EXPERIMENT: EXPERIMENT_FILE.format(name=safe, num_clients=num_clients, num_rounds=num_rounds),
        "federation/__init__.py": "",
        "federation/server_app.py": SERVER_APP,
        "federation/client_app.py": CLIENT_APP,
        ".gitignore": GITIGNORE,
    }
    for path in [folder / each for each in files]:
        if path.exists():
            raise BadInput(f"{path} exists already and is not written over. Choose another folder.")
        for parent in path.parents:
            if parent.exists() and not parent.is_dir():
                raise BadInput(f"{parent} is a file where a folder is needed. Choose another folder, or move it away.")
    _write_all({folder / each: content for each, content in files.items()})
    return [folder / each for each in files]


def require_plain_path(folder: Path) -> None:
    """Raises where the folder's path cannot be handed to Flower, which takes paths as TOML on a command line."""
    path = str(folder.absolute())
    for sign in path:
        if sign == '"' or category(sign) in ("Cc", "Cs"):
            raise BadInput(f"{path!r}: Flower takes no path with {sign!r} in it. Choose another folder.")


def _write_all(files: Mapping[Path, str]) -> None:
    """Writes all of these files or, where one cannot be written, none: half an app would be in the next try's way."""
    made: list[Path] = []
    for path, content in files.items():
        try:
            for parent in reversed(path.parents):
                if not parent.exists():
                    parent.mkdir()
                    made.append(parent)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(content)
        except OSError as cause:
            for each in reversed(made):
                with suppress(OSError):  # of the two troubles the first is told
                    (each.rmdir if each.is_dir() else each.unlink)()
            raise BadInput(
                f"{path} could not be written ({cause.strerror or cause}). Choose another folder."
            ) from cause


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of a deployment lie, under the app's own folder."""

    app: Path

    def __post_init__(self) -> None:
        for name in ("pyproject.toml", EXPERIMENT):
            if not (self.app / name).is_file():
                raise BadInput(
                    f"{self.app} has no {name}, so it is no app of mppfl. Write one: mppfl deploy init "
                    f"{quote(str(self.app))}"
                )

    @property
    def experiment(self) -> Path:
        return self.app / EXPERIMENT

    @property
    def folder(self) -> Path:
        return self.app / "deployment"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def keys(self) -> Path:
        return self.folder / "keys.json"

    @property
    def made_here(self) -> Path:
        """Names the clients whose nodes were made on this machine; those of other machines are in `keys` alone."""
        return self.folder / "nodes.json"

    @property
    def flower_home(self) -> Path:
        return self.folder / "flower"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def processes(self) -> Path:
        return self.folder / "processes.json"

    def node(self, position: int) -> Path:
        return self.folder / "nodes" / str(position)

    def ledgers(self, clients: Sequence[str] = ()) -> dict[str, Path]:
        """The ledgers of the nodes that live on this machine, or once did, by client.

        `clients`, in the order of the experiment, stand in for the registered ones where those are lost. A node of
        another machine has no folder here and was not made here.
        """
        registered = self.clients()
        made = self._made_clients()
        places = {client: self.node(at) for at, client in enumerate(made or registered or clients)}
        return {client: place / LEDGER for client, place in places.items() if made or place.is_dir()}

    def _made_clients(self) -> list[str]:
        found = _json_in(self.made_here, [])
        if not isinstance(found, list) or not all(isinstance(client, str) for client in found):
            raise BadFile(f"{self.made_here}: must list clients' names. Restore a copy.")
        return found

    def clients(self) -> list[str]:
        """The clients whose keys are registered, in the order of the experiment."""
        found = _json_in(self.keys, {})
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found.values()):
            raise BadFile(f"{self.keys}: must give each client's name its key. Restore a copy.")
        return list(found)


def _json_in(path: Path, otherwise: Any) -> Any:
    """What a file holds, or `otherwise` where there is none."""
    if not path.exists():
        return otherwise
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as cause:
        raise BadFile(f"{path}: cannot be read as JSON ({cause}). Restore a copy.") from cause


def _require_same(path: Path, wanted: NodeSettings) -> None:
    """Raises where a node's settings are not those of the experiment, or lead out of this folder.

    A node goes by its own file, so a change of the experiment alone would be ignored without a word; and a folder that
    was copied would charge the ledgers of the one it came from.
    """
    found = read_node(path)
    for name in DECIDED:
        here, there = getattr(found, name), getattr(wanted, name)
        if here != there:
            raise BadInput(
                f"{path} has {name}={_shown(here)}, by which the node goes, and {EXPERIMENT} now means "
                f"{name}={_shown(there)}. Write the same in both."
            )
    for name in PATHS:
        here, there = getattr(found, name), getattr(wanted, name)
        if here is None or here.resolve() != there.resolve():
            raise BadInput(
                f"{path} has {name}={_shown(here)}, which is not in this deployment: its file is {there}. Write "
                f"{name} = {json.dumps(relpath(there, path.absolute().parent))}."
            )


def _shown(value: Any) -> str:
    """A setting as people write it."""
    if value is None:
        return "none"
    return str(list(value) if isinstance(value, tuple) else value)


def make_nodes(layout: Layout, experiment: Experiment) -> list[str]:
    """Certificates, and a folder, settings and a key for every client, where they are not there yet; the clients."""
    graph = network_of(experiment, experiment.seeds[0])
    require_capped_clients(experiment, graph)
    clients = [graph.name(at) for at in range(graph.num_clients)]
    layout.folder.mkdir(parents=True, exist_ok=True)
    os.chmod(layout.folder, 0o700)  # keys and ledgers are nobody else's business
    if not (layout.certificates / CA).exists():
        make_certificates(layout.certificates)
    before = layout.clients()
    if before and before != clients:
        raise BadInput(
            f"{layout.keys} has keys for {len(before)} clients, and the experiment has {len(clients)} or others. "
            "Use another folder for another federation."
        )
    write_whole(layout.made_here, (json.dumps(clients, ensure_ascii=False) + "\n").encode())
    mechanism = experiment.training.config.privacy
    keys: dict[str, str] = {}
    for position, client in enumerate(clients):
        place = layout.node(position)
        settings = NodeSettings(
            client=client,
            ledger=place.absolute() / LEDGER,
            cap=experiment.ledger.caps.get(client, experiment.ledger.cap),
            accept=(mechanism,),
            without_noise=experiment.mechanisms == ("noiseless",),
            experiment=layout.experiment.absolute(),
        )
        place.mkdir(parents=True, exist_ok=True)
        if (place / NODE).exists():
            _require_same(place / NODE, settings)
        else:
            write_whole(place / NODE, settings.to_toml(place.absolute()).encode())
        if before:
            _require_registered(place, client, layout)
        else:
            public = place / "key.pub"
            keys[client] = public.read_text().strip() if public.exists() else make_node_key(place / "key")
    if not before:
        write_whole(layout.keys, (json.dumps(keys, indent=2, ensure_ascii=False) + "\n").encode())
    return clients


def _require_registered(place: Path, client: str, layout: Layout) -> None:
    """Raises where a node has not the key that is registered for its client: it would never be asked for anything."""
    secret, public = place / "key", place / "key.pub"
    for path in (secret, public):
        if not path.is_file():
            raise BadInput(
                f"{path} is missing, the key of client {client!r}. Restore it; or move the rest of it away, make a new "
                f"one (ssh-keygen -q -t ecdsa -b 384 -N '' -f {quote(str(secret))}) and write it into {layout.keys}."
            )
    registered = _json_in(layout.keys, {})[client]
    if public.read_text("utf-8", "replace").split()[:2] != registered.split()[:2]:  # a comment may follow the key
        raise BadInput(
            f"{public} is not the key that {layout.keys} has for client {client!r}, so its node would never be asked. "
            f"Restore the old one, or write this one into {layout.keys.name}."
        )
