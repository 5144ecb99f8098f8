"""Certificates of small authorities, made by the openssl program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(folder: Path, name: str) -> None:
    """Write ``NAME.key`` and ``NAME.pem`` of an authority."""
    _openssl(folder, "req", "-x509", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")


def make_certificate(folder: Path, authority: str, file: str, name: str, alternative_names: str) -> None:
    """Write ``FILE.key`` and ``FILE.pem`` of a name, signed by an authority, with more names, e.g. ``DNS:n0``."""
    (folder / "names").write_text(f"subjectAltName={alternative_names}\n")
    _openssl(folder, "req", *_NEW_KEY, "-keyout", f"{file}.key", "-out", f"{file}.csr", "-subj", f"/CN={name}")
    sign = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", "names")
    _openssl(folder, "x509", "-req", "-in", f"{file}.csr", *sign, "-out", f"{file}.pem")


def _openssl(folder: Path, *args: str) -> None:
    try:
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder, timeout=60)
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificates, is not installed")
