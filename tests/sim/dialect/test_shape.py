from hivemind_addon.lab.sim import dialect as wire
from tests.cases import over


@over(
    ("seconds", "written"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0121, "13ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (179.56, "2m59.56s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
    ],
)
def test_durations_are_written_as_go_does(seconds, written):
    assert wire.duration(seconds) == written
