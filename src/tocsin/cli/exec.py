"""``tocsin exec -- COMMAND``: runs a training command and reports its start and exit to the agent."""

import argparse
import os
import sys
import time

from tocsin.collectors.exec.command import supervise
from tocsin.collectors.exec.start import is_rank, send_start
from tocsin.collectors.hook._identity import from_environment
from tocsin.collectors.hook._names import script_of
from tocsin.collectors.hook._places import agent_sockets, listening, no_agent
from tocsin.collectors.hook._stages import STARTED
from tocsin.schemas.job_key import why_reserved

COMMAND_NOT_FOUND = 127
COMMAND_NOT_STARTED = 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.usage = "tocsin exec [--agent-socket PATH] [--] COMMAND [ARGUMENT ...]"
    parser.epilog = (
        "Wrap each rank: 'srun tocsin exec -- python train.py', 'torchrun --no-python ... tocsin exec -- "
        "python train.py'. The exit status is the command's own, 128 + N after signal N."
    )
    parser.add_argument(
        "--agent-socket",
        metavar="PATH",
        default="",
        help=f"the agent's datagram socket (TOCSIN_AGENT_SOCKET; now {', '.join(agent_sockets())})",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status, or 126 or 127 if it could not be started, 2 if there is none."""
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        print("tocsin exec: no command given: tocsin exec -- python train.py", file=sys.stderr)
        return 2
    identity = from_environment(script=script_of(command))
    if identity.is_first_here and (why := why_reserved(identity.cluster, identity.job_id)):
        words = f"job {identity.job_id!r} is {why}: {command[0]} is not watched; set TOCSIN_JOB_ID to another name"
        print(f"tocsin exec: {words}", file=sys.stderr, flush=True)
    sockets = (args.agent_socket,) if args.agent_socket else agent_sockets()
    if identity.is_first_here and not listening(sockets):
        print(f"tocsin exec: {no_agent(sockets)}; {command[0]} is not watched until then", file=sys.stderr, flush=True)
    if is_rank(command):
        os.environ[STARTED] = str(time.time_ns())
        send_start(sockets, identity.job, identity.rank)
    try:
        return supervise(command, sockets, identity.job, identity.rank)
    except OSError as error:
        print(f"tocsin exec: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return COMMAND_NOT_FOUND if isinstance(error, FileNotFoundError) else COMMAND_NOT_STARTED
