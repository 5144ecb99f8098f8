"""Folders of dumps: real NCCL jobs, real gloo jobs, a model job with each rank struck in turn."""

import ast
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import hang_cases as cases
from tocsin.pipeline.rca.evidence.flight_recorder import analyse_folder, read_folder, report
from tocsin.schemas.errors import ConfigError

GLOO_JOB = Path(__file__).with_name("gloo_job.py")
GLOO_REASONS = {
    "sleep": "never_arrived",
    "stop": "silent_and_peers_stalled",
    "skip": "entered_other_collective",
}
REAL_SETS = ("lock_gil_1st", "gpu_error_1st")


def write(folder: Path, stuck: cases.Stuck, *, active_only: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in cases.files_of(stuck, active_only=active_only):
        (folder / name).write_bytes(data)
    return folder


def real_set(shared_data: Path, name: str) -> tuple[Path, tuple[int, ...]]:
    folder = shared_data / "flight_recorder" / name
    if not folder.is_dir():
        pytest.skip(f"no dumps at {folder}")
    first = (folder / "fault_injection.log").read_text().splitlines()[0]
    return folder, tuple(ast.literal_eval(first.partition(":")[2].strip()))


def copy_but(folder: Path, target: Path, *ranks: int) -> Path:
    for path in folder.glob("_dump_*"):
        if int(path.name.rpartition("_")[2]) not in ranks:
            (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("name", REAL_SETS)
def test_real_dumps_name_exactly_the_ranks_that_were_injected(shared_data: Path, name: str) -> None:
    folder, injected = real_set(shared_data, name)
    finding = analyse_folder(folder)

    assert finding.culprits == injected
    assert finding.missing_ranks == ()
    assert len(finding.victims) == 16 - len(injected)


@pytest.mark.parametrize("name", REAL_SETS)
def test_a_lost_dump_of_a_victim_accuses_no_victim(shared_data: Path, tmp_path: Path, name: str) -> None:
    folder, injected = real_set(shared_data, name)
    for rank in sorted(set(range(16)) - set(injected)):
        target = tmp_path / str(rank)
        target.mkdir()
        finding = analyse_folder(copy_but(folder, target, rank))
        assert set(finding.culprits) <= set(injected), (rank, finding.evidence)
        assert finding.culprits
        assert finding.missing_ranks == (rank,)


@pytest.mark.parametrize("name", REAL_SETS)
def test_the_culprits_that_leave_no_dump_are_still_the_culprits(shared_data: Path, tmp_path: Path, name: str) -> None:
    folder, injected = real_set(shared_data, name)
    finding = analyse_folder(copy_but(folder, tmp_path, *injected))

    assert finding.culprits == injected
    assert finding.reason == "silent_and_peers_stalled"
    assert finding.missing_ranks == injected


@pytest.mark.parametrize("active_only", [True, False])
def test_accuracy_over_a_grid_with_each_rank_struck(tmp_path: Path, *, active_only: bool) -> None:
    """No accusation is false; what must be found is found. Dumps of active entries hold no past."""
    weak = {"skip_p2p": 0.5, "skip": 1.0, "wrong_op": 1.0}
    if active_only:
        weak = {"skip_p2p": 0.0, "skip": 0.6, "wrong_op": 0.6}
    for kind in cases.KINDS:
        right = 0
        for rank in range(16):
            (at,) = cases.places(rank, 1, 56)
            folder = write(tmp_path / f"{kind}{rank}", cases.strike(kind, rank, at, ahead=6), active_only=active_only)
            culprits = analyse_folder(folder).culprits
            assert culprits in {(), (rank,)}, (kind, rank)
            right += culprits == (rank,)
        assert right / 16 >= weak.get(kind, 1.0), kind


def test_dumps_without_their_last_entries_accuse_nobody_else(tmp_path: Path) -> None:
    right = 0
    for rank in range(16):
        stuck = cases.strike("cpu_stall", rank, 30, ahead=6)
        folder = write(tmp_path / str(rank), stuck)
        victim = next(r for r in stuck.states if r != rank and len(stuck.states[r].pending) > 1)
        cut = cases.dump_of(stuck, victim)
        cut["entries"] = cut["entries"][:-1]
        (folder / f"dump_{victim}").write_bytes(pickle.dumps(cut))
        culprits = analyse_folder(folder).culprits
        assert set(culprits) <= {rank}
        right += culprits == (rank,)
    assert right == 16


@pytest.fixture(scope="module")
def gloo_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of three real jobs of six ranks, rank 4 struck in each; a folder per fault."""
    pytest.importorskip("torch", reason="needs the train extra")
    root = tmp_path_factory.mktemp("gloo")
    subprocess.run([sys.executable, str(GLOO_JOB), str(root), "6", "4", *GLOO_REASONS], check=True, timeout=170)
    return root


@pytest.mark.parametrize("fault", GLOO_REASONS)
def test_a_real_gloo_job(gloo_dumps: Path, fault: str) -> None:
    finding = analyse_folder(gloo_dumps / fault)

    assert finding.culprits == (4,)
    assert finding.missing_ranks == ((4,) if fault == "stop" else ())
    assert finding.reason == GLOO_REASONS[fault]


def test_a_broken_dump_is_evidence_about_its_rank(tmp_path: Path) -> None:
    folder = write(tmp_path, cases.strike("cpu_stall", 6, 30))
    (folder / "dump_6").write_bytes((folder / "dump_6").read_bytes()[:87])
    finding = analyse_folder(folder)

    assert finding.culprits == (6,)
    assert finding.missing_ranks == (6,)
    assert any("dump_6 is unreadable" in line for line in finding.evidence)


def test_files_that_are_no_dumps_make_no_ranks(tmp_path: Path) -> None:
    folder = write(tmp_path, cases.strike("cpu_stall", 6, 30))
    (folder / "core.4711").write_bytes(b"\x7fELF")
    (folder / "fault_injection.log").write_text("no rank in this name")
    finding = analyse_folder(folder)

    assert (finding.culprits, finding.missing_ranks) == ((6,), ())
    assert any("core.4711" in line for line in finding.evidence)


def test_a_gap_in_the_numbers_is_a_missing_rank_where_no_group_is_known(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        entries = [
            {"record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 5,
             "op_id": 5, "p2p_seq_id": 0, "profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": False}
        ]  # fmt: skip
        text = json.dumps({"version": "2.10", "comm_lib_version": "", "entries": entries})
        (tmp_path / f"trace_{rank}.json").write_text(text)
    finding = analyse_folder(tmp_path)

    assert (finding.culprits, finding.missing_ranks) == ((2,), (2,))


def test_a_last_rank_without_a_file_is_missing_where_the_world_size_is_told(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        entries = [{"record_id": 1, "process_group": ["0", "default_pg"], "collective_seq_id": 5, "op_id": 5,
                    "profiling_name": "gloo:all_reduce", "retired": False}]  # fmt: skip
        (tmp_path / f"trace_{rank}").write_text(json.dumps({"version": "2.10", "entries": entries}))

    assert analyse_folder(tmp_path).culprits == ()
    assert analyse_folder(tmp_path, world_size=4).culprits == (3,)


@pytest.mark.parametrize(
    "group",
    [
        {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        {"name": "", "desc": "", "ranks": "[0, 1]"},  # gloo of torch 2.13
        {"name": "", "desc": "", "ranks": [0, 1]},
    ],
)
def test_a_rank_that_the_default_group_names_and_that_left_no_file_is_missing(
    tmp_path: Path, group: dict[str, object]
) -> None:
    entry = {"record_id": 1, "process_group": ["0", "default_pg"], "collective_seq_id": 5, "op_id": 5,
             "profiling_name": "gloo:all_reduce", "retired": False}  # fmt: skip
    content = {"version": "2.10", "entries": [entry], "pg_config": {group["name"]: group}}
    (tmp_path / "trace_0").write_text(json.dumps(content))
    finding = analyse_folder(tmp_path)

    assert (finding.missing_ranks, finding.culprits) == ((1,), (1,))


def test_a_group_without_a_name_may_be_a_part_of_the_job(tmp_path: Path) -> None:
    """Its ranks add to the job; they do not make strangers of the others."""
    for rank in range(3):
        entry = {"record_id": 1, "process_group": ["0", "default_pg"], "collective_seq_id": 5 + (rank == 2),
                 "profiling_name": "gloo:all_reduce", "retired": rank == 2}  # fmt: skip
        content = {"version": "2.10", "entries": [entry], "pg_config": {"": {"name": "", "ranks": "[0, 1]"}}}
        (tmp_path / f"trace_{rank}").write_text(json.dumps(content))
    finding = analyse_folder(tmp_path)

    assert finding.missing_ranks == ()
    assert not [line for line in finding.evidence if "passed over" in line]


def test_a_dump_of_another_job_is_passed_over(tmp_path: Path) -> None:
    folder = write(tmp_path, cases.strike("cpu_stall", 6, 30))
    (folder / "dump_99").write_bytes((folder / "dump_3").read_bytes())
    finding = analyse_folder(folder)

    assert (finding.culprits, finding.missing_ranks) == ((6,), ())
    assert any("[99]" in line for line in finding.evidence)


def test_two_dumps_of_one_rank_are_read_once(tmp_path: Path) -> None:
    folder = write(tmp_path, cases.strike("cpu_stall", 6, 30))
    (folder / "dump_3.pickle").write_bytes((folder / "dump_3").read_bytes())

    assert len(read_folder(folder).dumps) == 16
    assert any("second dump of rank 3" in note for note in read_folder(folder).notes)


@pytest.mark.parametrize("files", [{}, {"notes.txt": b"x"}, {"dump_0": b"broken", "dump_1": b""}])
def test_a_folder_without_dumps_is_an_error_that_names_it(tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=tmp_path.name) as caught:
        analyse_folder(tmp_path)
    assert ("dump_0" in str(caught.value)) == ("dump_0" in files)


def test_the_report_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    line = report(analyse_folder(write(tmp_path, cases.strike("no_dump", 6, 30))))

    assert list(line) == ["fault", "culprits", "groups", "reason", "missing_ranks", "evidence"]
    assert (line["fault"], line["culprits"], line["missing_ranks"]) == ("hang", [6], [6])
    assert 6 in line["groups"][0]["waits_for"]
