"""Identity flags of ``tocsin serve`` and ``tocsin agent``, and the local token's file."""

from __future__ import annotations

import argparse
import contextlib
import grp
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin.cli.paths import credentials_file, local_token_files, runtime_folder
from tocsin.collectors.transport.sign_in import TokenSearch
from tocsin.schemas.address import is_loopback, split_address
from tocsin.schemas.credential_store import CredentialStore, read_credentials, write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError, CredentialError
from tocsin.schemas.tls import TlsFiles

if TYPE_CHECKING:
    from tocsin.pipeline.identity.gate import GateConfig
    from tocsin.schemas.credentials import Credential

HOST_TOKEN: Final = "/etc/tocsin/token.json"  # noqa: S105  # a file's name, not a password
_INSECURE: Final = "TOCSIN_INSECURE_NO_IDENTITY"


# -- serve ---------------------------------------------------------------------------------------------


def add_gate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say from whom ``tocsin serve`` accepts records."""
    group = parser.add_argument_group("who may speak to it (docs/identity.md)")
    text = "credentials of all hosts [env: TOCSIN_CREDENTIALS; default: credentials.json in the data folder, if there]"
    group.add_argument("--credentials", metavar="FILE", default=os.environ.get("TOCSIN_CREDENTIALS", ""), help=text)
    text = "on a unix socket, trust this user's processes, too (besides our own user and root); may be repeated"
    group.add_argument("--trust-uid", metavar="USER", action="append", default=[], type=_uid, help=text)
    text = "and this group's"
    group.add_argument("--trust-group", metavar="GROUP", action="append", default=[], type=_gid, help=text)
    group.add_argument("--tls-cert", metavar="FILE", default="", help="PEM: speak TLS with this certificate")
    group.add_argument(
        "--tls-key", metavar="FILE", default="", help="PEM: its key (default: in the certificate's file)"
    )
    text = "PEM: agents must show a certificate of these authorities; its name is the host's"
    group.add_argument("--tls-client-ca", metavar="FILE", default="", help=text)
    text = "take recordings from who has a player's credential: it speaks for any host"
    group.add_argument("--allow-player", action="store_true", help=text)
    text = "let anybody say anything about any host; only in a network where nobody else is"
    group.add_argument("--insecure-no-identity", action="store_true", help=text)


def tls_of(args: argparse.Namespace) -> TlsFiles | None:
    """Return the engine's TLS files, None: no TLS.

    Raises:
        ConfigError: a key or a CA is given without a certificate.
    """
    if not args.tls_cert:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(args, name):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(flag, getattr(args, name), "together with --tls-cert")
        return None
    return TlsFiles(args.tls_cert, args.tls_key, args.tls_client_ca)


def gate_of(args: argparse.Namespace, data: Path) -> GateConfig:
    """Return the settings that say from whom the engine accepts records.

    Raises:
        ConfigError: others can reach the address, and nothing proves who they are.
        CredentialError: the file of credentials cannot be used.
    """
    from tocsin.pipeline.identity.gate import GateConfig, local_credential

    store = _store(args, data)
    is_unix, host = _listen_host(args.listen)
    is_local = is_unix or is_loopback(host)
    if not (is_local or store.all() or args.tls_client_ca or args.insecure_no_identity):
        must = (
            "reached by nobody whom you cannot tell: issue credentials (tocsin token issue HOST), or --tls-cert with "
            "--tls-client-ca, or 127.0.0.1, or unix:PATH; --insecure-no-identity lets anybody speak for any host"
        )
        raise ConfigError("--listen", args.listen, must)
    return GateConfig(
        store,
        None if is_unix or not is_local else local_credential(time.time_ns()),
        frozenset(args.trust_uid),
        frozenset(args.trust_group),
        is_player_allowed=args.allow_player,
        is_open=args.insecure_no_identity,
    )


def _store(args: argparse.Namespace, data: Path) -> CredentialStore:
    """Return the credentials of the named file, or of the default one, which need not exist yet."""
    if args.credentials:
        return CredentialStore(Path(args.credentials))
    return CredentialStore(credentials_file(data), may_come_later=True)


def _listen_host(listen: str) -> tuple[bool, str]:
    """Return whether the address is a unix socket, and else its host."""
    if listen.startswith("unix:"):
        return True, ""
    return False, split_address(listen, "--listen")[0]


@contextlib.contextmanager
def local_token(gate: GateConfig, address: str) -> Iterator[Path | None]:
    """Context manager that writes the local credential to a file where agents of this user find it, and gives its path.

    The file is removed when the engine stops listening.

    Args:
        gate: settings with the local credential; without one, no file is written and the path is None.
        address: address that the engine listens on, with the actual port.

    Raises:
        CredentialError: the file can be written nowhere.
    """
    if gate.local is None:
        yield None
        return
    path = _write_local_token(gate.local, split_address(address, "--listen")[1])
    try:
        yield path
    finally:
        with contextlib.suppress(CredentialError, OSError):  # another engine's by now, or gone
            if read_credentials(path) == (gate.local,):
                path.unlink()


def _write_local_token(local: Credential, port: int) -> Path:
    """Write the local credential to the first possible file and return its path."""
    last_error = ""
    for path in local_token_files(port):
        try:
            if not path.parent.is_dir():
                if path.parent == Path("/run/tocsin"):
                    continue  # systemd makes it for the engine's unit; a folder of ours would be in its way
                if path.parent.parent == Path("/tmp"):  # noqa: S108  # made for the owner only, and checked
                    runtime_folder()
            write_credentials(path, (local,))
        except (CredentialError, ConfigError) as error:
            last_error = str(error)
        else:
            return path
    raise CredentialError("the local token", f"writable somewhere: set XDG_RUNTIME_DIR ({last_error})")


# -- agent ---------------------------------------------------------------------------------------------


def add_token_arguments(flag: Callable[[str, str, str, str], None], parser: argparse.ArgumentParser) -> None:
    """Add the flags with which ``tocsin agent`` proves its identity.

    Args:
        flag: function that adds a flag from name, environment variable, default and help text.
        parser: parser of the command.
    """
    text = "credential of this host (default: of a local engine, its own; else $CREDENTIALS_DIRECTORY, /etc/tocsin)"
    flag("--token-file", "TOCSIN_TOKEN_FILE", "", text)
    flag("--tls-ca", "TOCSIN_TLS_CA", "", "PEM: speak TLS to an engine whose certificate is of these authorities")
    flag("--tls-cert", "TOCSIN_TLS_CERT", "", "PEM: this host's certificate, with its key or --tls-key")
    flag("--tls-key", "TOCSIN_TLS_KEY", "", "PEM: the certificate's key")
    parser.add_argument(
        "--insecure-no-identity",
        action="store_true",
        default=os.environ.get(_INSECURE, "") not in {"", "0"},
        help=f"speak to an engine that does not prove who it is [env: {_INSECURE}]",
    )


def tokens_of(args: argparse.Namespace) -> TokenSearch:
    """Return the search for the agent's credential; print a warning if the named file has none that is valid.

    Raises:
        ConfigError: the engine's address is not valid, or ``--tls-cert`` is given without ``--tls-ca``.
    """
    search = TokenSearch(args.token_file, _places(args.engine), args.insecure_no_identity)
    if args.tls_cert and not args.tls_ca:
        raise ConfigError("--tls-ca", args.tls_ca, "given with --tls-cert: it says which engine's certificate is good")
    if args.token_file:
        try:
            search.credential(args.host, time.time_ns())
        except CredentialError as error:
            # not the end: it may be issued in a moment, and what is collected meanwhile is kept
            print(f"tocsin agent: {error}", file=sys.stderr, flush=True)
    return search


def kafka_tokens_of(args: argparse.Namespace) -> TokenSearch:
    """Return the search for the credential that signs records on Kafka.

    It is like ``tokens_of``, but without the local token of an engine.
    """
    return TokenSearch(args.token_file, _places(""))


def add_signer_argument(parser: argparse.ArgumentParser, role: str) -> None:
    """Add the flag for the credential that signs what a command sends to Kafka."""
    text = f"sign what is sent to Kafka with this credential of role {role} [env: TOCSIN_TOKEN_FILE]"
    parser.add_argument("--token-file", metavar="FILE", default=os.environ.get("TOCSIN_TOKEN_FILE", ""), help=text)


def signer_of(args: argparse.Namespace, *roles: Role) -> Credential | None:
    """Return the newest valid credential of one of the roles in the named file, None: no file is named.

    Raises:
        CredentialError: the file cannot be used, or holds no credential of the roles that is valid now.
    """
    if not args.token_file:
        return None
    found = [one for one in read_credentials(Path(args.token_file)) if one.role in roles and one.secret]
    valid = [one for one in found if one.is_valid(time.time_ns())]
    if not valid:
        raise CredentialError(args.token_file, f"a file with a credential of role {' or '.join(roles)} that counts now")
    return max(valid, key=lambda one: one.created_ns)


def agent_tls_of(args: argparse.Namespace) -> TlsFiles | None:
    """Return the agent's TLS files, None: no TLS."""
    return TlsFiles(args.tls_cert, args.tls_key, args.tls_ca) if args.tls_ca else None


def _places(engine: str) -> tuple[str, ...]:
    """Return the files in which the agent's credential is looked for, in order."""
    places = []
    if engine and not engine.startswith("unix:"):
        host, port = split_address(engine, "engine")
        if is_loopback(host):
            places += [str(path) for path in local_token_files(port)]
    credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")  # systemd's LoadCredential=
    return (*places, *([f"{credentials}/token.json"] if credentials else []), HOST_TOKEN)


# -- names of users ------------------------------------------------------------------------------------


def _uid(text: str) -> int:
    """Parse a user name or number to a user ID; else an argparse error."""
    try:
        return int(text) if text.isdigit() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r}: no such user") from None


def _gid(text: str) -> int:
    """Parse a group name or number to a group ID; else an argparse error."""
    try:
        return int(text) if text.isdigit() else grp.getgrnam(text).gr_gid
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r}: no such group") from None
