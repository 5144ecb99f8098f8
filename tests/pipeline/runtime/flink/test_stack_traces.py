"""One sentence out of the traces that Flink gives: these were seen."""

import pytest

from tocsin.pipeline.runtime.flink.stack_traces import cause_of

CLIENT = """
org.apache.flink.client.program.ProgramAbortException: java.lang.RuntimeException: Python process exits with code: 1
\tat org.apache.flink.client.python.PythonDriver.main(PythonDriver.java:123)
Caused by: java.lang.RuntimeException: Python process exits with code: 1
\t... 14 more
"""
IN_PYTHON = """Traceback (most recent call last):
  File "/tmp/job.py", line 1, in <module>
    from tocsin.pipeline.runtime.flink.job import main
ModuleNotFoundError: No module named 'pyflink'
"""
IN_JAVA = """Traceback (most recent call last):
  File "/tmp/job.py", line 3, in <module>
    main()
py4j.protocol.Py4JJavaError: An error occurred while calling o9.execute.
: org.apache.flink.util.FlinkException: Failed to execute job 'tocsin'.
\tat org.apache.flink.Streams.execute(Streams.java:1)
Caused by: java.lang.RuntimeException: java.io.FileNotFoundException: Cannot find savepoint '/no'.
\t... 4 more
Caused by: java.io.FileNotFoundException: Cannot find savepoint '/no'.
\tat org.apache.flink.Storage.resolve(Storage.java:2)
\t... 5 more
"""
TWICE = """java.lang.Exception: Could not complete the operation
Caused by: java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
\t... 14 more
Caused by: java.io.IOException: error=2, No such file or directory
\t... 18 more
"""
WORKER = """java.lang.RuntimeException: Failed to close remote bundle
\tat org.apache.flink.Runner.finish(Runner.java:1)
Caused by: java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent call last):
  File "functions.py", line 12, in process_element
    raise SnapshotError(msg)
tocsin.schemas.errors.SnapshotError: the state of job c/j cannot be taken over: version 99

\tat org.apache.beam.Client.accept(Client.java:180)
"""


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (IN_PYTHON + CLIENT, "ModuleNotFoundError: No module named 'pyflink'"),
        (IN_JAVA + CLIENT, "FileNotFoundException: Cannot find savepoint '/no'."),
        (TWICE, 'IOException: Cannot run program "/no/python": error=2, No such file or directory'),
        (WORKER, "tocsin.schemas.errors.SnapshotError: the state of job c/j cannot be taken over: version 99"),
        (CLIENT, "RuntimeException: Python process exits with code: 1"),
        ("plain words", "plain words"),
        ("", "no reason given"),
    ],
)
def test_the_sentence_is_found(trace: str, sentence: str) -> None:
    assert cause_of(trace) == sentence


def test_it_is_one_line_of_bounded_length() -> None:
    found = cause_of("Caused by: java.lang.Exception: " + "x y\t" * 1000)
    assert len(found) <= 600
    assert "\t" not in found


def test_where_there_is_a_way_out_it_is_said() -> None:
    found = cause_of("Caused by: org.x.UnknownTopicOrPartitionException: This server does not host this.")
    assert found.startswith("UnknownTopicOrPartitionException: This server does not host this: a topic is missing;")
    assert "'tocsin topics apply' makes it" in found
