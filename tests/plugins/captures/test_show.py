from rich.console import Console

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.plugins.captures.model import Capture, ConcurrencyMove
from hivemind_addon.plugins.captures.show import limit_words, show
from tests.plugins.captures.samples import POOL, make_attempt, make_call, make_capture, make_limit


def shown(capture, width=100):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(show(capture, name="night.flow", width=width))
    return console.export_text()


FLEET = make_capture(
    make_call("1", agent="ann", session="5f0c1d2e-aaaa", waited_s=2.0),
    make_call(
        "2",
        agent="a-name-that-is-much-too-long-for-any-column-of-a-terminal",
        session="s-2",
        at_s=1.0,
        ended_s=90.0,
        end="gave up",
        attempts=(make_attempt(kind=OutcomeKind.OVERLOADED, reason="529 overloaded_error", at_s=60.0),),
    ),
    make_call("3", agent="ann", session="5f0c1d2e-aaaa/sub-1", parent_session="5f0c1d2e-aaaa", at_s=2.0),
    limits=(make_limit(),),
    moves=(ConcurrencyMove(0.0, POOL, 4, ""), ConcurrencyMove(5.0, POOL, 7, "")),
    damage=("the last 12 bytes are a torn record",),
    proxy_version="0.1.0",
)


def test_a_night_fits_every_terminal(golden):
    widths = (60, 80, 120, 200)
    parts = [shown(FLEET, width) for width in widths]
    for width, text in zip(widths, parts, strict=True):
        assert max(map(len, text.splitlines())) <= width
    golden("night.txt", "\n\n".join(parts))


def test_an_empty_capture_is_said_to_be_empty():
    assert "no call had ended" in shown(Capture())


def test_a_learned_limit_is_told_as_far_as_it_is_known():
    assert limit_words(make_limit(meter="pace", kind="per second", limit=2.5, window_s=1.0)) == "2.5 requests per s"
    assert limit_words(make_limit(meter="quota", kind="x", limit=9.0, window_s=None, dimension=None)) == "9 quota"
