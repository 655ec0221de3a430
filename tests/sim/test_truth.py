from hivemind_addon.lab.sim import faults
from hivemind_addon.lab.sim.call import AgentTruth, AnswerEnding, SimAnswer, Witness
from tests.sim.dialect.samples import REPLY


def answer(*, status=200, ending=AnswerEnding.COMPLETED, agent="a", reply=REPLY, fault=faults.OK):
    return SimAnswer("req_1", 1, "org", agent, "sim-1", status, (), ending, reply=reply, fault=fault)


def test_what_completed_counts_for_its_agent_and_what_was_cut_is_waste():
    witness = Witness()
    for one, ending in ((answer(), AnswerEnding.COMPLETED), (answer(agent="b"), AnswerEnding.CUT)):
        witness.began(one, in_flight=1)
        witness.ended(one, output_tokens=5, ending=ending)
    truth = witness.truth(0)
    assert (truth.completed, truth.cut, truth.in_flight) == (1, 1, 0)
    assert (truth.input_tokens, truth.cached_tokens, truth.output_tokens) == (40, 10, 5)
    assert (truth.wasted_input_tokens, truth.wasted_output_tokens) == (40, 5)
    assert truth.agents == {
        "a": AgentTruth(attempts=1, completed=1, input_tokens=40, output_tokens=5),
        "b": AgentTruth(attempts=1),
    }


def test_a_refused_call_is_over_as_it_begins():
    witness = Witness()
    witness.began(answer(status=429, ending=AnswerEnding.REFUSED, reply=None), in_flight=3)
    witness.began(answer(status=529, ending=AnswerEnding.OVERLOADED, reply=None), in_flight=2)
    truth = witness.truth(2)
    assert (truth.refused, truth.overloaded, truth.by_status) == (1, 1, {429: 1, 529: 1})
    assert truth.agents == {"a": AgentTruth(attempts=2, refused=2)}
    assert (truth.in_flight, truth.peak_in_flight) == (2, 3)


def test_a_fault_is_counted_by_its_name():
    witness = Witness()
    witness.began(answer(status=529, ending=AnswerEnding.FAILED, reply=None, fault=faults.NAMED["529"]), in_flight=1)
    assert witness.truth(1).faults == {"529": 1}
    assert witness.attempts == 1
