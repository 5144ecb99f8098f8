"""The commands of tocsin that a cluster on one machine runs beside its servers: what each is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKER, SINK, CONTROLLER, ALERTS = "ticker", "sink", "controller", "alerts"
COMMANDS: Final = (TICKER, SINK, CONTROLLER, ALERTS)
_WORKS: Final = {
    TICKER: "ticking",
    SINK: "tocsin sink: ",
    CONTROLLER: "tocsin controller: ",
    ALERTS: "tocsin alerts: ",
}
"""Command -> text that its log shows once it works."""


@dataclass(frozen=True, slots=True)
class CommandConfig:
    """Settings of the commands.

    Attributes:
        prefix: prefix of the topics' names.
        signing_key: file of the engine's private key.
        verdict_keys: file of the engine's public key.
        is_ticking: whether a ticker runs; without one recordings are played, and bring their own ticks.
        has_controller: whether a controller runs.
        alerts: routes file of the sender of alerts, "": none runs.
        credentials: file of all credentials, "": nobody has to sign.
        is_player_allowed: whether a signature by the player of recordings is accepted for any host.
    """

    prefix: str
    signing_key: Path
    verdict_keys: Path
    is_ticking: bool = True
    has_controller: bool = True
    alerts: str = ""
    credentials: str = ""
    is_player_allowed: bool = False

    def names(self) -> list[str]:
        """Return the commands that run."""
        wanted = {TICKER: self.is_ticking, SINK: True, CONTROLLER: self.has_controller, ALERTS: bool(self.alerts)}
        return [name for name, is_wanted in wanted.items() if is_wanted]


def works_text(name: str) -> str:
    """Return the text that a command's log shows once it works."""
    return _WORKS[name]


def arguments_of(name: str, config: CommandConfig, kafka: str, clickhouse: Callable[[], str]) -> list[str]:
    """Return the arguments of a command of tocsin.

    Args:
        name: the command.
        config: settings.
        kafka: the broker's address.
        clickhouse: returns the address of the database for whoever writes.
    """
    shared = [f"--kafka={kafka}", f"--topic-prefix={config.prefix}"]
    keys = [f"--verdict-keys={config.verdict_keys}"]
    signing = [f"--signing-key={config.signing_key}"]
    if name == TICKER:
        return ["ticker", *shared]
    if name == SINK:
        return ["sink", "clickhouse", *shared, f"--clickhouse={clickhouse()}", *keys]
    if name == ALERTS:
        return ["alerts", "run", f"--alerts={config.alerts}", *shared, *keys, *signing]
    arguments = ["controller", *shared, *keys, *signing]
    arguments += [f"--credentials={config.credentials}"] if config.credentials else []
    arguments += ["--allow-player"] if config.is_player_allowed else []
    return arguments if config.is_ticking else [*arguments, "--from-beginning"]
