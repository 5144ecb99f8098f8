"""Where agent, ``tocsin exec`` and hook meet, and what a job without a name is called."""

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.agent.test_agent import ROOT
from tocsin.cli.agent import _default_socket
from tocsin.cli.main import main
from tocsin.collectors import hook
from tocsin.collectors.hook import _names as _hook_names
from tocsin.collectors.hook import _places as _hook_places
from tocsin.collectors.hook._places import (
    agent_sockets,
    listening,
    may_speak_to,
    own_socket,
)
from tocsin.collectors.hook._sender import Sender
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.job_key import why_reserved


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of this machine below a folder of the test."""
    monkeypatch.setattr(_hook_places, "SYSTEM_FOLDER", str(tmp_path / "run" / "tocsin"))
    monkeypatch.setattr(_hook_places, "SHARED_FOLDER", str(tmp_path))
    return tmp_path


@pytest.fixture
def home(places: Path) -> dict[str, str]:
    """The environment of a user with a runtime folder."""
    (places / "user").mkdir()
    return {"XDG_RUNTIME_DIR": str(places / "user")}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter, as those of pytest may not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def bound(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind(path)
    return one


def test_the_order_of_the_places(places: Path, home: dict[str, str]) -> None:
    shared = f"{places}/tocsin-{os.getuid()}/agent.sock"

    assert agent_sockets({"TOCSIN_AGENT_SOCKET": "/x", **home}) == ("/x",)
    assert agent_sockets(home) == (f"{places}/run/tocsin/agent.sock", f"{places}/user/tocsin/agent.sock", shared)
    assert agent_sockets({"XDG_RUNTIME_DIR": "relative"}) == (f"{places}/run/tocsin/agent.sock", shared)
    assert agent_sockets({"XDG_RUNTIME_DIR": "/nowhere"}) == (f"{places}/run/tocsin/agent.sock", shared)


def test_an_agent_takes_the_first_place_that_it_may_use(places: Path, home: dict[str, str]) -> None:
    assert own_socket({"TOCSIN_AGENT_SOCKET": "/x"}) == "/x"
    assert own_socket(home) == agent_sockets(home)[1]  # there is no /run here to make a folder in
    assert (places / "user" / "tocsin").stat().st_mode & 0o777 == 0o700
    shared = own_socket({"XDG_RUNTIME_DIR": "/nowhere"})
    assert shared == agent_sockets({"XDG_RUNTIME_DIR": "/nowhere"})[-1]
    assert Path(shared).parent.stat().st_mode & 0o777 == 0o700
    (places / "run" / "tocsin").mkdir(parents=True)
    assert own_socket(home) == agent_sockets(home)[0]


@pytest.mark.parametrize("made", ["open", "link"])
def test_a_folder_in_tmp_that_others_may_use_is_refused(places: Path, made: str) -> None:
    env = {"XDG_RUNTIME_DIR": "/nowhere"}
    path = Path(agent_sockets(env)[-1])
    if made == "open":
        path.parent.mkdir()
        path.parent.chmod(0o755)
    else:
        (places / "elsewhere").mkdir(mode=0o700)
        path.parent.symlink_to(places / "elsewhere")
    with bound(str(path)):
        with pytest.raises(PermissionError, match="alone, with mode 0700, and no link"):
            own_socket(env)
        assert not may_speak_to(str(path))
        assert listening([str(path)]) == ""
        assert not Sender(str(path)).connect()


def test_senders_take_the_first_place_at_which_somebody_listens(places: Path, home: dict[str, str]) -> None:
    own = own_socket(home)
    sockets = agent_sockets(home)
    (places / "run" / "tocsin").mkdir(parents=True)
    bound(sockets[0]).close()  # an agent that was killed: its file lies there
    sender = Sender(*sockets)

    assert not sender.connect()
    with bound(own) as agent:
        assert listening(sockets) == own
        assert sender.connect()
        assert sender.send(b"x")
        assert agent.recv(10) == b"x"
    sender.close()


def test_the_agent_says_where_hooks_look_before_they_look_at_it(
    places: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TOCSIN_AGENT_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", home["XDG_RUNTIME_DIR"])
    own = f"{places}/user/tocsin/agent.sock"

    assert _default_socket() == own
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_hook_places, "SYSTEM_FOLDER", str(places / "run"))
    (places / "run").mkdir()
    with bound(f"{places}/run/agent.sock"):
        monkeypatch.setattr(_hook_places, "own_socket", lambda: own)  # root may write anywhere
        assert _default_socket() == own
    assert f"hooks look at {places}/run/agent.sock first" in capsys.readouterr().err


def test_a_folder_that_is_refused_is_said_by_the_agent(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOCSIN_AGENT_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    (places / f"tocsin-{os.getuid()}").mkdir()
    (places / f"tocsin-{os.getuid()}").chmod(0o777)

    with pytest.raises(ConfigError, match=r"given with --socket: .* alone, with mode 0700"):
        _default_socket()


@pytest.mark.parametrize(("local_rank", "is_said"), [(0, True), (1, False), (None, True)])
def test_the_hook_says_once_a_host_that_no_agent_listens(tmp_path: Path, local_rank: int | None, is_said: bool) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hook.init("job", 0, agent_socket=str(tmp_path / "a"), local_rank=local_rank)
        with hook.step():
            pass
        hook.close()
    texts = [str(one.message) for one in said if "tocsin" in str(one.message)]

    assert len(texts) == is_said
    assert all(f"no agent listens at {tmp_path}/a" in text for text in texts)


@pytest.mark.parametrize("name", ["idle", "fleet", "job"])
def test_the_hook_says_that_a_job_has_one_of_tocsins_own_names(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hook.init(name, 0, agent_socket=str(tmp_path / "a"), local_rank=0)
        hook.close()
    [text] = [str(one.message) for one in said if "tocsin" in str(one.message)]

    assert (f"job '{name}' has one of tocsin's own names and is not watched" in text) is bool(why_reserved("c", name))


@pytest.mark.parametrize(("name", "is_said"), [("idle", True), ("mine", False)])
def test_exec_says_that_a_job_has_one_of_tocsins_own_names_and_runs_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, is_said: bool
) -> None:
    monkeypatch.setenv("TOCSIN_JOB_ID", name)
    assert main(["exec", "--agent-socket", str(tmp_path / "a"), "--", "true"]) == 0
    said = capfd.readouterr().err
    assert ("is tocsin's own name for hosts without a job" in said and "true is not watched" in said) is is_said


def test_a_warning_that_is_an_error_does_not_end_training(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hook.init("job", 0, agent_socket=str(tmp_path / "a"), local_rank=0)
        hook.close()


def test_exec_says_once_a_host_that_no_agent_listens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tocsin", "exec", "--agent-socket", str(tmp_path / "a"), "--", "true"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    first, second = (
        subprocess.run(command, env={**env, "LOCAL_RANK": rank}, capture_output=True, text=True, check=True).stderr
        for rank in "01"
    )

    assert first.count("\n") == 1
    assert first.startswith(f"tocsin exec: no agent listens at {tmp_path}/a: start one with 'tocsin agent'")
    assert second == ""


@pytest.mark.parametrize("has_runtime", [True, False])
def test_without_root_agent_exec_and_hook_meet(folder: Path, has_runtime: bool) -> None:
    """A user who is nobody special, on a machine without /run/tocsin, or where it is another's."""
    uid = os.getuid() or 61_234
    script = f"""
        import os
        from tocsin.collectors import hook
        from tocsin.collectors.hook import _places as _hook_places
        from tocsin.collectors.agent.datagram_socket import DatagramSocket
        from tocsin.collectors.exec.command import send_exit
        if os.getuid() == 0:
            os.setgroups([]); os.setgid({uid}); os.setuid({uid})
        _hook_places.SHARED_FOLDER = {str(folder)!r}
        agent = DatagramSocket(_hook_places.own_socket())
        hook.init("mine", 3)
        assert send_exit(_hook_places.agent_sockets(), ("c", "mine", 0), 3, 1, 0, "")
        kinds = []
        while (one := agent.receive()) is not None:
            kinds.append(one.data.split(b'"t"')[1][:8].strip(b' :",').decode())
        print(agent.path, *kinds)
        hook.close(); agent.close()
    """
    folder.chmod(0o777)
    (folder / "user").mkdir()
    os.chown(folder / "user", uid, -1)
    env = {"PYTHONPATH": str(ROOT / "src"), "HOME": "/", "PATH": os.environ["PATH"]}
    env["XDG_RUNTIME_DIR"] = str(folder / "user") if has_runtime else "/nowhere"
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    if not (os.getuid() and os.access("/run/tocsin", os.W_OK)):
        expected = f"{folder}/user/tocsin" if has_runtime else f"{folder}/tocsin-{uid}"
        assert done.stdout.split() == [f"{expected}/agent.sock", "hello", "exit"], done.stderr


