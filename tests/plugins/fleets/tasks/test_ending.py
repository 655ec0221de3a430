from hivemind_addon.plugins.fleets.tasks.ending import _sign, _signal_name
from tests.cases import each


@each(
    ("status", "said"),
    [
        (137, ""),
        (143, "bye"),
        (139, ""),
        (75, ""),
        (1, 'API Error: 529 {"type":"error","error":{"type":"overloaded_error"}}'),
        (1, "Error: 429 Too Many Requests"),
        (1, "exceeded your rate limit, please try again in 3 s"),
        (1, "HTTP 503"),
        (1, "status code: 502"),
        (1, "read ECONNRESET"),
        (1, "httpx.ConnectError: connection refused"),
        (1, "Request timed out."),
        (52, "curl: (52) Empty reply from server"),
        (1, "stream disconnected before completion"),
    ],
)
def test_these_may_go_better_another_time(status, said):
    assert _sign(status, said)


@each(
    ("status", "said"),
    [
        (1, ""),
        (2, "AssertionError: 429 != 430"),
        (1, "503 tests passed, 1 failed"),
        (127, "there is no command 'claude' on the PATH"),
        (130, "connection reset"),  # Ctrl-C
        (141, ""),
        (1, "429: your credit balance is too low"),
        (1, "rate limit: insufficient_quota"),
        (1, "the budget of agent night.a is spent (429 Too Many Requests)"),
        (1, "overloaded\n" + "x" * 5000),  # long before its end
    ],
)
def test_these_would_not(status, said):
    assert _sign(status, said) == ""


def test_a_signal_has_a_name():
    assert (_signal_name(9), _signal_name(99)) == ("SIGKILL", "signal 99")
