"""The registry: what goes in comes out, what is damaged is refused by name, and nobody reads half of anything."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from tests.pipeline.lab.registry.kit import card, memory_store, payload_of
from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.lab.registry import (
    BUILTIN,
    ModelCard,
    Registry,
    code_version,
    fingerprint_of,
)
from tocsin.pipeline.lab.registry.card import named, read_card, write_card
from tocsin.pipeline.lab.registry.files import Files
from tocsin.schemas.errors import ConfigError, FieldError, ModelRefusedError, RegistryError
from tocsin.schemas.model_announcement import DEFAULT_FORMAT, MAX_MODEL_BYTES

NOW_NS = 1_800_000_000 * 10**9


@pytest.fixture(params=["folder", "object store"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Registry:
    files = Files.open(str(tmp_path / "models")) if request.param == "folder" else memory_store()
    return Registry(files, lambda: NOW_NS)


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Registry, Path, ModelCard]:
    """A registry in a folder with one model, and that model's folder."""
    registry = Registry.open(str(tmp_path / "models"))
    added = registry.add(card(), payload_of())
    return registry, tmp_path / "models" / "peers" / added.version, added


def versions(registry: Registry, detector: str = "peers") -> list[str]:
    return [one.version for one in registry.cards(detector)]


def refused(registry: Registry) -> list[str]:
    """Reasons of the versions that cannot be read."""
    found: list[RegistryError] = []
    registry.cards(on_bad=found.append)
    return [error.reason for error in found]


# -- what goes in comes out ------------------------------------------------------------------------


def test_a_model_comes_back_with_its_card(registry: Registry) -> None:
    added = registry.add(card(), payload_of())
    digest = hashlib.sha256(payload_of()).hexdigest()

    assert (added.version, added.content_hash) == (f"20261121-{digest[:8]}", digest)
    assert registry.payload("peers", added.version) == payload_of()
    assert registry.card("peers", added.version) == added == replace(card(), version=added.version, content_hash=digest)


def test_the_same_model_twice_is_one_entry(registry: Registry) -> None:
    first = registry.add(card(), payload_of())
    again = registry.add(card(trained_at="2026-12-24T00:00:00+00:00", seed=8), payload_of())

    assert again == first
    assert versions(registry) == [BUILTIN, first.version]


def test_a_refused_model_that_is_trained_again_stays_refused(registry: Registry) -> None:
    first = registry.add(card(), payload_of())
    registry.refuse("peers", first.version, "blamed the database")
    again = registry.add(card(trained_at="2026-12-24T00:00:00+00:00"), payload_of())

    with pytest.raises(RegistryError, match="blamed the database") as caught:
        registry.promote("peers", again.version, {})
    assert caught.value.reason == "marked_refused"


def test_versions_stand_in_order_of_training_behind_what_ships(registry: Registry) -> None:
    days = ("2026-12-03", "2026-11-30", "2027-01-01")
    for index, day in enumerate(days):
        registry.add(card(trained_at=f"{day}T00:00:00+00:00"), payload_of(10.0 + index))

    assert [one[:8] for one in versions(registry)] == ["builtin", "20261130", "20261203", "20270101"]


def test_the_version_has_the_day_in_utc(registry: Registry) -> None:
    added = registry.add(card(trained_at="2026-11-22T01:00:00+05:00"), payload_of())

    assert added.version.startswith("20261121-")


@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**63 - 1), st.text(max_size=40))
def test_any_bytes_and_any_settings_come_back(payload: bytes, seed: int, text: str) -> None:
    registry = Registry(memory_store())
    reported = card("oracle", seed=seed, settings={"note": text.replace("\0", "")})
    try:
        added = registry.add(reported, payload)
    except FieldError:  # half a surrogate pair: no UTF-8
        assert not text.isascii()
        return

    assert registry.payload("oracle", added.version) == payload
    assert registry.card("oracle", added.version) == added
    assert (added.seed, added.settings) == (seed, reported.settings)


