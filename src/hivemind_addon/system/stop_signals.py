"""The signals by which a program is asked to end."""

import signal


def end_with_us() -> None:
    """Make SIGTERM what Ctrl-C is, a KeyboardInterrupt: what ends us ends what we have started, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background is started with it ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
