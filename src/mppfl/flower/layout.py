"""The folder of a deployment: where its files lie, the app that `deploy init` writes, certificates, nodes and keys."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from importlib import resources
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
from mppfl.experiment import network_of, require_capped_clients
from mppfl.files import write_whole
from mppfl.flower.identity import PATHS, NodeSettings, read_keys, read_node
from mppfl.spec import Experiment

EXPERIMENT, NODE, LEDGER = "experiment.toml", "node.toml", "ledger.sqlite"
DECIDED = ("client", "cap", "accept", "without_noise")  # settings of a node that the experiment file decides
CA, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
DAYS = 365


class Layout:
    """Where the files of a deployment lie, under the app's own folder.

    made_here  names the clients whose nodes were made on this machine; those of other machines are in `keys` alone
    """

    def __init__(self, app: Path) -> None:
        for name in ("pyproject.toml", EXPERIMENT):
            if not (app / name).is_file():
                raise BadInput(
                    f"{app} has no {name}, so it is no app of mppfl. Write one: mppfl deploy init {quote(str(app))}"
                )
        self.app, self.experiment, self.folder = app, app / EXPERIMENT, app / "deployment"
        self.server, self.certificates = self.folder / "server", self.folder / "certificates"
        self.keys, self.made_here = self.folder / "keys.json", self.folder / "nodes.json"
        self.flower_home, self.logs = self.folder / "flower", self.folder / "logs"
        self.processes = self.folder / "processes.json"

    def __repr__(self) -> str:
        return f"Layout({str(self.app)!r})"

    def node(self, position: int) -> Path:
        return self.folder / "nodes" / str(position)

    def registered_keys(self) -> dict[str, str]:
        """The public key of every registered client, in OpenSSH form and in the order of the experiment."""
        return read_keys(self.keys) if self.keys.exists() else {}

    def ledgers(self, clients: Sequence[str] = ()) -> dict[str, Path]:
        """The ledgers of the nodes that are, or were, on this machine, by client.

        `clients`, in the order of the experiment, stand in for the registered ones where those are lost. A node of
        another machine has no folder here and was not made here.
        """
        registered, made = list(self.registered_keys()), self._names_made_here()
        folders = {client: self.node(position) for position, client in enumerate(made or registered or clients)}
        return {client: folder / LEDGER for client, folder in folders.items() if made or folder.is_dir()}

    def _names_made_here(self) -> list[str]:
        if not self.made_here.exists():
            return []
        with suppress(ValueError):
            names = json.loads(self.made_here.read_bytes())
            if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
                return names
        raise BadFile(f"{self.made_here}: must list clients' names as JSON. Restore a copy.")


def require_plain_path(folder: Path) -> None:
    """Raises where the folder's path cannot be handed to Flower, which takes paths as TOML on a command line."""
    path = str(folder.absolute())
    for letter in path:
        if letter == '"' or category(letter) in ("Cc", "Cs"):
            raise BadInput(f"{path!r}: Flower takes no path with {letter!r} in it. Choose another folder.")


# ---- the app --------------------------------------------------------------------------------------------------------


def write_app(folder: Path, num_clients: int = 5, num_rounds: int = 5) -> list[Path]:
    """Writes a Flower app that is ready to run. Refuses a folder in which one of its files exists already."""
    require_plain_path(folder)
    letters = [letter if letter.isascii() and letter.isalnum() else "-" for letter in folder.absolute().name]
    name = "".join(letters).strip("-") or "app"
    files = {
        "pyproject.toml": _template("pyproject.toml").format(name=name.lower()),
        EXPERIMENT: _template(EXPERIMENT).format(name=name, num_clients=num_clients, num_rounds=num_rounds),
        "federation/__init__.py": "",
        "federation/server_app.py": _template("server_app.py"),
        "federation/client_app.py": _template("client_app.py"),
        ".gitignore": _template("gitignore"),
    }
    contents = {folder / path: content for path, content in files.items()}
    for path in contents:
        if path.exists():
            raise BadInput(f"{path} exists already and is not written over. Choose another folder.")
        for parent in path.parents:
            if parent.exists() and not parent.is_dir():
                raise BadInput(f"{parent} is a file where a folder is needed. Choose another folder, or move it away.")
    _write_all(contents)
    return list(contents)


def _template(name: str) -> str:
    return resources.files("mppfl.flower").joinpath("templates", f"{name}.template").read_text("utf-8")


def _write_all(contents: Mapping[Path, str]) -> None:
    """Writes all of these files or, where one cannot be written, none: half an app would block the next try."""
    try:
        with ExitStack() as undo:
            for path, content in contents.items():
                for parent in reversed(path.parents):
                    if not parent.exists():
                        parent.mkdir()
                        undo.callback(parent.rmdir)
                with path.open("x", encoding="utf-8") as file:
                    undo.callback(path.unlink)
                    file.write(content)
            undo.pop_all()
    except OSError as cause:
        raise BadInput(f"{path} could not be written ({cause.strerror or cause}). Choose another folder.") from cause


# ---- nodes ----------------------------------------------------------------------------------------------------------


