"""What a piece of work costs, on a machine that may be busy with others."""

import time


def least_cpu_s(work, tries=5):
    """Processor seconds of this thread: what others have of the machine meanwhile does not count."""
    took = []
    for _ in range(tries):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return min(took)
