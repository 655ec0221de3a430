"""From refusals back to limits: kinds and amounts that a simulated provider had, and what is said where none fits."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind, Reading
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope, WindowKind
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.replay.reconstruct import fitted_to
from hivemind_addon.sim.trace import read_recorded, write_trace
from hivemind_addon.sim.trace_fit import roundest
from hivemind_addon.tools.cli import main
from tests.sim.drives import driven

WINDOW, REQUESTS, TOKENS = LimitKind.WINDOW, Dimension.REQUESTS, Dimension.INPUT_TOKENS


@pytest.mark.parametrize(
    "limit",
    [
        Limit(REQUESTS, 30),
        Limit(TOKENS, 60_000),
        Limit(Dimension.OUTPUT_TOKENS, 6_000),
        Limit(REQUESTS, 30, burst=12),
        Limit(REQUESTS, 30, 60, WINDOW),
        Limit(TOKENS, 60_000, 60, WINDOW, windows=WindowKind.CLOCK, full_in_s=23.7),
        Limit(REQUESTS, 30, 60, WINDOW, windows=WindowKind.OPENED),
        Limit(REQUESTS, 5, 10, WINDOW, windows=WindowKind.LOG),
        Limit(REQUESTS, 30, 60, WINDOW, windows=WindowKind.COUNTER),
        Limit(REQUESTS, 10, 30, WINDOW, windows=WindowKind.LOG, growth=1.5),
        Limit(REQUESTS, 5, 60, WINDOW, windows=WindowKind.LOG, scope=ModelScope.USER),
        Limit(REQUESTS, 12, scope=ModelScope.MODEL),
    ],
    ids=lambda one: (
        f"{one.dimension.value}-{one.kind.value}-{one.windows.value}-{one.scope.value}-{one.burst}-{one.growth}"
    ),
)
def test_a_fit_names_the_kind_and_the_amount_of_a_hidden_limit(limit):
    models = 3 if limit.scope is ModelScope.MODEL else 1
    (fit,) = fitted_to(driven(ProviderSettings(limits=(limit,)), calls=250, gap_s=1.2, models=models))
    (found,) = fit.limits
    rule = found.rule.limit
    is_beat = limit.windows is WindowKind.BEAT and limit.kind is WINDOW
    assert (rule.dimension, rule.kind, rule.scope, rule.growth) == (
        limit.dimension,
        limit.kind,
        limit.scope,
        limit.growth,
    )
    assert rule.windows is (WindowKind.CLOCK if is_beat else limit.windows)
    assert (rule.amount / rule.window_s) == pytest.approx(limit.amount / limit.window_s, rel=0.03)
    assert (rule.burst or rule.amount) == pytest.approx(limit.burst or limit.amount, rel=0.03)
    assert found.explains >= 0.95 * fit.refusals > 50
    assert found.contradicts <= 0.02 * found.explains


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"concurrency": 4}, "4 calls at once", id="cap"),
        pytest.param({"concurrency": 6, "linger_s": 5.0}, "6 calls at once, each 5 s longer", id="lingering"),
        pytest.param({"tokens_at_once": 9_000}, "tokens at once", id="tokens"),
    ],
)
def test_a_fit_names_what_may_be_in_flight(tmp_path, settings, words):
    write_trace(driven(ProviderSettings(**settings), calls=250), tmp_path / "a.trace")
    shown = CliRunner().invoke(main, ["lab", "trace", "fit", str(tmp_path / "a.trace")])
    assert shown.exit_code == 0
    assert words in shown.output


def test_two_limits_and_chance_are_told_apart_and_replayed(tmp_path):
    limits = (Limit(REQUESTS, 35, 60, WINDOW, windows=WindowKind.LOG), Limit(TOKENS, 60_000))
    file = tmp_path / "two.trace.gz"
    write_trace(driven(ProviderSettings(limits=limits, faults={"429": 0.03}), calls=300, gap_s=1.2), file)
    (fit,) = fitted_to(read_recorded(file))
    assert {(one.rule.limit.dimension, one.rule.limit.amount) for one in fit.limits} == {
        (REQUESTS, 35),
        (TOKENS, 60_000),
    }
    assert 3 <= len(fit.chance) <= 30
    told = CliRunner().invoke(main, ["lab", "scenario", "show", str(file)])
    assert "amount: 35" in told.output
    ran = CliRunner().invoke(
        main, ["lab", "scenario", "run", str(file), "--seeds", "1", "--policy", "hivemind", "--json"]
    )
    (row,) = json.loads(ran.stdout)
    assert row["scenario"] == "two"
    assert row["runs"][0]["agents"] == 8


def test_a_stated_limit_is_taken_as_stated_and_a_wrong_one_is_contradicted():
    made = driven(ProviderSettings(limits=(Limit(REQUESTS, 30),)), calls=250, gap_s=1.2)
    stated = (Reading("requests", REQUESTS, 60.0, 30.0), Reading("input-tokens", TOKENS, 60.0, 500.0))
    calls = [
        replace(call, attempts=tuple(replace(one, readings=stated) for one in call.attempts)) for call in made.calls
    ]
    (fit,) = fitted_to(replace(made, calls=tuple(calls)))
    right, wrong = fit.limits
    assert right.rule.is_stated
    assert right.explains == fit.refusals
    assert right.contradicts == 0
    assert wrong.contradicts > 0.3 * wrong.explains > 0
    assert fit.found == ()


def test_chance_alone_is_called_chance():
    (fit,) = fitted_to(driven(ProviderSettings(faults={"429": 0.2}), calls=250))
    assert fit.limits == ()
    assert len(fit.chance) == fit.refusals > 20


def test_few_refusals_are_called_too_few(tmp_path):
    file = tmp_path / "few.trace"
    write_trace(driven(ProviderSettings(faults={"429": 0.05}), calls=60), file)
    (fit,) = fitted_to(read_recorded(file))
    assert not fit.is_known
    assert fit.kind is OutcomeKind.THROTTLED
    assert "not enough refusals" in CliRunner().invoke(main, ["lab", "trace", "fit", str(file)]).output


@pytest.mark.parametrize(
    ("low", "high", "number"),
    [(50.0, 51.0, 50), (48.7, 50.9, 50), (39_874.0, 40_020.0, 40_000), (447_310.0, 451_000.0, 450_000), (7.0, 7.0, 7)],
)
def test_the_roundest_number_is_the_likeliest(low, high, number):
    assert roundest(low, high) == number
