"""A registry behind ``s3://``: the address a user gives, the protocol that pyarrow speaks."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.pipeline.lab.registry.kit import card, payload_of
from tests.pipeline.lab.registry.s3_server import Store, s3_server
from tocsin.pipeline.lab.registry import BUILTIN, Registry
from tocsin.schemas.errors import RegistryError


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def where(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a registry in a bucket."""
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with s3_server(store) as address:
        yield f"s3://models/team/tocsin?scheme=http&region=us-east-1&endpoint_override={address.replace(':', '%3A')}"


def test_what_one_writes_another_reads(store: Store, where: str) -> None:
    first, second = (Registry.open(where).add(card(), payload_of(value)) for value in (11.0, 12.0))
    Registry.open(where).promote("peers", first.version, {"f1": 0.9})
    Registry.open(where).refuse("peers", second.version, "blamed the switch")
    registry = Registry.open(where)

    assert {one.version for one in registry.cards("peers")} == {BUILTIN, first.version, second.version}
    assert registry.current("peers") == first
    assert registry.payload("peers", second.version) == payload_of(12.0)
    assert registry.refusal("peers", second.version) == "blamed the switch"
    assert sorted(store.objects) == sorted(
        f"models/team/tocsin/peers/{name}"
        for name in (
            "current.json",
            *(f"{one.version}/{file}" for one in (first, second) for file in ("card.json", "model.bin")),
            f"{second.version}/refused.json",
        )
    )


def test_an_upload_that_fails_leaves_what_was_there(store: Store, where: str) -> None:
    registry = Registry.open(where)
    first, second = (registry.add(card(), payload_of(value)) for value in (11.0, 12.0))
    registry.promote("peers", first.version, {})
    store.failing = True
    with pytest.raises(RegistryError, match=r"s3://models/team/tocsin/peers/current\.json") as caught:
        registry.promote("peers", second.version, {})

    assert caught.value.reason == "unreachable"
    assert registry.current("peers") == first
    store.failing = False
    del caught
    gc.collect()
    assert registry.current("peers") == first  # an upload that was told to have failed does not come true later


def test_an_object_that_was_cut_is_refused_by_name(store: Store, where: str) -> None:
    registry = Registry.open(where)
    added = registry.add(card(), payload_of())
    name = f"models/team/tocsin/peers/{added.version}/model.bin"
    store.objects[name] = store.objects[name][:-1]
    with pytest.raises(RegistryError, match=r"model\.bin: 29 bytes whose SHA-256"):
        registry.payload("peers", added.version)
