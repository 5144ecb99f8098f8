"""Asks an engine over the network, with the role reader, or operator for what changes something.

Neither may send records.

See docs/interfaces.md, section 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from tocsin import __version__
from tocsin.cli.identity import signer_of
from tocsin.cli.paths import control_socket, data_folder
from tocsin.collectors.transport.link import (
    LENGTH,
    MAX_FRAME_BYTES,
    control_frame,
    parse_control,
)
from tocsin.collectors.transport.sign_in import (
    TCP,
    TLS,
    UNIX,
    SignIn,
    TokenSearch,
)
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError, EngineRefusedError
from tocsin.schemas.address import split_address
from tocsin.schemas.credentials import ANY_NAME, Credential, Role
from tocsin.schemas.errors import ConfigError, EngineError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.tls import TlsFiles

_ANSWER_SECONDS: Final = 120.0
_CONNECT_SECONDS: Final = 10.0

Message = dict[str, Any]


ASKING: Final = (Role.READER, Role.OPERATOR)
"""Roles that may ask."""
CHANGING: Final = (Role.OPERATOR,)
"""Roles that may change something."""


def add_engine_arguments(parser: argparse.ArgumentParser, roles: tuple[Role, ...] = ASKING) -> None:
    """Add the flags for asking an engine on another machine; ``roles``: those that the command needs."""
    group = parser.add_argument_group("an engine on another machine (docs/identity.md)")
    text = "where agents connect to the engine: HOST:PORT, or unix:PATH"
    group.add_argument("--engine", metavar="ADDRESS", default="", help=text)
    needed = " or ".join(roles)
    text = f"credential of role {needed} (tocsin token issue NAME --role {roles[0]}) [env: TOCSIN_TOKEN_FILE]"
    group.add_argument("--token-file", metavar="FILE", default=os.environ.get("TOCSIN_TOKEN_FILE", ""), help=text)
    text = "PEM: speak TLS to an engine whose certificate is of these authorities [env: TOCSIN_TLS_CA]"
    group.add_argument("--tls-ca", metavar="FILE", default=os.environ.get("TOCSIN_TLS_CA", ""), help=text)
    text = "PEM: our certificate with its key, where the engine asks for one [env: TOCSIN_TLS_CERT]"
    group.add_argument("--tls-cert", metavar="FILE", default=os.environ.get("TOCSIN_TLS_CERT", ""), help=text)


def channel_of(args: argparse.Namespace, roles: tuple[Role, ...]) -> EngineReader | ControlClient:
    """Return what asks the engine that the flags name: one on another machine, or the data folder's.

    Args:
        args: the command's flags.
        roles: roles that may send the request over a network.

    Raises:
        ConfigError: a data folder is named beside an engine, or no credential is given.
        CredentialError: the file cannot be used, or holds no credential of these roles.
    """
    return reader_of(args, roles) or ControlClient(control_socket(data_folder(args.data)))


def reader_of(args: argparse.Namespace, roles: tuple[Role, ...] = ASKING) -> EngineReader | None:
    """Return the reader for the engine that the flags name, None: they name none.

    Args:
        args: the command's flags.
        roles: roles of which the credential must have one.

    Raises:
        ConfigError: another database is named, too, or no credential is given.
        CredentialError: the file cannot be used, or holds no credential of these roles.
    """
    if not args.engine:
        return None
    for name in ("data", "clickhouse"):
        if getattr(args, name, None):
            raise ConfigError(f"--{name}", str(getattr(args, name)), "left out where --engine is given")
    credential = signer_of(args, *roles)
    if credential is None:
        must = f"the file of a credential of role {roles[0]} (tocsin token issue NAME --role {roles[0]}), with --engine"
        raise ConfigError("--token-file", "", must)
    tls = TlsFiles(args.tls_cert, "", args.tls_ca) if args.tls_ca else None
    return EngineReader(args.engine, args.token_file, credential, tls)


class EngineReader:
    """Queries an engine; each call opens its own connection."""

    def __init__(self, address: str, token_file: str, credential: Credential, tls: TlsFiles | None = None) -> None:
        """Prepare the reader; ``call`` connects.

        Args:
            address: ``HOST:PORT`` or ``unix:PATH``.
            token_file: file of the credential.
            credential: the newest fitting credential in that file; later calls use those of its role.
            tls: files to check the engine's certificate with, None: no TLS.

        Raises:
            ConfigError: the address is not valid.
        """
        self._address = address
        self._tls = tls
        is_unix = address.startswith("unix:")
        self._where = None if is_unix else split_address(address, "--engine")
        self._transport = UNIX if is_unix else TCP if tls is None else TLS
        self._search = TokenSearch(token_file, roles=(credential.role,))
        self._name = socket.gethostname() if credential.name == ANY_NAME else credential.name

    def call(self, cmd: str, **args: object) -> Message:
        """Send one command with its arguments, and return the engine's answer.

        Raises:
            EngineAbsentError: nothing listens at the address.
            EngineRefusedError: the engine refuses the sign-in or the command; ``reason`` is the engine's.
            IdentityError: the other side does not prove that it is the engine.
            EngineError: it does not answer according to the protocol.
        """
        try:
            with self._connected() as connection:
                connection.settimeout(_ANSWER_SECONDS)
                sign_in = self._sign_in(connection)
                # not as ASCII: a control message has at most 8 kB, and a note of 1,000 characters must fit
                question = json.dumps({"t": "ask", "cmd": cmd, **args}, ensure_ascii=False).encode("utf-8", "replace")
                sealed = question + sign_in.tag(question)
                connection.sendall(LENGTH.pack(len(sealed)) + sealed)
                while (message := parse_control(sign_in.open(_frame(connection))))["t"] != "answer":
                    if message["t"] == "refused":
                        raise _refusal(message)
        except TimeoutError as error:
            raise EngineError(f"the engine on {self._address} did not answer in time") from error
        except OSError as error:
            raise EngineError(f"the engine on {self._address} broke off: {error.strerror or error}") from error
        if message.get("ok") is not True:
            raise EngineRefusedError(str(message.get("error", "")), str(message.get("reason", "engine")))
        del message["t"]
        return message

    def _sign_in(self, connection: socket.socket) -> SignIn:
        """Answer the engine's challenge, and check that its welcome proves that it knows the secret, too."""
        hello = {"t": "hello", "host": self._name, "agent_version": __version__}
        sign_in = SignIn(self._search, hello, self._transport)
        challenge = parse_control(_frame(connection))
        if challenge["t"] == "refused":
            raise _refusal(challenge)
        connection.sendall(control_frame(sign_in.answer(challenge, time.time_ns())))
        frame = _frame(connection)
        try:
            welcome = parse_control(sign_in.open(frame))
        except IdentityError:
            # who is not let in is told so without a seal
            if frame[:1] == b"{" and frame[-1:] == b"}" and (message := parse_control(frame))["t"] == "refused":
                raise _refusal(message) from None
            text = f"whoever answers on {self._address} does not know the secret of our key: nothing was asked"
            raise IdentityError(IdentityRefusal.ENGINE_UNPROVEN, text) from None
        if welcome["t"] != "welcome":
            raise _refusal(welcome)
        return sign_in

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """Context manager that gives a connection to the engine, with TLS if it is configured."""
        try:
            if self._where is None:
                plain_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                plain_socket.connect(self._address.removeprefix("unix:"))
            else:
                plain_socket = socket.create_connection(self._where, _CONNECT_SECONDS)
        except OSError as error:
            text = f"no engine can be reached on {self._address}: {error.strerror or error}"
            raise EngineAbsentError(text) from error
        with contextlib.ExitStack() as opened:
            connection: socket.socket = opened.enter_context(plain_socket)
            if self._tls is not None and self._where is not None:
                context = self._tls.client_context()
                connection = opened.enter_context(context.wrap_socket(connection, server_hostname=self._where[0]))
            yield connection


def _frame(connection: socket.socket) -> bytes:
    """Read one frame and return its bytes."""
    (size,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise EngineError(f"a message of {size} bytes, at most {MAX_FRAME_BYTES} were expected: is it an engine?")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Read exactly ``count`` bytes; raise EngineError if the connection ends before."""
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 18))
        if not part:
            raise EngineError("the engine closed the connection without an answer: see its log")
        data += part
    return bytes(data)


def _refusal(message: Message) -> EngineRefusedError:
    """Return the error for a message in which the engine refuses."""
    reason = str(message.get("reason", "engine"))
    return EngineRefusedError(f"the engine refuses us ({reason}): {message.get('message', '')}", reason)
