"""Certificates and keys made on the spot: a small authority, a server certificate from it, and a key for each node."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mppfl.errors import BadInput

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
