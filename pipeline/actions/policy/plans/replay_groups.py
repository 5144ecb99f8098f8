"""Dual-phase replay: groups of machines that replay a job, so that one faulty machine is found in two phases.

ByteRobust, algorithm 1: the machines 0 to N - 1 replay the job with fewer layers and a smaller data-parallel size.
First they do so in n groups of m consecutive machines, then in n groups of every n-th machine. One machine lies in
both faulty groups. A machine means one pipeline stage of one replica here. The fault must show again in a replay.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReplayGroups:
    """The two divisions of the machines 0 to N - 1.

    Attributes:
        group_size: machines of one group (m), a multiple of the pipeline's size.
        group_count: groups of each phase (n), at least m.
        replica_count: data-parallel size of the job that a group replays (k).
    """

    group_size: int
    group_count: int
    replica_count: int

    @property
    def machine_count(self) -> int:
        """Number of machines."""
        return self.group_size * self.group_count

    def horizontal(self, index: int) -> tuple[int, ...]:
        """Return the machines of a group of the first phase."""
        return tuple(range(index * self.group_size, (index + 1) * self.group_size))

    def vertical(self, index: int) -> tuple[int, ...]:
        """Return the machines of a group of the second phase."""
        return tuple(range(index, self.machine_count, self.group_count))

    def suspects(self, horizontal_index: int, vertical_index: int) -> tuple[int, ...]:
        """Return the machines that lie in the faulty groups of both phases: exactly one.

        Raises:
            ConfigError: there is no such group.
        """
        for name, index in (("first faulty group", horizontal_index), ("second faulty group", vertical_index)):
            if not 0 <= index < self.group_count:
                raise ConfigError(name, index, f"from 0 to {self.group_count - 1}")
        return tuple(sorted({*self.horizontal(horizontal_index)} & {*self.vertical(vertical_index)}))


def plan_replay(pipeline_size: int, data_size: int, replica_count: int | None = None) -> ReplayGroups:
    """Return the groups for a job.

    Args:
        pipeline_size: number of pipeline stages.
        data_size: data-parallel size; the job has the product of both machines.
        replica_count: data-parallel size of the replays (k); None: the largest that finds one machine, which is
            nearest to the job.

    Raises:
        ConfigError: no k, or not this one, divides the data-parallel size with groups of at most as many machines as
            there are groups.
    """
    for name, size in (("pipeline size", pipeline_size), ("data-parallel size", data_size)):
        if size < 1:
            raise ConfigError(name, size, "at least 1")
    fitting = (
        [k for k in range(1, data_size + 1) if data_size % k == 0 and k * pipeline_size <= data_size // k]
        if data_size >= pipeline_size
        else []
    )
    if not fitting:
        raise ConfigError("data-parallel size", data_size, f"at least the pipeline size, {pipeline_size}")
    if replica_count is not None and replica_count not in fitting:
        raise ConfigError("replicas", replica_count, f"one of {', '.join(map(str, fitting))}")
    k = fitting[-1] if replica_count is None else replica_count
    return ReplayGroups(k * pipeline_size, data_size // k, k)
