"""Webhook: one signed JSON message for each notice.

The body's form is ``webhook.schema.json`` in this folder; ``tocsin.schemas.webhook_signature`` signs it, and has what a
receiver needs to check it. Its field ``delivery`` names the notice: a receiver that gets it again answers 2xx and does
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.pipeline.alerts.adapters.authorization import (
    AUTHORIZATION_PROPERTIES,
    Authorization,
    authorization_of,
)
from tocsin.pipeline.alerts.adapters.http import HttpClient, HttpConfig, host_of
from tocsin.pipeline.alerts.adapters.keys import delivery_id, incident_key
from tocsin.pipeline.alerts.adapters.kinds import (
    AdapterKind,
    check_settings,
    checked_url,
    http_config,
    receiver_schema,
    secret_settings,
    url_setting,
)
from tocsin.pipeline.alerts.adapters.secrets import SecretSource, needed_secret, secret_of
from tocsin.pipeline.alerts.adapters.wording import body_of, summary_text, title_of
from tocsin.pipeline.alerts.notice import DeliveryReason, DeliveryResult, Notice
from tocsin.pipeline.stores.rows import to_json
from tocsin.schemas.errors import ConfigError, CredentialError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.webhook_signature import MIN_KEY_CHARACTERS, signed_headers

FORMAT_VERSION: Final = 1
"""Version of the body's form; it is raised when a field gets another meaning, not when one is added."""


class WebhookAdapter:
    """Posts notices to one address.

    Args:
        url: the address, or the secret that holds it.
        signing_key: key of the signature.
        authorization: user or token, besides the signature.
        http: timeouts and trust.
    """

    kind: str = "webhook"
    max_batch_count: int = 1
    resend_seconds: float | None = None

    def __init__(
        self, url: str | SecretSource, signing_key: SecretSource, authorization: Authorization, http: HttpConfig
    ) -> None:
        self._url = url
        self._signing_key = signing_key
        self._authorization = authorization
        self._client = HttpClient(http)

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        """See ``Adapter.send``. Each send is signed anew; ``Tocsin-Delivery`` stays the same."""
        (notice,) = notices
        try:
            key = self._signing_key.read()
            url = self._url if isinstance(self._url, str) else self._url.read()
            headers = self._authorization.headers()
        except CredentialError as error:
            return DeliveryResult(DeliveryReason.SECRET_MISSING, str(error))
        if len(key) < MIN_KEY_CHARACTERS:
            detail = f"{self._signing_key.place}: must be at least {MIN_KEY_CHARACTERS} characters long"
            return DeliveryResult(DeliveryReason.SECRET_MISSING, detail)
        if isinstance(self._url, SecretSource) and not host_of(url):
            return DeliveryResult(DeliveryReason.SECRET_MISSING, f"{self._url.place}: must be an http or https URL")
        body = to_json(webhook_body(notice, now_ns)).encode("utf-8", "replace")
        signed = signed_headers(key, body, delivery_id(notice), now_ns // NS_PER_SECOND)
        private = (key,) if isinstance(self._url, str) else (key, url)
        answer = self._client.post(
            url, body, {"Content-Type": "application/json", **headers, **signed}, now_ns, private
        )
        references = ("",) if answer.reason is DeliveryReason.DELIVERED else ()
        return DeliveryResult(answer.reason, answer.detail, answer.retry_after_seconds, references)

    def close(self) -> None:
        """See ``Adapter.close``."""
        self._client.close()


def webhook_body(notice: Notice, now_ns: int) -> dict[str, object]:
    """Return the body of a notice's message; ``webhook.schema.json`` describes each field.

    Args:
        notice: the notice.
        now_ns: when it is sent.
    """
    verdict = notice.verdict
    return {
        "version": FORMAT_VERSION,
        "delivery": delivery_id(notice),
        "sent_ns": now_ns,
        "route": notice.route,
        "kind": notice.kind.value,
        "is_ending": notice.is_ending,
        "severity": notice.severity.value,
        "incident": incident_key(notice),
        "title": title_of(notice),
        "summary": summary_text(notice),
        "text": body_of(notice),
        "note": notice.note,
        "told_ns": notice.told_ns,
        "made_ns": notice.made_ns,
        "cluster": verdict.job.cluster,
        "attempt": verdict.job.attempt,
        "expires_ns": verdict.expires_ns,
        "verdict": verdict.to_line(),
    }


_SCHEMA: Final = receiver_schema(
    WebhookAdapter.kind,
    "Any address that takes signed JSON.",
    {
        "url": url_setting("Where messages are posted; if a part of it is a secret, give url_file or url_env instead."),
        **secret_settings("url", "The address, where a part of it is a secret."),
        **secret_settings("signing_key", f"Key of the signature, at least {MIN_KEY_CHARACTERS} characters."),
        **AUTHORIZATION_PROPERTIES,
    },
    [["url", "url_file", "url_env"], ["signing_key_file", "signing_key_env"]],
)


def _make(settings: Mapping[str, object], where: str) -> WebhookAdapter:
    """See ``AdapterKind.make``."""
    key = needed_secret(settings, "signing_key", where)
    check_settings(settings, _SCHEMA, where)
    secret_url = secret_of({name: value for name, value in settings.items() if name != "url"}, "url", where)
    if secret_url is None and "url" not in settings:
        raise ConfigError(f"{where}.url", None, "an address; or give url_file or url_env")
    url = checked_url(settings["url"], f"{where}.url") if secret_url is None else secret_url
    return WebhookAdapter(url, key, authorization_of(settings, where), http_config(settings, where))


WEBHOOK: Final = AdapterKind(WebhookAdapter.kind, _SCHEMA, _make)
"""The kind ``webhook``."""
