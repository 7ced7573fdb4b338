"""Provenance: complete where it can be, silent about people and places, and never in the way."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

import mppfl
from mppfl.experiment import Provenance, commit_of, fingerprint, provenance_here
from tests.homes import home

provenance = home(Provenance)

HASH = "0123456789abcdef0123456789abcdef01234567"


def test_provenance_tells_versions_machine_and_time():
    found = provenance_here()
    assert found.python == platform.python_version()
    assert all(getattr(found, name) for name in ("mppfl", "torch", "numpy", "scipy", "cpu", "source"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.started)
    assert found.cores >= 1
    assert found.memory_gib > 0
    assert (found.device, found.gpu, found.seconds) == ("cpu", "", 0.0)
    assert provenance_here("cuda:99", started="then", seconds=2.5).started == "then"


def test_provenance_names_no_host_user_or_folder():
    text = " ".join(map(str, asdict(provenance_here()).values()))
    assert str(Path(mppfl.__file__).parent) not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert not re.search(r"(^|\s)/\w", text)
    for word in (socket.gethostname(), os.environ.get("USER") or getpass.getuser()):
        assert not re.search(rf"\b{re.escape(word)}\b", text)


@pytest.fixture
def tree(tmp_path):
    """A work tree with a package in it, made by hand."""
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return package


def test_the_commit_is_read_from_a_branch_a_packed_branch_or_no_branch(tree):
    git = tree.parents[1] / ".git"
    assert commit_of(tree) == ""  # no commit yet
    (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{HASH} refs/heads/main\n")
    assert commit_of(tree) == HASH
    (git / "refs" / "heads" / "main").write_text(HASH[::-1] + "\n")
    assert commit_of(tree) == HASH[::-1]
    (git / "HEAD").write_text(HASH + "\n")
    assert commit_of(tree) == HASH
    (git / "HEAD").write_text("nonsense /home/me\n")
    assert commit_of(tree) == ""
    (git / "HEAD").write_bytes(b"\xff\xff")
    assert commit_of(tree) == ""


def test_the_commit_of_a_linked_work_tree_is_found(tree, tmp_path):
    linked = tmp_path / "linked"
    (linked / "package").mkdir(parents=True)
    own = tmp_path / ".git" / "worktrees" / "linked"
    own.mkdir(parents=True)
    (linked / ".git").write_text(f"gitdir: {own}\n")
    (own / "HEAD").write_text("ref: refs/heads/topic\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / ".git" / "refs" / "heads" / "topic").write_text(HASH)
    assert commit_of(linked / "package") == HASH


def test_an_installed_package_has_no_commit_even_inside_a_work_tree(tree):
    git = tree.parents[1] / ".git"
    (git / "refs" / "heads" / "main").write_text(HASH)
    installed = tree.parents[1] / ".venv" / "site-packages" / "mppfl"
    installed.mkdir(parents=True)
    assert commit_of(installed) == ""
    assert commit_of(tree) == HASH


def test_the_fingerprint_follows_the_source(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    before = fingerprint(tmp_path)
    (tmp_path / "a.pyc").write_text("noise")
    assert fingerprint(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2")
    assert fingerprint(tmp_path) != before


def test_nothing_that_is_missing_stops_it(monkeypatch):
    def fails(*_, **__):
        raise OSError("no")

    monkeypatch.setattr(provenance.Path, "read_text", fails)
    monkeypatch.setattr(provenance.Path, "read_bytes", fails)
    monkeypatch.setattr(provenance.os, "sysconf", fails)
    monkeypatch.setattr(provenance, "LIBRARIES", ("torch", "numpy", "scipy"))
    monkeypatch.setattr(provenance.metadata, "version", fails)
    found = provenance_here("cuda")
    assert (found.commit, found.source, found.torch, found.memory_gib) == ("", "", "", 0.0)
