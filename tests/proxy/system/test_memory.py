"""In processes of their own: what is set there holds as long as they do."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from hivemind_addon.proxy.system.memory import reuse_freed_memory
if sys.argv[1] == "reused" and not reuse_freed_memory():
    sys.exit("this C library has no such settings")
def body():
    made = bytearray()
    for _ in range(10):
        made += bytes(64_000)
    return bytes(made)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    body()
before = faults()
for _ in range(100):
    kept = [body() for _ in range(4)]
    del kept
print((faults() - before) // 400)
"""


def faults_a_body(how):
    run = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip(run.stderr.strip())
    return int(run.stdout)


def test_the_memory_of_a_freed_body_serves_the_next_one():
    assert faults_a_body("reused") < 5 < faults_a_body("as it is")


def test_what_is_there_is_out_of_the_collectors_way():
    told = "import gc, hivemind_addon.proxy.system.memory as m; m.collect_rarely(); print(gc.get_freeze_count(), gc.get_threshold())"
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    frozen, _, thresholds = run.stdout.strip().partition(" ")
    assert int(frozen) > 1000
    assert thresholds == "(2000, 10, 20)"