# -- what may not go in ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, MAX_MODEL_BYTES + 1])
def test_a_model_has_at_least_a_byte_and_fits_into_an_announcement(registry: Registry, size: int) -> None:
    with pytest.raises(ConfigError, match=f"{size} bytes"):
        registry.add(card("minder"), b"x" * size)
    assert [one for one in versions(registry, "minder") if one != BUILTIN] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"detector": "../etc"}, "detector"),
        ({"format": "peers"}, "format"),
        ({"trained_at": "yesterday"}, "trained_at"),
        ({"trained_at": "2026-11-21T10:00:00"}, "zone"),
        ({"seed": -1}, "seed"),
        ({"metrics": {"f1": float("nan")}}, "JSON"),
        ({"code_version": ""}, "code_version"),
    ],
)
def test_a_card_that_nobody_could_read_is_not_written(registry: Registry, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FieldError, match=words):
        registry.add(card(**changes), payload_of())
    assert versions(registry) == [BUILTIN]


def test_what_the_detector_cannot_read_does_not_go_in(registry: Registry) -> None:
    with pytest.raises(ModelRefusedError, match="alarm_summ"):
        registry.add(card(), b'{"working": {"alarm_summ": 12}}')


def test_the_same_bytes_in_another_format_are_another_model_with_the_same_name(registry: Registry) -> None:
    registry.add(card("oracle"), b"bytes")
    with pytest.raises(ConfigError, match="oracle/1"):
        registry.add(card("oracle", format="oracle/2"), b"bytes")


def test_a_model_never_takes_the_place_of_another(folder: tuple[Registry, Path, ModelCard]) -> None:
    registry, place, added = folder
    reported = replace(added, content_hash=added.content_hash[:8] + "0" * 56)  # 2^32 trainings on one day
    (place / "card.json").write_bytes(write_card(reported))
    with pytest.raises(RegistryError, match="another model"):
        registry.add(card(), payload_of())
    assert (place / "card.json").read_bytes() == write_card(reported)


# -- what is damaged -------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.bin", "card.json"])
def test_a_file_that_was_cut_anywhere_is_refused_by_name(folder: tuple[Registry, Path, ModelCard], file: str) -> None:
    registry, place, added = folder
    whole = (place / file).read_bytes()
    end = len(whole) - 1 if file == "card.json" else len(whole)  # without the last line feed it is still whole
    for size in range(end):
        (place / file).write_bytes(whole[:size])
        with pytest.raises(RegistryError, match=file) as caught:
            registry.promote("peers", added.version, {})
        assert caught.value.reason == ("hash_mismatch" if file == "model.bin" else "card_unreadable")
    assert registry.current("peers") is None


def test_each_bit_of_the_model_counts(folder: tuple[Registry, Path, ModelCard]) -> None:
    registry, place, added = folder
    whole = (place / "model.bin").read_bytes()
    for index in range(len(whole)):
        (place / "model.bin").write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(RegistryError, match=r"SHA-256"):
            registry.payload("peers", added.version)