def make_nodes(layout: Layout, experiment: Experiment) -> list[str]:
    """Makes certificates, and a folder, settings and a key for every client, where missing; returns the clients."""
    graph = network_of(experiment.game)
    require_capped_clients(experiment, graph)
    clients = [graph.name(position) for position in range(graph.num_clients)]
    layout.folder.mkdir(parents=True, exist_ok=True)
    os.chmod(layout.folder, 0o700)  # keys and ledgers are for their owner alone
    if not (layout.certificates / CA).exists():
        make_certificates(layout.certificates)
    registered = layout.registered_keys()
    if registered and list(registered) != clients:
        raise BadInput(
            f"{layout.keys} has keys for {len(registered)} clients, and the experiment has {len(clients)} or others. "
            "Use another folder for another federation."
        )
    write_whole(layout.made_here, (json.dumps(clients, ensure_ascii=False) + "\n").encode())
    keys: dict[str, str] = {}
    for position, client in enumerate(clients):
        folder = layout.node(position)
        _make_settings(folder, client, layout, experiment)
        if registered:
            _require_registered(folder, client, registered[client], layout.keys)
        else:
            public = folder / "key.pub"
            keys[client] = public.read_text().strip() if public.exists() else make_node_key(folder / "key")
    if not registered:
        write_whole(layout.keys, (json.dumps(keys, indent=2, ensure_ascii=False) + "\n").encode())
    return clients


def _make_settings(folder: Path, client: str, layout: Layout, experiment: Experiment) -> None:
    """Writes a node's settings as the experiment means them, or raises where it has others."""
    settings = NodeSettings(
        client=client,
        ledger=folder.absolute() / LEDGER,
        cap=experiment.ledger.caps.get(client, experiment.ledger.cap),
        accept=(str(experiment.training.protection.release),),
        without_noise=experiment.mechanisms == ("noiseless",),
        experiment=layout.experiment.absolute(),
    )
    if (folder / NODE).exists():
        _require_same(folder / NODE, settings)
    else:
        write_whole(folder / NODE, settings.to_toml(folder.absolute()).encode())


def _require_same(path: Path, settings: NodeSettings) -> None:
    """Raises where a node's own file differs from these settings, or leads out of this folder.

    A node goes by its own file, so a change of the experiment alone would be ignored silently; and a folder that was
    copied would charge the ledgers of the original.
    """
    node = read_node(path)
    for name in (*DECIDED, *PATHS):
        present, decided = getattr(node, name), getattr(settings, name)
        if name in DECIDED and present != decided:
            raise BadInput(
                f"{path} has {name}={_shown(present)}, by which the node goes, and {EXPERIMENT} now means "
                f"{name}={_shown(decided)}. Write the same in both."
            )
        if name in PATHS and (present is None or present.resolve() != decided.resolve()):
            raise BadInput(
                f"{path} has {name}={_shown(present)}, which is not in this deployment: its file is {decided}. Write "
                f"{name} = {json.dumps(relpath(decided, path.absolute().parent))}."
            )


def _shown(value: Any) -> str:
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _require_registered(folder: Path, client: str, key: str, registry: Path) -> None:
    """Raises where a node lacks the key that is registered for its client: it would never be asked for anything."""
    secret, public = folder / "key", folder / "key.pub"
    for path in (secret, public):
        if not path.is_file():
            raise BadInput(
                f"{path} is missing, the key of client {client!r}. Restore it; or move the rest of it away, make a new "
                f"one (ssh-keygen -q -t ecdsa -b 384 -N '' -f {quote(str(secret))}) and write it into {registry}."
            )
    if public.read_text("utf-8", "replace").split()[:2] != key.split()[:2]:  # a comment may follow the key
        raise BadInput(
            f"{public} is not the key that {registry} has for client {client!r}, so its node would never be asked. "
            f"Restore the old one, or write this one into {registry.name}."
        )


# ---- certificates and keys ------------------------------------------------------------------------------------------


def make_certificates(folder: Path, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> None:
    """Makes an authority and a server certificate for these hosts: ca.crt, server.crt and server.key in `folder`.

    The authority's private key is not kept, so nobody, not even the folder's owner, can sign a second server with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    authority_name = "mppfl local authority"
    authority_certificate = _certificate(
        authority_name,
        authority,
        (authority_name, authority),
        {x509.BasicConstraints(ca=True, path_length=0): True, identifier: False, _usage(signs_certificates=True): True},
    )
    server_certificate = _certificate(
        hosts[0],
        server,
        (authority_name, authority),
        {
            x509.SubjectAlternativeName([_host_name(host) for host in hosts]): False,
            x509.BasicConstraints(ca=False, path_length=None): True,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]): False,
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier): False,
            x509.SubjectKeyIdentifier.from_public_key(server.public_key()): False,
            _usage(signs_certificates=False): True,
        },
    )
    # The key, which is never written over, comes first; ca.crt, which says that all files exist, comes last. So of two
    # processes that make certificates in one folder only one gets past the first line.
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _write_secret(folder / KEY, server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (folder / CERTIFICATE).write_bytes(server_certificate)
    (folder / CA).write_bytes(authority_certificate)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[str, ec.EllipticCurvePrivateKey],
    extensions: Mapping[x509.ExtensionType, bool],
) -> bytes:
    """A certificate in PEM for the key, signed by the issuer; extensions with whether they are critical."""
    issuer_name, issuer_key = issuer
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer_name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=DAYS))
    )
    for extension, critical in extensions.items():
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    signs, speaks = signs_certificates, not signs_certificates
    # digital_signature, three that are not used, key_agreement, key_cert_sign, crl_sign, two more that are not used
    return x509.KeyUsage(speaks, False, False, False, False, signs, signs, False, False)


def make_node_key(path: Path) -> str:
    """Makes a node's private key at `path` and its public key beside it as .pub, and returns the latter (OpenSSH)."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _write_secret(path, key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    path.with_name(path.name + ".pub").write_text(public + "\n")
    return public


def _write_secret(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, from the first byte on; never over another key."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as cause:
        raise BadInput(
            f"{path} exists already; a key is not written over. Remove it, or choose another place."
        ) from cause
    with os.fdopen(opened, "wb") as file:
        file.write(content)
