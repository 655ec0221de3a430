import signal
import subprocess
import sys

import pytest

PROGRAM = """
import time
from hivemind_addon.proxy.system.stop_signals import end_with_us

end_with_us()
try:
    print("ready", flush=True)
    while True:  # a signal that comes just before a sleep does not end it
        time.sleep(0.05)
except KeyboardInterrupt:
    print("tidied up")
"""


@pytest.mark.parametrize("before", ["", 'trap "" INT; '])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_whoever_is_ended_tidies_up(how, before):
    command = ["sh", "-c", f'{before}exec "$@"', "sh", sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(how)
        assert program.communicate(timeout=120)[0] == "tidied up\n"
