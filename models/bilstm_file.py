"""File format of the ``bilstm`` detector: a sealed head that lists operation families, then each family's network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tocsin.models.bilstm_bounds import check_network
from tocsin.models.bilstm_ocnn import OcnnModel, read_model
from tocsin.models.op_features import FAMILIES, PHASES, REST, is_phase_vocabulary
from tocsin.models.sealed import refuse, seal, unseal
from tocsin.schemas.reasons import ModelRefusal

FORMAT_NAME: Final = "bilstm/1"
"""The format word of a ``bilstm`` model in registries and announcements."""
MAGIC: Final = b"TCBLS"
FORMAT_VERSION: Final = 1


def encode_bilstm(networks: Mapping[str, OcnnModel]) -> bytes:
    """Return several OC-NN networks as one file; the same networks always give the same bytes.

    Args:
        networks: operation family (``FAMILIES``) -> its network; at least one.
    """
    parts = {family: networks[family].to_bytes() for family in FAMILIES if family in networks}
    head = {"parts": [[family, len(data)] for family, data in parts.items()]}
    return seal(MAGIC, FORMAT_VERSION, head, b"".join(parts.values()))


def decode_bilstm(data: bytes) -> dict[str, OcnnModel]:
    """Read a file of ``encode_bilstm``.

    Returns:
        Operation family -> its network.

    Raises:
        ModelRefusedError: the file is cut short, damaged, newer than this program, or its parts do not fit together.
    """
    head, body = unseal(data, MAGIC, FORMAT_VERSION)
    try:
        sizes = [(str(family), int(size)) for family, size in head["parts"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"its head lacks or garbles {error}")
    families = [family for family, _ in sizes]
    if not sizes or len(set(families)) != len(sizes) or not set(families) <= set(FAMILIES):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"families = {families}: must be of {', '.join(FAMILIES)}, each once")
    if sum(size for _, size in sizes) != len(body) or any(size < 0 for _, size in sizes):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(body)} bytes of networks: must be as many as its head says")
    networks, place = {}, 0
    for family, size in sizes:
        networks[family] = read_model(body[place : place + size])
        place += size
    if "phases" in networks and not is_phase_vocabulary(words := networks["phases"].vocabulary.words):
        text = f"vocabulary of phases = {words}: must be of {PHASES}, in this order and with {REST}"
        refuse(ModelRefusal.MODEL_UNDECODABLE, text)
    return networks


def decode_live_bilstm(data: bytes) -> dict[str, OcnnModel]:
    """Read a file of ``encode_bilstm`` for a running engine, where each network runs over all ranks in each window.

    Raises:
        ModelRefusedError: as ``decode_bilstm``; or a network is out of the bounds of ``bilstm_bounds``.
    """
    networks = decode_bilstm(data)
    for family, network in networks.items():
        check_network(family, network)
    return networks
