"""``tocsin exec -- COMMAND``: run a training command under the agent's eyes."""

import argparse
import sys

from tocsin.collectors._hook_identity import agent_socket, from_environment
from tocsin.collectors.exec import supervise

COMMAND_NOT_FOUND = 127
COMMAND_NOT_STARTED = 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "tocsin exec [--agent-socket PATH] [--] COMMAND [ARGUMENT ...]"
    parser.epilog = (
        "Wrap each rank: 'srun tocsin exec -- python train.py', 'torchrun --no-python ... tocsin exec -- "
        "python train.py'. The exit status is the command's own, 128 + N after signal N."
    )
    parser.add_argument(
        "--agent-socket",
        metavar="PATH",
        default=agent_socket(),
        help="the agent's datagram socket (TOCSIN_AGENT_SOCKET; now %(default)s)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run it and return its exit status."""
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        print("tocsin exec: no command given: tocsin exec -- python train.py", file=sys.stderr)
        return 2
    identity = from_environment()
    try:
        return supervise(command, args.agent_socket, identity.job, identity.rank)
    except OSError as error:
        print(f"tocsin exec: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return COMMAND_NOT_FOUND if isinstance(error, FileNotFoundError) else COMMAND_NOT_STARTED
