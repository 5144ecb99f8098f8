"""Trained models where everyone finds them: versions, what they were trained on, which one is current."""

from tocsin.pipeline.lab.registry.card import BUILTIN, ModelCard
from tocsin.pipeline.lab.registry.provenance import code_version, fingerprint_of
from tocsin.pipeline.lab.registry.registry import Promotion, Registry

__all__ = ["BUILTIN", "ModelCard", "Promotion", "Registry", "code_version", "fingerprint_of"]
