"""``tocsin agent --allow-checks``: lets a signed action ask for checks under load of the agent's own host.

The checks, and the process that asks for actions, are no part of the agent's process: it stays small, and what happens
to them does not happen to it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from tocsin.schemas.errors import ConfigError

_LOG = logging.getLogger("tocsin.agent.checks")
_AGAIN_SECONDS: Final = 10.0
"""Time between the end of the process and its next start."""
_LOOK_SECONDS: Final = 0.5
_END_SECONDS: Final = 10.0


def add_checks_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that let this host be checked."""
    group = parser.add_argument_group("checks of this host under load (docs/preflight.md)")
    text = "let signed actions ask for checks of this host: its credential of role checker"
    text += " [env: TOCSIN_ALLOW_CHECKS; default: nobody can ask]"
    default = os.environ.get("TOCSIN_ALLOW_CHECKS", "")
    group.add_argument("--allow-checks", metavar="FILE", default=default, help=text)
    text = "public keys of the controllers that may ask [env: TOCSIN_CONTROLLER_KEYS]"
    default = os.environ.get("TOCSIN_CONTROLLER_KEYS", "")
    group.add_argument("--controller-keys", metavar="FILE", default=default, help=text)


def checks_of(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """Return what runs ``tocsin executor own-host`` beside the agent, or nothing without ``--allow-checks``.

    Raises:
        ConfigError: the credential is another host's, no controller's keys are named, or a package is missing.
        CredentialError: a file cannot be used, or holds no credential of role ``checker``.
    """
    if not args.allow_checks:
        return contextlib.nullcontext()
    from tocsin.cli.identity import signer_of
    from tocsin.schemas.credentials import Role

    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError("--allow-checks", args.allow_checks, "given where tocsin has its engine: '.[engine]'")
    credential = signer_of(argparse.Namespace(token_file=args.allow_checks), Role.CHECKER)
    if credential is None or credential.name != args.host:
        held = "" if credential is None else credential.name
        raise ConfigError("--allow-checks", args.allow_checks, f"a credential of this host {args.host}, not of {held}")
    if not args.controller_keys:
        raise ConfigError(
            "--controller-keys", "", "given with --allow-checks: the file of the controllers' public keys"
        )
    return KeptProcess(checks_command(args))


def checks_command(args: argparse.Namespace) -> list[str]:
    """Return the program that lets this host be checked, for the agent's flags."""
    words = [sys.executable, "-m", "tocsin", "executor", "own-host", "--token-file", args.allow_checks]
    words += ["--controller-keys", args.controller_keys, "--cluster", args.cluster, "--metrics-listen", ""]
    if args.kafka:
        words += ["--kafka", args.kafka, "--topic-prefix", args.topic_prefix]
        return words + (["--kafka-config", args.kafka_config] if args.kafka_config else [])
    words += ["--engine", args.engine]
    for flag, value in (("--tls-ca", args.tls_ca), ("--tls-cert", args.tls_cert)):
        words += [flag, value] if value else []
    return words


class KeptProcess:
    """A program that is started again whenever it ends, as long as the ``with`` block lasts."""

    def __init__(self, command: Sequence[str], again_seconds: float = _AGAIN_SECONDS) -> None:
        """Start nothing yet.

        Args:
            command: the program and its arguments.
            again_seconds: time between its end and its next start.
        """
        self._command = tuple(command)
        self._again_seconds = again_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="checks", daemon=True)

    def __enter__(self) -> Self:
        """Start the program."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program; checks that it started go on, and the next start finds their answers."""
        self._is_over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._is_over.is_set():
            try:
                status = self._run()
            except OSError as error:
                _LOG.warning("the process that takes requests for checks does not start", extra={"error": str(error)})
            else:
                if not self._is_over.is_set():
                    _LOG.warning("the process that takes requests for checks ended", extra={"status": status})
            self._is_over.wait(self._again_seconds)

    def _run(self) -> int:
        """Run the program until it ends, or is to end; return its exit status."""
        with subprocess.Popen(self._command, stdin=subprocess.DEVNULL) as process:
            while process.poll() is None and not self._is_over.wait(_LOOK_SECONDS):
                pass
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
            return process.wait()
