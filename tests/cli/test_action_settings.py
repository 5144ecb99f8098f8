"""Keys of those who act: who got one after a command's start is believed, and whose key was taken back is not."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.actions.kit import T0
from tests.pipeline.kafka.action_kit import CONTROLLER, EXECUTOR
from tocsin.cli.action_settings import settings_of
from tocsin.cli.sink import _sink_config
from tocsin.pipeline.identity.action_signatures import AckSigner
from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.schemas.action_codec import encode_ack
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.errors import ConfigError, CredentialError, IdentityError
from tocsin.schemas.job_key import JobKey


def test_a_sink_believes_an_executor_whose_key_came_later_and_none_whose_key_was_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    write_credentials(path, (public_half(CONTROLLER),))
    config = _sink_config(argparse.Namespace(act=True, controller_keys=str(path)), None)[0]
    assert config.ack_check is not None
    ack = encode_ack(Ack("a1", JobKey("c1", "job", 0), AckKind.DONE, EXECUTOR.name, 1, 1, T0))
    header = AckSigner(EXECUTOR).header(ack)
    with pytest.raises(IdentityError):
        config.ack_check(ack, header, T0)
    write_credentials(path, (public_half(CONTROLLER), public_half(EXECUTOR)))
    config.ack_check(ack, header, T0)
    path.write_text("{")  # what was read before stays in use
    config.ack_check(ack, header, T0)
    write_credentials(path, (public_half(CONTROLLER), replace(public_half(EXECUTOR), revoked_ns=T0 - 1)))
    with pytest.raises(IdentityError):
        config.ack_check(ack, header, T0)


def test_a_sink_without_keys_of_controllers_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    write_credentials(path, (public_half(EXECUTOR),))
    with pytest.raises(CredentialError):
        _sink_config(argparse.Namespace(act=True, controller_keys=str(tmp_path / "absent.json")), None)
    with pytest.raises(ConfigError, match="--controller-keys"):
        _sink_config(argparse.Namespace(act=True, controller_keys=str(path)), None)


def test_the_waiting_time_after_a_change_is_that_of_the_flag(tmp_path: Path) -> None:
    args = argparse.Namespace(policy=None, act=True, spares=None, may_shrink=None, hold=(300.0, 42.0))

    assert settings_of(args, tmp_path, None).config.after_change_seconds == 42.0
