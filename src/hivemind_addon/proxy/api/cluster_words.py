"""What a proxy's cluster does, in words: for the terminal, in one line."""

from hivemind_addon.proxy.api.report import ClusterView
from hivemind_addon.proxy.api.words import span


def cluster_line(view: ClusterView) -> str:
    """`cluster team: 2 members, this proxy coordinates (epoch 5); sums of 8 min; ci-8080 3 waiting, 2 in flight; …`."""
    said = [f"cluster {view.name}: {cluster_state(view)}"]
    if view.summed_s is not None:
        said.append(f"sums of {span(view.summed_s)}")
    if len(view.members) > 1:
        said += (f"{one.name} {one.waiting:,} waiting, {one.in_flight:,} in flight" for one in view.members)
    return "; ".join(said)


def cluster_state(view: ClusterView) -> str:
    """What this proxy is in its cluster."""
    members = f"{view.known_members} member{'' if view.known_members == 1 else 's'}"
    match view.role:
        case "alone":
            return f"alone for {span(view.since_s)}, with 1/{round(1 / view.share)} of the limits"
        case "coordinator":
            return f"{members}, this proxy coordinates (epoch {view.epoch})"
        case "member":
            return f"{members}, {view.coordinator} coordinates (epoch {view.epoch})"
        case _:
            return f"joining for {span(view.since_s)}"