@pytest.mark.parametrize(
    ("card_text", "reason"),
    [
        (b"", "card_unreadable"),
        (b"[]", "card_unreadable"),
        (b'{"a": 1}', "card_unreadable"),
        (b"\xff\xfe", "card_unreadable"),
        (b"[" * 5000, "card_unreadable"),
        (b'{"card_version": 2}', "card_unreadable"),
        (b" " * (2 << 20), "too_large"),
        (pickle.dumps({"card_version": 1}), "card_unreadable"),
    ],
)
def test_a_foreign_card_is_told_and_the_others_are_listed(
    folder: tuple[Registry, Path, ModelCard], card_text: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry, place, _ = folder
    other = registry.add(card(), payload_of(13.0))
    (place / "card.json").write_bytes(card_text)
    with caplog.at_level(logging.WARNING):
        assert versions(registry) == [BUILTIN, other.version]
    assert str(place / "card.json") in caplog.records[0].__dict__["file"]
    assert refused(registry) == [reason]


def test_a_card_in_the_wrong_folder_is_foreign(folder: tuple[Registry, Path, ModelCard]) -> None:
    registry, place, added = folder
    place.rename(place.with_name("20200101-00000000"))
    assert refused(registry) == ["foreign"]
    with pytest.raises(RegistryError, match=f"says peers {added.version}"):
        registry.card("peers", "20200101-00000000")


def test_other_bytes_do_not_take_a_versions_place_with_a_card_that_names_them(
    folder: tuple[Registry, Path, ModelCard],
) -> None:
    registry, place, added = folder
    other = payload_of(900.0)
    swapped = replace(added, content_hash=hashlib.sha256(other).hexdigest())
    (place / "model.bin").write_bytes(other)
    (place / "card.json").write_bytes(write_card(swapped))
    assert refused(registry) == ["hash_mismatch"]
    for ask in (registry.card, registry.payload, lambda *names: registry.promote(names[0], names[1], {})):
        with pytest.raises(
            RegistryError, match=rf"card\.json: content_hash = .* digits of its version, {added.version}"
        ):
            ask("peers", added.version)

    assert registry.add(card(), payload_of()) == added  # who has the true bytes, mends it
    assert registry.payload("peers", added.version) == payload_of()


def test_the_same_model_again_mends_damaged_bytes(folder: tuple[Registry, Path, ModelCard]) -> None:
    registry, place, added = folder
    for damaged in (b"", payload_of()[:-1], b"x" * (MAX_MODEL_BYTES + 1)):
        (place / "model.bin").write_bytes(damaged)
        assert registry.add(card(seed=9), payload_of()) == added
        assert registry.payload("peers", added.version) == payload_of()


def test_a_pickle_is_not_opened(registry: Registry, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/trapped",)

    for known in ("peers", "minder"):
        with pytest.raises(ModelRefusedError):
            registry.add(card(known), pickle.dumps(Trap()))
    added = registry.add(card("oracle"), pickle.dumps(Trap()))  # nobody here knows it: the registry keeps bytes
    registry.promote("oracle", added.version, {})
    assert not (tmp_path / "trapped").exists()


def test_no_module_of_the_registry_knows_pickle(repo_root: Path) -> None:
    texts = [path.read_text() for path in (repo_root / "pipeline" / "lab" / "registry").glob("*.py")]
    assert len(texts) > 4
    assert not any("import pickle" in text or "torch.load" in text or "eval(" in text for text in texts)


def test_what_nobody_finished_writing_is_not_there(folder: tuple[Registry, Path, ModelCard]) -> None:
    registry, place, added = folder
    (place / "card.json").unlink()
    (place.parent / "20260101-aaaaaaaa").mkdir()
    (place.parent / "notes").mkdir()
    (place.parent.parent / "README").write_text("ours")

    assert versions(registry) == [BUILTIN]
    assert refused(registry) == []
    with pytest.raises(RegistryError, match="no such model") as caught:
        registry.card("peers", added.version)
    assert caught.value.reason == "not_found"
    assert registry.add(card(), payload_of()) == added  # and the next writer finishes it
    assert versions(registry) == [BUILTIN, added.version]


@pytest.mark.parametrize("text", [b"{", b'{"version": "x"}', b'{"version": 3, "previous": null}'])
def test_a_damaged_current_json_is_not_nothing(folder: tuple[Registry, Path, ModelCard], text: bytes) -> None:
    registry, place, _ = folder
    (place.parent / "current.json").write_bytes(text)
    with pytest.raises(RegistryError, match=r"current\.json") as caught:
        registry.current("peers")
    assert caught.value.reason == "card_unreadable"


@pytest.mark.parametrize("text", [b"", b"{", b'{"version": "x"}', b"\xff", b" " * (2 << 20)])
def test_only_force_promotes_over_a_damaged_current_json(folder: tuple[Registry, Path, ModelCard], text: bytes) -> None:
    registry, place, added = folder
    (place.parent / "current.json").write_bytes(text)
    with pytest.raises(RegistryError, match=r"current\.json"):
        registry.promote("peers", added.version, {})
    assert (place.parent / "current.json").read_bytes() == text

    assert registry.promote("peers", added.version, {}, is_forced=True).previous is None
    assert registry.current("peers") == added


def test_a_damaged_mark_of_refusal_does_not_allow_anything(folder: tuple[Registry, Path, ModelCard]) -> None:
    registry, place, added = folder
    (place / "refused.json").write_bytes(b"")
    with pytest.raises(RegistryError, match=r"refused\.json"):
        registry.promote("peers", added.version, {})


# -- which one is current --------------------------------------------------------------------------


def test_promotions_follow_one_another(registry: Registry) -> None:
    first, second = (registry.add(card(), payload_of(value)) for value in (11.0, 12.0))

    assert registry.current("peers") is None
    assert registry.promote("peers", first.version, {"f1": 0.9}).previous is None
    assert registry.promote("peers", second.version, {"f1": 0.95}).previous == first.version
    assert registry.current("peers") == second
    promotion = registry.promotion("peers")
    assert promotion is not None
    assert (promotion.promoted_at, promotion.figures) == ("2027-01-15T08:00:00+00:00", {"f1": 0.95})


def test_back_to_what_ships(registry: Registry) -> None:
    registry.promote("peers", registry.add(card(), payload_of()).version, {})
    registry.promote("peers", BUILTIN, {})
    current = registry.current("peers")

    assert current is not None
    assert (current.version, current.is_own, current.format) == (BUILTIN, True, DEFAULT_FORMAT)
    assert registry.payload("peers", BUILTIN) == b""


@pytest.mark.parametrize("version", ["20260101-aaaaaaaa", "../20260101-aaaaaaaa", "", "latest"])
def test_what_is_not_there_is_not_promoted(registry: Registry, version: str) -> None:
    with pytest.raises(RegistryError, match="no such model"):
        registry.promote("peers", version, {})
    with pytest.raises(RegistryError, match="none of oracle"):
        registry.refuse("oracle", version, "why not")


def test_what_ships_is_not_refused(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="part of the program") as caught:
        registry.refuse("peers", BUILTIN, "old")
    assert caught.value.reason == "built_in"


def test_who_promotes_in_between_is_seen(registry: Registry) -> None:
    first, second = (registry.add(card(), payload_of(value)) for value in (11.0, 12.0))
    before = registry.promotion("peers")
    registry.check_unchanged("peers", before)
    registry.promote("peers", first.version, {})
    with pytest.raises(RegistryError, match=f"{first.version} became current") as caught:
        registry.check_unchanged("peers", before)
    assert caught.value.reason == "promoted_meanwhile"
    assert second.version != first.version


# -- two at once -----------------------------------------------------------------------------------


def _write_many(where: str, own: float) -> None:
    registry = Registry.open(where)
    for round_index in range(8):
        mine = registry.add(card(), payload_of(own))
        both = registry.add(card(), payload_of(6.0 + round_index / 2))
        registry.promote("peers", mine.version, {"filler": "x" * 20_000})
        registry.promote("peers", both.version, {"filler": "y" * 10})


def test_two_writers_at_once_and_a_reader_sees_only_whole_files(tmp_path: Path) -> None:
    where = str(tmp_path / "models")
    registry = Registry.open(where)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(where, 15.0 + index)) for index in range(2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        promotion = registry.promotion("peers")
        assert refused(registry) == []
        if promotion is not None:
            seen += 1
            assert promotion.figures["filler"] in ("x" * 20_000, "y" * 10)
            registry.payload("peers", promotion.version)
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0, 0]
    assert seen > 0
    hashes = [one.content_hash for one in registry.cards("peers") if one.version != BUILTIN]
    assert len(hashes) == len(set(hashes)) == 10
    assert not [path for path in (tmp_path / "models").rglob("*") if path.name.startswith(".")]


def _promote_one(where: str, version: str, start: Any) -> None:
    registry = Registry.open(where)
    for _ in range(20):
        start.wait(timeout=60)
        registry.promote("peers", version, {"own": version})


def test_of_two_that_promote_at_the_same_time_one_wins_whole(tmp_path: Path) -> None:
    where = str(tmp_path / "models")
    registry = Registry.open(where)
    versions_ = [registry.add(card(), payload_of(value)).version for value in (11.0, 12.0)]
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    writers = [context.Process(target=_promote_one, args=(where, version, start)) for version in versions_]
    for writer in writers:
        writer.start()
    for _ in range(20):
        start.wait(timeout=60)
        promotion = registry.promotion("peers")
        assert promotion is None or promotion.figures == {"own": promotion.version}
    for writer in writers:
        writer.join(timeout=60)
    current, promotion = registry.current("peers"), registry.promotion("peers")

    assert [writer.exitcode for writer in writers] == [0, 0]
    assert current is not None
    assert promotion is not None
    assert promotion.version == current.version in versions_
    assert promotion.figures == {"own": current.version}
    assert promotion.previous in versions_
    assert sorted(path.name for path in (tmp_path / "models" / "peers").iterdir()) == sorted(
        [*versions_, "current.json"]
    )


# -- places ----------------------------------------------------------------------------------------


def test_a_place_that_does_not_exist_holds_what_ships(tmp_path: Path) -> None:
    registry = Registry.open(str(tmp_path / "nowhere"))

    assert {one.detector for one in registry.cards()} >= set(FORMATS)
    assert {one.version for one in registry.cards()} == {BUILTIN}
    assert not (tmp_path / "nowhere").exists()


def test_a_file_uri_is_the_same_folder(tmp_path: Path) -> None:
    added = Registry.open(f"file://{tmp_path}/models").add(card(), payload_of())

    assert Registry.open(str(tmp_path / "models")).card("peers", added.version) == added


@pytest.mark.parametrize("where", ["", "ftp://host/x", "://"])
def test_what_is_no_place_is_said(where: str) -> None:
    with pytest.raises(ConfigError, match="--registry"):
        Registry.open(where)


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(ConfigError, match="must be a folder: it is a file"):
        Registry.open(str(tmp_path / "models"))
    with pytest.raises(RegistryError, match="models") as caught:
        Registry.open(str(tmp_path / "models" / "mine")).add(card(), payload_of())
    assert caught.value.reason == "unreachable"


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("gs://bucket/models", "gs://bucket/models?retry_limit_seconds=20"),
        ("gs://bucket/models?scheme=http", "gs://bucket/models?scheme=http&retry_limit_seconds=20"),
        ("gs://bucket/models?retry_limit_seconds=3", "gs://bucket/models?retry_limit_seconds=3"),
        ("s3://bucket/models", "s3://bucket/models"),
    ],
)
def test_no_client_tries_for_a_quarter_of_an_hour(where: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's does, where its address does not say how long."""
    addresses: list[str] = []

    def from_uri(address: str) -> tuple[fs.FileSystem, str]:
        addresses.append(address)
        return fs.LocalFileSystem(), "/nowhere"

    monkeypatch.setattr("tocsin.pipeline.lab.registry.files.fs.FileSystem", SimpleNamespace(from_uri=from_uri))

    assert Files.open(where).where == where
    assert addresses == [asked]


# -- cards and provenance --------------------------------------------------------------------------


def test_a_card_is_the_same_bytes_whatever_the_order_of_its_parts() -> None:
    one = named(card(settings={"a": 1, "b": 2}), payload_of())
    other = named(card(settings={"b": 2, "a": 1}), payload_of())

    assert write_card(one) == write_card(other)
    assert read_card(write_card(one), "here") == one
    assert json.loads(write_card(one))["card_version"] == 1


def test_the_code_version_names_the_sources() -> None:
    version, _, digits = code_version().partition("+")

    assert version
    assert len(digits) == 8
    assert int(digits, 16) >= 0
    assert code_version() == code_version()


def test_a_fingerprint_is_of_the_data_and_not_of_its_names(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    first = fingerprint_of([tmp_path / "a", tmp_path / "b"])
    (tmp_path / "a" / "verdicts.jsonl").write_text("an answer")
    (tmp_path / "a").rename(tmp_path / "c")

    assert fingerprint_of([tmp_path / "b", tmp_path / "c"]) == first
    (tmp_path / "c" / "manifest.json").write_text("One")
    assert fingerprint_of([tmp_path / "b", tmp_path / "c"]) != first
