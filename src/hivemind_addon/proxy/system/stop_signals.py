"""How a program is asked to end, and how it says that it has refused to start."""

import signal

START_REFUSED = 78
"""Exit status of a proxy that refuses to start, however long it took to find out: EX_CONFIG of sysexits.h."""


def end_with_us() -> None:
    """Make SIGTERM what Ctrl-C is, a KeyboardInterrupt: what ends us ends what we have started, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background is started with it ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
