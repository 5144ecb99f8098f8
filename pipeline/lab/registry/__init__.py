"""The model registry: trained models by version, with their training data and the promoted version."""

from tocsin.pipeline.lab.registry.card import BUILTIN, ModelCard
from tocsin.pipeline.lab.registry.provenance import code_version, fingerprint_of
from tocsin.pipeline.lab.registry.registry import Promotion, Registry

__all__ = ["BUILTIN", "ModelCard", "Promotion", "Registry", "code_version", "fingerprint_of"]
