"""Sessions of simple clients at a simulated provider, as captures: who is refused asks again after a pause."""

import heapq
import random

from hivemind_addon.kernel.values.ticket import Demand, OutcomeKind, PoolKey, Usage
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall
from hivemind_addon.sim.call import AnswerEnding, SimRequestFacts
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.provider import ProviderSettings, SimProvider

POOL = PoolKey("api.anthropic.com", "key-1", "claude-sonnet")


def driven(
    settings: ProviderSettings,
    *,
    calls=400,
    seed=0,
    gap_s=1.0,
    agents=8,
    models=1,
    service_s=(1, 8),
    tokens=(100, 4000),
):
    """`calls` calls that come `gap_s` apart on average; each is tried up to four times."""
    rng = random.Random(seed)
    provider = SimProvider(settings, random.Random(seed + 1))
    waiting, count, at_s = [], 0, 0.0
    for number in range(calls):
        at_s += rng.expovariate(1 / gap_s)
        heapq.heappush(waiting, (at_s, 1, number, "ask", None))
    facts, tries, ends = {}, {}, {}
    while waiting:
        now, _, number, what, answer = heapq.heappop(waiting)
        if what == "end":
            provider.end(now, answer, output_tokens=facts[number][1])
            continue
        if number not in facts:
            facts[number] = (
                rng.randint(*tokens),
                rng.randint(20, 400),
                f"agent-{rng.randrange(agents)}",
                f"model-{rng.randrange(models)}",
                rng.uniform(*service_s),
            )
            tries[number] = []
        size, out, agent, model, took_s = facts[number]
        request = SimRequestFacts(
            SimDialect.MESSAGES, "sk-sim-1", model, input_tokens=size, max_tokens=out, chunks=out, agent=agent
        )
        answer = provider.begin(now, request)
        is_refused = answer.ending in (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED)
        over = answer.ending is AnswerEnding.OVERLOADED
        failed = answer.status != 200
        kind = OutcomeKind.SUCCESS if not failed else OutcomeKind.OVERLOADED if over else OutcomeKind.THROTTLED
        wait_s = next((float(value) for name, value in answer.headers if name == "retry-after"), None)
        ended_s = 0.05 if failed else took_s
        count += 1
        tries[number].append(
            CapturedAttempt(
                number=len(tries[number]) + 1, at_s=now, waited_s=0.0, kind=kind, reason=str(answer.status),
                ended_after_s=ended_s, status=answer.status, head_after_s=ended_s, retry_after_s=wait_s,
                usage=None if failed else Usage(input_tokens=size, output_tokens=out, reported=True),
            )
        )  # fmt: skip
        if not is_refused:
            heapq.heappush(waiting, (now + ended_s, 0, number, "end", answer))
        else:
            provider.end(now, answer)
        ends[number] = now + ended_s
        if failed and len(tries[number]) < 4:
            heapq.heappush(waiting, (now + rng.uniform(0.5, 4) * 2 ** len(tries[number]), 1, number, "ask", None))
    made = []
    for number, attempts in tries.items():
        size, out, agent, model, _ = facts[number]
        made.append(
            CapturedCall(
                id=str(number), at_s=attempts[0].at_s, ended_s=ends[number], agent=agent, session=agent, pool=POOL,
                model=model, end="delivered" if attempts[-1].kind is OutcomeKind.SUCCESS else "gave up",
                attempts=tuple(attempts), profile="anthropic", demand=Demand(1, size, out, size + out),
            )
        )  # fmt: skip
    return Capture(calls=tuple(sorted(made, key=lambda call: call.at_s)), ended_s=max(ends.values()))
