"""The header ``Authorization``: a bearer token, or a user and a password."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

from tocsin.pipeline.alerts.adapters.kinds import Schema, secret_settings, text_setting
from tocsin.pipeline.alerts.adapters.secrets import SecretSource, needed_secret, secret_of
from tocsin.schemas.errors import ConfigError

AUTHORIZATION_PROPERTIES: Final[Mapping[str, Schema]] = {
    "username": text_setting("User for basic authentication, with password_file or password_env.", pattern="^[^:]+$"),
    **secret_settings("password", "Password of username."),
    **secret_settings("bearer_token", "Token for the header Authorization, instead of a user."),
}
"""Settings of receivers that may want a user or a token."""


class Authorization:
    """Makes the header from a secret that is read at each use.

    Args:
        username: user for basic authentication, "" for a bearer token.
        secret: password or token; None: no header.
    """

    def __init__(self, username: str, secret: SecretSource | None) -> None:
        self._username = username
        self._secret = secret

    def headers(self) -> dict[str, str]:
        """Return the header as a table, {} for none.

        Raises:
            CredentialError: the secret cannot be read.
        """
        if self._secret is None:
            return {}
        secret = self._secret.read()
        if not self._username:
            return {"Authorization": f"Bearer {secret}"}
        pair = base64.b64encode(f"{self._username}:{secret}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}


def authorization_of(settings: Mapping[str, object], where: str) -> Authorization:
    """Return what checked settings say of the header.

    Raises:
        ConfigError: user without password, password without user, or both user and token.
    """
    token = secret_of(settings, "bearer_token", where)
    password = secret_of(settings, "password", where)
    username = str(settings.get("username", ""))
    if username and token is not None:
        raise ConfigError(f"{where}.username", username, "left out, because a bearer token is given, too")
    if username:
        return Authorization(username, needed_secret(settings, "password", where))
    if password is not None:
        raise ConfigError(f"{where}.username", None, "given, because a password is")
    return Authorization("", token)
