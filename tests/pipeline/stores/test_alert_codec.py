"""Rows of what was sent, as messages: the same row comes back, a wrong value is named."""

import json

import pytest

from tests.pipeline.stores.samples import JOB, ONSET
from tocsin.pipeline.stores.alert_codec import decode_alert, encode_alert
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.schemas.errors import DecodeError, FieldError

ROW = AlertSent(JOB, "v1", 2, "all", "pager", "webhook", "firing", "page", "delivered", "", 1, ONSET, ONSET + 1)


def test_a_row_comes_back_as_it_was() -> None:
    assert decode_alert(encode_alert(ROW)) == ROW


@pytest.mark.parametrize(
    ("field", "value"), [("tries_count", -1), ("verdict_id", ""), ("sent_ns", "now"), ("cluster", 7), ("detail", None)]
)
def test_a_wrong_value_is_named(field: str, value: object) -> None:
    told = {**json.loads(encode_alert(ROW)), field: value}
    with pytest.raises(FieldError, match=field):
        decode_alert(json.dumps(told).encode())


def test_what_is_no_json_or_too_long_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_alert(b"{")
    with pytest.raises(DecodeError, match="at most"):
        decode_alert(b" " * 10_000_000)