@pytest.mark.parametrize(
    ("env", "ending"),
    [
        ({"TORCHELASTIC_RUN_ID": "0f6be2a1-16e4-4d0a-a5dd-4a86a2d9f3b1"}, "-0f6be2a1"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "1234"}, "-1234"),
        ({"TORCHELASTIC_RUN_ID": "night", "SLURM_JOB_ID": "1234"}, "-night"),
        ({"TORCHELASTIC_RUN_ID": "0f6be2a1-16e4-4d0a-a5dd-4a86a2d9f3b1", "SLURM_JOB_ID": "1234"}, "-1234.0f6be2a1"),
        ({"SLURM_JOB_ID": "123456789012"}, "-123456789012"),
        ({"POD_OWNER": "llama", "POD_NAMESPACE": "ml", "POD_NAME": "x-0"}, "-ml.llama"),
        ({"POD_NAME": "llama-3-x7k2p", "POD_NAMESPACE": "ml", "JOB_COMPLETION_INDEX": "3"}, "-ml.llama"),
        ({"POD_NAME": "llama-worker-12"}, "-llama"),
        ({"POD_NAME": "llama-7"}, "-local"),
        ({"POD_NAME": "llama-worker-1", "SLURM_JOB_ID": "9"}, "-9"),
    ],
)
def test_a_job_without_a_name_is_called_by_user_script_and_run(env: dict[str, str], ending: str) -> None:
    name = _hook_names.job_name(env, "train")

    assert name.endswith(f"-train{ending}")
    assert name == _hook_names.job_name({**env, "RANK": "7", "LOCAL_RANK": "3", "HOSTNAME": "other"}, "train")


