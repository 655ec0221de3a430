"""What both of OpenAI's formats share: errors, headers and the list of models."""

from collections.abc import Mapping, Sequence

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.dialect.reply import Headers, LimitView
from hivemind_addon.lab.sim.dialect.shape import Shape, duration, json, rounded_up

_NAMES = {Dimension.REQUESTS: "requests", Dimension.TOTAL_TOKENS: "tokens"}
_ERROR: tuple[str, str | None] = ("server_error", None)
_ERRORS: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("billing_error", "billing_hard_limit_reached"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("tokens", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
    529: ("service_unavailable_error", "server_is_overloaded"),
}


class OpenAI(Shape):
    """Errors are an object with message, type and code."""

    def error_object(self, status: int, message: str, error: str | None) -> dict[str, object]:
        """See Shape."""
        usual_type, usual_code = _ERRORS.get(status, _ERROR)
        return {"message": message, "type": error or usual_type, "param": None, "code": error or usual_code}

    def spent_credit(self) -> dict[str, object]:
        """See Shape."""
        return {
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        }

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:  # noqa: ARG002 - a header names it
        """See Shape."""
        return json({"error": error})

    def models_body(self) -> bytes:
        """See Shape."""
        entry = {"id": "sim-1", "object": "model", "created": 0, "owned_by": "sim"}
        return json({"object": "list", "data": [entry]})

    def identity_headers(self, request_id: str, organization: str) -> Headers:
        """See Shape."""
        return (
            ("request-id", request_id),
            ("x-request-id", request_id),
            ("openai-organization", organization),
        )

    def limit_headers(self, limits: Sequence[LimitView], wall_now: float) -> Headers:  # noqa: ARG002 - no instants here
        """Durations, of requests and total tokens only."""
        headers: list[tuple[str, str]] = []
        for view in limits:
            if (unit := _NAMES.get(view.dimension)) is None:
                continue
            headers += [
                (f"x-ratelimit-limit-{unit}", str(view.amount)),
                (f"x-ratelimit-remaining-{unit}", str(max(0, int(view.remaining)))),
                (f"x-ratelimit-reset-{unit}", duration(view.full_in_s)),
            ]
        return tuple(headers)

    def retry_after_headers(self, retry_after_s: float) -> Headers:
        """In whole seconds, and in milliseconds."""
        return (
            ("retry-after", str(rounded_up(retry_after_s))),
            ("retry-after-ms", str(rounded_up(retry_after_s * 1000))),
        )
