"""`hivemind history bill`: exports of Anthropic and OpenAI, in all the ways they are written, beside the journal."""

import json

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.history.bill import model_key
from tests.proxy.journal.book import NOON, journal_with

DAY_S = 86_400
LATE = NOON + DAY_S / 2 - 1
"""The last second of the day in UTC, which is the next day in the east."""


def fill(book):
    book.run()
    book.ticket("a1", model="claude-sonnet-4-5", arrived=NOON)
    book.attempt("a1", began=NOON)
    book.attempt("a1", 2, began=LATE, outcome="success")
    book.ticket("a2", model="claude-opus-4-8", arrived=NOON + DAY_S)
    book.attempt("a2", began=NOON + DAY_S, input_tokens=1_200_000, cache_write_tokens=34_000, tokens=1_234_500)
    book.ticket("o1", model="gpt-5", arrived=NOON, pool="api.openai.com/key-1/gpt-5")
    book.attempt("o1", began=NOON)


@pytest.fixture
def bill(tmp_path):
    journal = journal_with(tmp_path / "journal.db", fill)

    def run(*texts, options=()):
        files = []
        for number, text in enumerate(texts):
            files.append(str(tmp_path / f"export-{number}"))
            (tmp_path / f"export-{number}").write_bytes(text if isinstance(text, bytes) else text.encode())
        return CliRunner().invoke(main, ["history", "bill", *files, "--journal", str(journal), *options])

    return run


CONSOLE = """usage_date_utc,model_version,api_key,workspace,usage_type,context_window,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens,web_search_count,inference_geo,speed
2026-01-01,claude-sonnet-4-5-20250929,ci,Default,standard,≤ 200k,1500,0,0,800,200,0,global,
2026-01-01,claude-sonnet-4-5-20250929,dev,Default,standard,≤ 200k,500,0,0,0,0,0,global,
2026-01-02,claude-opus-4-8,ci,Default,standard,≤ 200k,1200000,30000,4000,400,100,0,global,
"""
SHEET = "\n".join(  # noqa: FLY002 - as long as its lines
    [
        "Usage Date (UTC);Model;Input Tokens;Cache Creation Input Tokens;Cache Read Input Tokens;Output Tokens",
        "2026/1/1;Claude Sonnet 4.5;2.000;0;800;200",
        "2026/1/2;Claude Opus 4.8;1.200.000;34.000;400;100",
    ]
)
GROUPED = '"Date","Model","Input tokens","Cache read tokens","Cache write tokens","Output tokens"\n"2026-01-01","claude-sonnet-4-5","2,000","800","0","200"\n"2026-01-02T00:00:00Z","us.anthropic.claude-opus-4-8-v1:0","1,200,000","400","34,000","100"\n'


def bucket(day, **result):
    return {
        "starting_at": f"{day}T00:00:00Z",
        "ending_at": f"2026-01-0{int(day[-1]) + 1}T00:00:00Z",
        "results": [result],
    }


def anthropic(model, uncached, write_5m, write_1h, read, output):
    written = {"ephemeral_5m_input_tokens": write_5m, "ephemeral_1h_input_tokens": write_1h}
    return {
        "uncached_input_tokens": uncached,
        "cache_creation": written,
        "cache_read_input_tokens": read,
        "output_tokens": output,
        "server_tool_use": {"web_search_requests": 0},
        "api_key_id": None,
        "workspace_id": None,
        "model": model,
        "service_tier": None,
        "context_window": None,
    }


API = [
    {"data": [bucket("2026-01-01", **anthropic("claude-sonnet-4-5-20250929", 2000, 0, 0, 800, 200))], "has_more": True},
    {"data": [bucket("2026-01-02", **anthropic("claude-opus-4-8", 1_200_000, 30_000, 4000, 400, 100))]},
]


