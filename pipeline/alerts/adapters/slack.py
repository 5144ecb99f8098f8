"""Slack and what speaks as Slack does: an incident is one message, which is edited as the incident changes.

With a bot token the message is posted once and edited from then on. An incoming webhook cannot edit: there only the
first notice and the ending are sent. Slack names no message before it has posted it, so one whose answer was lost comes
twice; the second one is edited from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.pipeline.alerts.adapters.http import HttpAnswer, HttpClient, HttpConfig, host_of
from tocsin.pipeline.alerts.adapters.keys import delivery_id, incident_key
from tocsin.pipeline.alerts.adapters.kinds import (
    AdapterKind,
    check_settings,
    checked_url,
    http_config,
    receiver_schema,
    secret_settings,
    text_setting,
    url_setting,
)
from tocsin.pipeline.alerts.adapters.secrets import SecretSource, needed_secret, secret_of
from tocsin.pipeline.alerts.adapters.wording import body_of, cut
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, DeliveryResult, Notice, NoticeKind
from tocsin.schemas.errors import ConfigError, CredentialError

API_URL: Final = "https://slack.com/api"
"""Address of the methods unless the settings name another one."""
MAX_MESSAGE_CHARACTERS: Final = 3_500
"""Longest text before escaping; Slack recommends at most 4,000 characters and cuts at 40,000."""

_LATER: Final = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_SERVER: Final = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"}
)
_NOT_ALLOWED: Final = frozenset(
    {
        "not_authed",
        "invalid_auth",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "missing_scope",
        "no_permission",
        "not_allowed_token_type",
        "org_login_required",
        "access_denied",
        "ekm_access_denied",
    }
)
_NOT_THERE: Final = frozenset({"channel_not_found", "not_in_channel", "is_archived"})
_NO_EDIT: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
_ADVICE: Final = {
    "channel_not_found": "the channel is not there, or the bot may not see it: name its ID and invite the bot",
    "not_in_channel": "the bot is not in the channel: invite it",
    "is_archived": "the channel is archived",
    "invalid_auth": "the token is not valid",
    "missing_scope": "the bot needs the scope chat:write",
}
_SIGNS: Final = {
    NoticeKind.RESOLVED: ":white_check_mark:",
    NoticeKind.TAKEN_BACK: ":leftwards_arrow_with_hook:",
    NoticeKind.LAPSED: ":grey_question:",
    NoticeKind.TEST: ":test_tube:",
    NoticeKind.WATCHDOG: ":heartbeat:",
}
_SEVERITY_SIGNS: Final = {
    AlertSeverity.PAGE: ":rotating_light:",
    AlertSeverity.TICKET: ":warning:",
    AlertSeverity.INFORMATION: ":information_source:",
}


class SlackAdapter:
    """Posts notices to one channel with a bot token, and edits them.

    Args:
        api_url: address below which the methods are.
        token: the bot's token.
        channel: ID of the channel.
        http: timeouts and trust.
    """

    kind: str = "slack"
    max_batch_count: int = 1
    resend_seconds: float | None = None

    def __init__(self, api_url: str, token: SecretSource, channel: str, http: HttpConfig) -> None:
        self._api_url = api_url.rstrip("/")
        self._token = token
        self._channel = channel
        self._client = HttpClient(http)

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        """See ``Adapter.send``. The reference of a message is ``CHANNEL:TS``."""
        (notice,) = notices
        try:
            token = self._token.read()
        except CredentialError as error:
            return DeliveryResult(DeliveryReason.SECRET_MISSING, str(error))
        message: dict[str, object] = {
            "text": message_text(notice),
            "metadata": {
                "event_type": "tocsin_notice",
                "event_payload": {"delivery": delivery_id(notice), "incident": incident_key(notice)},
            },
        }
        channel, colon, stamp = notice.reference.rpartition(":")
        if colon:
            edited = self._call("chat.update", {**message, "channel": channel, "ts": stamp}, token, now_ns)
            if edited is not None:
                return edited
        post = {**message, "channel": self._channel, "unfurl_links": False, "unfurl_media": False}
        return self._call("chat.postMessage", post, token, now_ns) or DeliveryResult(
            DeliveryReason.BAD_ANSWER, "Slack answers a new message as if it were an edit"
        )

    def close(self) -> None:
        """See ``Adapter.close``."""
        self._client.close()

    def _call(self, method: str, arguments: Mapping[str, object], token: str, now_ns: int) -> DeliveryResult | None:
        """Call a method; return how it ended, None if the message that it should edit can no longer be edited."""
        headers = {"Content-Type": "application/json; charset=utf-8", "Authorization": f"Bearer {token}"}
        url = f"{self._api_url}/{method}"
        answer = self._client.post(url, json.dumps(arguments).encode(), headers, now_ns, (token,))
        if answer.reason is not DeliveryReason.DELIVERED:
            return DeliveryResult(answer.reason, answer.detail, answer.retry_after_seconds)
        return _result_of(answer, str(arguments["channel"]))


class SlackWebhookAdapter:
    """Posts first notices and endings to an incoming webhook of Slack, or of what takes the same messages.

    Args:
        url: the secret that holds the webhook's address.
        http: timeouts and trust.
    """

    kind: str = "slack"
    max_batch_count: int = 1
    resend_seconds: float | None = None

    def __init__(self, url: SecretSource, http: HttpConfig) -> None:
        self._url = url
        self._client = HttpClient(http)

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        """See ``Adapter.send``. A change counts as delivered and is not sent.

        Any answer of 200 to 299 counts as delivered, because a message that is sent again would stand there twice.
        """
        (notice,) = notices
        if notice.kind is NoticeKind.CHANGED:
            detail = "not sent: an incoming webhook cannot edit its message"
            return DeliveryResult(DeliveryReason.DELIVERED, detail, references=(notice.reference,))
        try:
            url = self._url.read()
        except CredentialError as error:
            return DeliveryResult(DeliveryReason.SECRET_MISSING, str(error))
        if not host_of(url):
            return DeliveryResult(DeliveryReason.SECRET_MISSING, f"{self._url.place}: must be an http or https URL")
        body = json.dumps({"text": message_text(notice)}).encode()
        answer = self._client.post(url, body, {"Content-Type": "application/json"}, now_ns, (url, *_path_parts(url)))
        references = ("",) if answer.reason is DeliveryReason.DELIVERED else ()
        return DeliveryResult(answer.reason, answer.detail, answer.retry_after_seconds, references)

    def close(self) -> None:
        """See ``Adapter.close``."""
        self._client.close()


def message_text(notice: Notice) -> str:
    """Return a notice in Slack's markup: a sign, the title in bold, then the rest; what others wrote is escaped."""
    title, _, rest = body_of(notice).partition("\n")
    sign = _SIGNS.get(notice.kind) or _SEVERITY_SIGNS[notice.severity]
    shown = escaped(cut(title, MAX_MESSAGE_CHARACTERS)).replace("*", "∗")  # noqa: RUF001  # an asterisk ends the bold
    return f"{sign} *{shown}*\n{escaped(cut(rest, MAX_MESSAGE_CHARACTERS - len(title)))}".rstrip()


