"""nvidia-ml-py itself, over a stub of the driver's library: calls, structures and handles as ctypes has them."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.collectors.sources.nvml_stub import build

PROGRAM = """
import json, time
from tocsin.collectors.sources.nvml import NvmlCollector, NvmlConfig
collector = NvmlCollector(NvmlConfig())
readings = [collector.collect(second * 10**9) for second in range(1, 13)]
last = readings[-1]
events = [[e.name, dict(e.payload)] for r in readings for e in r.events]
places = {uuid: [p.gpu, p.pci, p.pids] for uuid, p in last.places.items()}
start = time.process_time()
for second in range(20, 220):
    collector.collect(second * 10**9)
seconds = (time.process_time() - start) / 200
collector.close()
print(json.dumps([last.gpus, events, places, dict(collector.skipped), seconds]))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = build(tmp_path_factory.mktemp("nvml"))
    if folder is None:
        pytest.skip("no C compiler to build the stub of libnvidia-ml.so.1 with")
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    return json.loads(done.stdout)


def test_every_column_comes_through_ctypes(seen: Any) -> None:
    gpus, _, _, skipped, _ = seen
    assert len(gpus) == 8
    values = gpus["GPU-00000003-stub"]
    assert values["gpu_power_watts"] == 650
    assert values["gpu_sm_clock_hertz"] == 1.755e9
    assert values["gpu_memory_used_bytes"] == 60 << 30
    assert values["gpu_tensor_active_ratio"] == pytest.approx(0.05)  # the stub's GPM metrics are their own numbers
    assert values["nvlink_bytes_per_second"] == (60 + 61) << 20
    assert len(values) == 13
    assert skipped == {}


def test_events_and_places_come_through_ctypes(seen: Any) -> None:
    _, events, places, _, _ = seen
    named = [(name, payload.get("uuid"), payload.get("code")) for name, payload in events if name != "clocks_event"]
    assert named == [("pcie_link", "GPU-00000003-stub", None), ("xid", "GPU-00000005-stub", 94)]
    assert [payload["reasons"] for name, payload in events if name == "clocks_event"] == [["hw_thermal"]] * 8
    assert places["GPU-00000003-stub"] == [3, "0000:1c:00.0", [4003]]
