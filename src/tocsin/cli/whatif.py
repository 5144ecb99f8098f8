"""``tocsin whatif TRACE --meta META``: how long would a step be if nobody were slow, and who makes the difference."""

from __future__ import annotations

import argparse
from pathlib import Path

from tocsin.cli import whatif_html, whatif_text
from tocsin.cli.limits import add_limit_arguments, read_limits_of
from tocsin.models.whatif.causes import reasons_of
from tocsin.models.whatif.scenarios import model_of, slowdowns
from tocsin.pipeline.recording.limits import ReadLimits
from tocsin.pipeline.recording.op_trace import check_fits, read_op_trace, read_trace_meta
from tocsin.schemas.errors import FieldError, RecordingError
from tocsin.schemas.printable import json_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="Parquet file with one operation per row: dp_rank stage rank step optype start_ts duration seq_id mc …",
    )
    parser.add_argument(
        "--meta",
        metavar="META",
        type=Path,
        required=True,
        help="YAML file with the job's sizes: dp_size, pp_size, dsp_size, tp_size, vpp_size, world_size",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a sentence and a table")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with a heat map: workers x steps")
    add_limit_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate the trace, print what was found, and return the exit status 0."""
    found = analyse(args.trace, args.meta, read_limits_of(args))
    if args.html is not None:
        try:
            args.html.write_text(whatif_html.html_of(found), encoding="utf-8")
        except OSError as error:
            raise RecordingError(str(args.html), f"cannot be written ({error.strerror})") from error
    if args.json:
        print(json_text(whatif_text.as_json(found)))
    else:
        print(whatif_text.text_of(found))
    return 0


def analyse(trace: Path, meta: Path, limits: ReadLimits) -> whatif_text.WhatIf:
    """Read a trace and its description, simulate it, and return what was found.

    Raises:
        ConfigError: the description is wrong, or does not fit the trace.
        RecordingError: the trace is wrong.
    """
    shape = read_trace_meta(meta)
    read = read_op_trace(trace, limits)
    try:
        model = model_of(read)
    except FieldError as error:
        raise RecordingError(trace.name, str(error)) from error
    notes = check_fits(shape, model.arrays, trace.name)
    found = slowdowns(model)
    return whatif_text.WhatIf(shape, model, found, reasons_of(model, found), notes)