def escaped(text: str) -> str:
    """Return text in which Slack sees no link, no mention and no entity.

    >>> escaped("<!channel> & <https://x|y>")
    '&lt;!channel&gt; &amp; &lt;https://x|y&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _result_of(answer: HttpAnswer, asked_channel: str) -> DeliveryResult | None:
    """Return what a method's answer means, None if the message that it should edit can no longer be edited."""
    said = answer.json_object()
    if not isinstance(said.get("ok"), bool):
        return DeliveryResult(DeliveryReason.BAD_ANSWER, f"an answer {answer.status} that is not Slack's")
    if said["ok"]:
        stamp = said.get("ts")
        if not isinstance(stamp, str) or not stamp:
            return DeliveryResult(DeliveryReason.BAD_ANSWER, "Slack took the message and does not name it")
        return DeliveryResult(DeliveryReason.DELIVERED, references=(f"{said.get('channel') or asked_channel}:{stamp}",))
    error = str(said.get("error", ""))
    word = error if error.isascii() and error.replace("_", "").isalnum() and len(error) <= 64 else "an unknown error"
    if error in _NO_EDIT:
        return None
    reason = DeliveryReason.REJECTED
    if error in _LATER:
        reason = DeliveryReason.RATE_LIMITED
    elif error in _SERVER:
        reason = DeliveryReason.SERVER_ERROR
    elif error in _NOT_ALLOWED:
        reason = DeliveryReason.UNAUTHORISED
    elif error in _NOT_THERE:
        reason = DeliveryReason.NOT_FOUND
    advice = _ADVICE.get(error, "")
    return DeliveryResult(reason, f"Slack says {word}" + (f": {advice}" if advice else ""), answer.retry_after_seconds)


def _path_parts(url: str) -> tuple[str, ...]:
    """Return the longer parts of a secret address, which no sentence may show either."""
    return tuple(part for part in url.partition("://")[2].split("/")[1:] if len(part) >= 8)


_SCHEMA: Final = receiver_schema(
    SlackAdapter.kind,
    "A channel of Slack, or of what speaks as Slack does.",
    {
        "channel": text_setting("ID of the channel, with a token.", maxLength=80),
        "url": url_setting("Address below which Slack's methods are, with a token.", default=API_URL),
        **secret_settings("token", "The bot's token, with the scope chat:write."),
        **secret_settings("webhook_url", "An incoming webhook's address, instead of a token: nothing is edited there."),
    },
    [["token_file", "token_env", "webhook_url_file", "webhook_url_env"]],
)


def _make(settings: Mapping[str, object], where: str) -> SlackAdapter | SlackWebhookAdapter:
    """See ``AdapterKind.make``."""
    webhook_url = secret_of(settings, "webhook_url", where)
    if webhook_url is None:
        token = needed_secret(settings, "token", where)
        check_settings(settings, _SCHEMA, where)
        if "channel" not in settings:
            raise ConfigError(f"{where}.channel", None, "the ID of the channel")
        url = checked_url(settings.get("url", API_URL), f"{where}.url")
        return SlackAdapter(url, token, str(settings["channel"]), http_config(settings, where))
    check_settings(settings, _SCHEMA, where)
    for name in ("channel", "url"):
        if name in settings:
            raise ConfigError(f"{where}.{name}", settings[name], "left out: an incoming webhook has its own channel")
    return SlackWebhookAdapter(webhook_url, http_config(settings, where))


SLACK: Final = AdapterKind(SlackAdapter.kind, _SCHEMA, _make)
"""The kind ``slack``."""
