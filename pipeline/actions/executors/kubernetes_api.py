"""Calls of a Kubernetes API server by the official client, and what each of its refusals means."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.schemas.errors import (
    ConfigError,
    TargetAnswerError,
    TargetAwayError,
    TargetError,
    TargetRefusedError,
)

MERGE: Final = "application/strategic-merge-patch+json"
_JSON: Final = "application/json"
_ANSWERS: Final = dict.fromkeys((200, 201, 202), "object")
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _TOO_MANY, _SERVER = 401, 403, 404, 409, 429, 500
_SHOWN_CHARACTERS: Final = 300


class KubernetesApi:
    """Calls of one API server, each within a time limit and none repeated."""

    def __init__(self, settings: client.Configuration, limit_seconds: float) -> None:
        """Connect to nothing yet.

        Args:
            settings: address and credentials, as the official client has them.
            limit_seconds: most time of one call.
        """
        settings.retries = False  # urllib3 would repeat a 429 by itself, and what it repeats may be an effect
        self._client = client.ApiClient(settings)
        self._limit_seconds = limit_seconds

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        query: Sequence[tuple[str, str]] = (),
        content: str = _JSON,
    ) -> Mapping[str, Any]:
        """Call the API server and return the object that it answers.

        Args:
            method: method of HTTP.
            path: path without address and query.
            body: object to send, None for none.
            query: names and values of the query.
            content: media type of the body.

        Raises:
            TargetAwayError: no answer, or it asks to come again; the error's reason says which.
            TargetRefusedError: it refuses; the error's reason says how.
            TargetAnswerError: its answer is no object.
        """
        try:
            found = self._client.call_api(
                path,
                method,
                query_params=list(query),
                header_params={"Accept": _JSON, "Content-Type": content},
                body=body,
                response_types_map=_ANSWERS,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _request_timeout=self._limit_seconds,
            )
        except ApiException as error:
            raise refusal_of(int(error.status or 0), str(error.body or ""), error.headers or {}) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TargetAwayError(f"{method} {path}: {type(error).__name__}: {error}"[:_SHOWN_CHARACTERS]) from error
        if not isinstance(found, Mapping):
            raise TargetAnswerError(f"{method} {path}: the answer is no JSON object")
        return found


def settings_of(kube_config: str, context: str) -> client.Configuration:
    """Return address and credentials of an API server.

    Args:
        kube_config: a file as kubectl has it; "": the pod's own service account, else the user's file.
        context: context of the file, "" for its current one.

    Raises:
        ConfigError: the file, or what it names, cannot be used.
    """
    settings = client.Configuration()
    try:
        if not kube_config and not context:
            try:
                config.load_incluster_config(client_configuration=settings)
            except config.ConfigException:
                config.load_kube_config(client_configuration=settings)
        else:
            config.load_kube_config(kube_config or None, context or None, client_configuration=settings)
    except (config.ConfigException, OSError, ValueError) as error:
        raise ConfigError("--kubeconfig", kube_config, f"a file that names an API server ({error})") from error
    return settings


def refusal_of(status: int, body: str, headers: Mapping[str, str]) -> TargetError:
    """Return the error for an answer that is no success.

    A budget's 429 has no ``Retry-After`` and names ``DisruptionBudget`` as a cause; any other asks to come again.

    Args:
        status: status of HTTP.
        body: the answer's text, a ``Status`` object where the API server itself answers.
        headers: the answer's headers.
    """
    told = _status_in(body)
    text = " ".join(str(told.get("message") or body).split())[:_SHOWN_CHARACTERS]
    text = f"HTTP {status}: {text}"
    if status == _TOO_MANY:
        causes = (told.get("details") or {}).get("causes") or ()
        if any(one.get("reason") == "DisruptionBudget" for one in causes) and not _has_retry_after(told, headers):
            return TargetAwayError(text, ExecutorReason.DISRUPTION_BUDGET)
        return TargetAwayError(text, ExecutorReason.TARGET_BUSY)
    away = {_UNAUTHORIZED: ExecutorReason.CREDENTIALS_REFUSED, _CONFLICT: ExecutorReason.CHANGED_MEANWHILE}
    if status in away:
        return TargetAwayError(text, away[status])
    if status >= _SERVER or not status:
        return TargetAwayError(text)
    refused = {_FORBIDDEN: ExecutorReason.FORBIDDEN, _NOT_FOUND: ExecutorReason.NOT_FOUND}
    return TargetRefusedError(text, refused.get(status, ExecutorReason.TARGET_REFUSED))


def _status_in(body: str) -> Mapping[str, Any]:
    """Return the ``Status`` object of an answer, an empty one where it is none."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _has_retry_after(told: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    names = {name.lower() for name in headers}
    return "retry-after" in names or bool((told.get("details") or {}).get("retryAfterSeconds"))
