"""What only real processes, sockets and TLS can prove; each promise of README.md and docs/ has one place.

    test_retries      what fails before a byte was seen is tried again and hidden, over HTTP/1.1 and HTTP/2 on both sides and
                      in every mode; what waiting cannot cure arrives as it came; how often what may be billed is sent
    test_delivery     whole delivery hides a failure anywhere; a begun stream ends in its own format; streams that hang
    test_hold         held requests go in order; a client that leaves, however, leaves nothing; replays are held anew
    test_guard        an exception anywhere in the addon costs neither an answer nor a slot
    test_passthrough  git, pip, other paths and bodies pass untouched; the proxy's own headers and ports stay its own
    test_modes        forward, reverse, upstream and TLS to the proxy share one scheduler; who is intercepted; connections
    test_start        the README's command; what stops a start, in one line; loopback only; more clients than files
    test_stop         SIGTERM, Ctrl-C, a second signal; reloads of the script; a clock that is set
    test_steer        cancel, pause, cap, priority and front, as clients get them; every example that people can type
    test_budgets      budgets, priorities and the journal through `kill -9`; two proxies on one journal; contexts; one sum
    test_providers    Ollama's lines, Codex's transport and plan, spent windows, the official SDKs
    test_formats      Gemini, Code Assist, Bedrock and Cohere: retried unseen, signatures unaltered, books as the providers'
    test_pages        pages for this machine only, and no secret in what is told; the event log, calls for help, traces
    test_capture      captures: recorded, switched, torn by a kill, of a bare mitmproxy, replayed for real
    test_run          `hivemind run`, `exec`, `env` and `doctor`: there for agents, back after a kill, nothing left behind
    test_tasks        fleets of tasks and their children; agents that submit them by MCP; leases among processes
    test_top          `hivemind top` and mitmproxy's console in real terminals
    test_fleets       Claude Code and Codex themselves; fleets of simulated agents; the demo

What fails in many ways is one test with a subtest for each; its requests are sent at once, on connections of their own.
"""