def test_all_pods_of_a_job_have_one_name_and_another_job_has_another() -> None:
    def name(pod: str, **env: str) -> str:
        return _hook_names.job_name({"POD_NAME": pod, "POD_NAMESPACE": "ml", "MASTER_ADDR": pod, **env}, "train")

    assert name("a-master-0") == name("a-worker-0") == name("a-worker-11") != name("b-worker-0")
    assert name("a-0-aaaaa", JOB_COMPLETION_INDEX="0") == name("a-1-bbbbb", JOB_COMPLETION_INDEX="1")
    assert name("a-worker-0") != name("a-worker-0", POD_NAMESPACE="other")
    assert name(f"{'x' * 70}a-worker-0") != name(f"{'x' * 70}b-worker-0")


def test_long_names_of_two_runs_differ() -> None:
    one, two = (_hook_names.job_name({"TORCHELASTIC_RUN_ID": f"experiment-{n}"}, "train") for n in (1, 2))

    assert one != two
    assert len(one) == len(two) == len(_hook_names.job_name({"TORCHELASTIC_RUN_ID": "12345678"}, "train"))


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc-per-node", "4", "jobs/train.py", "--config", "x.py"],
        ["python", "-u", "-m", "torch.distributed.run", "train.py"],
        ["python", "-m", "jobs.train", "--config", "x.py"],
        ["./train"],
        ["python", "/jobs/train/__main__.py"],
    ],
)
def test_exec_and_the_hook_name_a_script_alike(command: list[str]) -> None:
    assert _hook_names.script_of(command) == "train"
