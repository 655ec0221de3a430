"""What conftest.py promises of hypothesis: the same examples in every run of a commit."""

import os
import subprocess
import sys

SCRIPT = """
import sys
from hypothesis import core, given, strategies as st
import tests.conftest
if "loaded" in sys.argv:
    import hivemind_addon.kernel.scheduler, hivemind_addon.sim.limits
core.global_force_seed = 1  # as hypothesis's plugin has it from --hypothesis-seed

@given(st.integers(), st.floats(), st.text())
def show(number, share, text):
    print(ascii((number, share, text)))

show()
"""


def examples(*arguments, **environment):
    plain = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("HYPOTHESIS_")}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(command, env=plain | environment, capture_output=True, check=True, text=True).stdout


def test_a_run_draws_the_same_examples_in_ci_and_whatever_is_loaded():
    alone = examples()
    assert alone.count("\n") >= 60
    assert examples("loaded", CI="true") == alone