@pytest.mark.parametrize(
    "text",
    [
        CONSOLE,
        "\ufeff" + CONSOLE.replace("\n", "\r\n"),
        CONSOLE.encode("utf-16"),
        CONSOLE.replace(",", "\t"),
        SHEET,
        GROUPED,
        json.dumps(API),
        json.dumps(API[0] | {"data": API[0]["data"] + API[1]["data"]}, indent=2),
    ],
)
def test_reports_that_say_the_same_as_the_journal_do_not_differ(bill, text):
    done = bill(text, options=["--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["day"], row["their_input"], row["our_input"], row["tokens_difference"]) for row in rows] == [
        ("2026-01-01", 2800, 2800, 0),
        ("2026-01-02", 1_234_400, 1_234_400, 0),
    ]
    assert not any(row["differs"] for row in rows)
    assert not done.stderr


def usage(model, day_s=0, **more):
    result = {"object": "organization.usage.completions.result", "input_tokens": 1400, "output_tokens": 100}
    result |= {"input_cached_tokens": 400, "num_model_requests": 1, "model": model, "batch": None} | more
    start = int(NOON - DAY_S / 2 + day_s)
    return {"object": "bucket", "start_time": start, "end_time": start + DAY_S, "results": [result]}


def costs(line, value):
    amount = {"value": value, "currency": "usd"}
    return usage(None)["results"][0] and {
        **usage(None),
        "results": [{"object": "organization.costs.result", "amount": amount, "line_item": line, "project_id": None}],
    }


def test_openai_counts_cached_tokens_within_the_input_and_costs_in_dollars(bill):
    tokens = {"object": "page", "data": [usage("gpt-5-2025-08-07")], "has_more": False}
    money = {
        "object": "page",
        "data": [costs("gpt-5-2025-08-07, input", 0.02), costs("gpt-5-2025-08-07, output", 0.01)],
    }
    done = bill(json.dumps(tokens), json.dumps(money), options=["--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert (row["their_input"], row["our_input"], row["their_output"], row["our_output"]) == (1400, 1400, 100, 100)
    assert (row["their_micro_usd"], row["our_micro_usd"]) == (30_000, 30_000)
    columns = ["start_time", "end_time", "start_time_iso", "end_time_iso", "project_id", "num_model_requests"]
    columns += ["model", "input_tokens", "output_tokens", "input_cached_tokens"]
    line = "1767225600,1767312000,2026-01-01T00:00:00+00:00,2026-01-02T00:00:00+00:00,p,1,,1400,100,400"
    done = bill(f"{','.join(columns)}\n{line}\n", options=["--json", "--pool", "api.openai.com"])
    assert (done.exit_code, json.loads(done.stdout)[0]["model"]) == (0, "(all models)")


def test_anthropic_costs_are_cents_in_the_api_and_dollars_in_the_console(bill):
    line = {"currency": "USD", "model": "claude-sonnet-4-5", "token_type": "output_tokens", "cost_type": "tokens"}
    report = {"data": [bucket("2026-01-01", amount="2.5", **line), bucket("2026-01-01", amount="3.50", **line)]}
    console = "usage_date_utc,model,workspace,token_type,cost_usd,list_price_usd,cost_type\n"
    console += "2026-01-01,Claude Sonnet 4.5,Default,output,0.06,0.06,token\n"
    for text in (json.dumps(report), console, console.replace(",", ";").replace("0.06", "0,06")):
        done = bill(text, options=["--json"])
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)
        assert (row["their_micro_usd"], row["our_micro_usd"], row["percent"]) == (60_000, 60_000, 0)


def test_differences_beyond_the_tolerance_are_shown_and_are_the_exit_status(bill):
    more = CONSOLE.replace(
        "2026-01-01,claude-sonnet-4-5-20250929,ci,Default,standard,≤ 200k,1500",
        "2026-01-01,claude-sonnet-4-5-20250929,ci,Default,standard,≤ 200k,2500",
    )
    done = bill(more)
    assert done.exit_code == 3
    assert "-1,000" in done.output
    assert "-25" in done.output
    assert bill(more, options=["--tolerance", "30"]).exit_code == 0
    without = (
        "\n".join(line for line in CONSOLE.splitlines() if "opus" not in line)
        + "\n2026-01-02,claude-haiku-4-5,,,,,5,0,0,0,1,0,,\n"
    )
    done = bill(without, options=["--json"])
    assert done.exit_code == 3
    assert {(row["model"], row["tokens_difference"]) for row in json.loads(done.stdout) if row["differs"]} == {
        ("claude-opus-4-8", 1_234_500),
        ("claude-haiku-4-5", -6),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("usage_date_utc,model_version,usage_output_tokens\n", "reports no usage"),
        ("a,b\n1,2\n", "neither tokens nor dollars"),
        ("{", "broken JSON"),
        ('{"data": []}', "reports no usage"),
        ("date,model,output_tokens\n2026-01-01,m,many\n", "line 2: output_tokens is no number: 'many'"),
        ("date,model,output_tokens\n2026-01-01,m,nan\n", "output_tokens is no number"),
        ("date,model,output_tokens\nMonday,m,1\n", "line 2: no day: 'Monday'"),
        ("date,model,output_tokens\n2026-13-41,m,1\n", "no day"),
        (b"\x89PNG\r\n\x1a\n", "is no text"),
        (json.dumps(API).replace("00:00:00Z", "00:00:00+02:00"), "another time zone"),
    ],
)
def test_what_is_no_report_is_one_clear_line(bill, text, words):
    done = bill(text)
    assert done.exit_code == 1
    assert words in done.output
    assert "export-0" in done.output
    assert "Traceback" not in done.output


def test_columns_that_are_not_known_are_named_once(bill):
    done = bill(CONSOLE.replace("speed", "moon_phase"), options=["--json"])
    assert done.exit_code == 0
    done = bill(CONSOLE.replace("global,", "global,full").replace("speed", "moon_phase"), options=["--json"])
    assert done.stderr == "1 column not known, and not compared: moon_phase\n"


@pytest.mark.parametrize(
    "names",
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5", "Claude Sonnet 4.5", "anthropic/claude-sonnet-4.5"),
        ("claude-sonnet-4-5@20250929", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5-latest"),
        ("claude-3-5-haiku-20241022", "Claude Haiku 3.5"),
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini", "openai/gpt-4.1-mini"),
    ],
)
def test_names_of_one_model_are_one(names):
    assert len({model_key(name) for name in names}) == 1
    assert model_key("claude-sonnet-4-5") != model_key("claude-sonnet-4")
