"""Rows and sequence lengths of a batch, as far as the batch tells them without waiting.

Only shapes, and small CPU tensors of plain types, are read: of a tensor on a device its shape is known, and its
values would have to be waited for. No method that a script defines is called.
"""

import itertools
from collections import UserDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from tocsin.collectors.hook._torch import module

MASKS = ("attention_mask", "padding_mask")
"""Keys of masks with one row a sequence; tokens that count are not 0."""
LENGTHS = ("lengths", "length", "seq_lens", "seqlens", "input_lengths")
"""Keys of one length a sequence."""
BOUNDS = ("cu_seqlens", "cu_seq_lens", "cu_seq_lens_q")
"""Keys of the places where packed sequences begin and end."""
TOKENS = ("input_ids", "tokens", "token_ids")
"""Keys of tokens, one row a sequence, or a list of sequences."""
SOURCES = ("source", "dataset", "dataset_name")
"""Keys of the name of the source that a batch comes from."""
MAX_ELEMENTS = 4_000_000
"""Largest mask whose values are read; of a larger one the shape is known."""
MAX_SEQUENCES = 100_000
MAX_NAME_CHARACTERS = 256
MIXED = "mixed"
"""Source of a batch whose rows come from several sources."""


class BatchFacts(NamedTuple):
    """What a batch tells of itself; None where it does not.

    Attributes:
        rows: number of samples.
        tokens: sum of the sequences' lengths.
        max_length: the longest one's length.
        sum_squared_lengths: sum of the squared lengths, to which the cost of attention is proportional.
        source: name of the source; "" = the batch names none.
    """

    rows: int | None = None
    tokens: int | None = None
    max_length: int | None = None
    sum_squared_lengths: int | None = None
    source: str = ""


def facts_of(batch: Any) -> BatchFacts:
    """Return what a batch tells; it is not changed."""
    try:
        return _facts(batch)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):  # a fake tensor, a list of anything
        return BatchFacts()


def clean_name(name: Any) -> str:
    """Return a source's name as text that a datagram can carry."""
    text = name if type(name) is str else str(name)
    return text.encode("utf-8", "replace").decode().replace("\0", "?")[:MAX_NAME_CHARACTERS]


def _facts(batch: Any) -> BatchFacts:
    """Return what a batch tells.

    Raises:
        TypeError, ValueError, RuntimeError, AttributeError, IndexError: it is not what it looks like.
    """
    values = _mapping(batch)
    if values is None:
        first = batch[0] if type(batch) in (tuple, list) and batch else batch
        inner = _mapping(first)
        if inner is None:
            return _with_lengths(_rows_of(first), _token_lengths(first), "")
        values = inner
    source = next((_source(values[key]) for key in SOURCES if key in values), "")
    rows = max((_rows_of(value) or 0 for value in values.values()), default=0)
    return _with_lengths(rows or None, _lengths_in(values), source)


def _mapping(batch: Any) -> Mapping[Any, Any] | None:
    """Return a batch's plain dictionary; None if it has none."""
    if isinstance(batch, UserDict):
        batch = batch.data
    return batch if type(batch) is dict else None


def _with_lengths(rows: int | None, lengths: list[int] | None, source: str) -> BatchFacts:
    """Return the facts of a batch with these sequences."""
    if not lengths:
        return BatchFacts(rows, source=source)
    squares = sum(length * length for length in lengths)
    return BatchFacts(rows or len(lengths), sum(lengths), max(lengths), squares, source)


def _lengths_in(values: Mapping[Any, Any]) -> list[int] | None:
    """Return the sequences' lengths by the first key that tells them."""
    for keys, read in ((BOUNDS, _bounded), (LENGTHS, _integers), (MASKS, _unmasked), (TOKENS, _token_lengths)):
        for key in keys:
            lengths = read(values[key]) if key in values else None
            if lengths and min(lengths) >= 0:
                return lengths
    return None


def _tensor(value: Any) -> Any:
    """Return a plain tensor, None for anything else; a subclass may do anything when it is read."""
    torch = module("torch")
    return value if torch is not None and type(value) is torch.Tensor else None


def _readable(value: Any, dimensions: int) -> Any:
    """Return a tensor of whole numbers on the CPU that is small enough to be read, else None."""
    tensor = _tensor(value)
    if tensor is None or tensor.device.type != "cpu" or tensor.dim() != dimensions or tensor.is_floating_point():
        return None
    return tensor if 0 < tensor.numel() <= MAX_ELEMENTS else None


def _rows_of(value: Any) -> int | None:
    """Return the number of samples in a tensor or list."""
    tensor = _tensor(value)
    if tensor is not None:
        return int(tensor.shape[0]) if tensor.dim() else None
    return len(value) if type(value) in (list, tuple) else None


def _integers(value: Any) -> list[int] | None:
    """Return whole numbers, of a list or of a readable tensor."""
    tensor = _readable(value, 1)
    found = value if tensor is None else tensor.tolist() if tensor.numel() <= MAX_SEQUENCES else None
    is_plain = type(found) is list and len(found) <= MAX_SEQUENCES and all(type(one) is int for one in found)
    return found if is_plain else None


def _bounded(value: Any) -> list[int] | None:
    """Return the lengths of packed sequences by the places where they begin and end."""
    places = _integers(value)
    if places is None:
        return None
    return [end - begin for begin, end in itertools.pairwise(places)]


def _unmasked(value: Any) -> list[int] | None:
    """Return the number of tokens that count in each row of a mask."""
    mask = _readable(value, 2)
    return None if mask is None else [int(count) for count in mask.ne(0).sum(-1).tolist()]


def _token_lengths(value: Any) -> list[int] | None:
    """Return the sequences' lengths by the shape of whole numbers, one row a sequence, or of a list of sequences."""
    tensor = _tensor(value)
    if tensor is not None:
        is_tokens = tensor.dim() == 2 and not tensor.is_floating_point()
        return [int(tensor.shape[1])] * int(tensor.shape[0]) if is_tokens else None
    if type(value) not in (list, tuple) or len(value) > MAX_SEQUENCES:
        return None
    rows = [_tensor(row) for row in value]
    if any(row is None or row.dim() != 1 or row.is_floating_point() for row in rows):
        return None
    return [int(row.shape[0]) for row in rows]


def _source(value: Any) -> str:
    """Return the name of the source that a batch gives, for all its rows or for each."""
    if type(value) is str:
        return clean_name(value)
    if type(value) not in (list, tuple) or not all(type(one) is str for one in value):
        return ""
    names = set(value)
    return clean_name(value[0]) if len(names) == 1 else MIXED if names else ""
