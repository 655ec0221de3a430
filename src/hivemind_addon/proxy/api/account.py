"""How budgets stand, as values and as words of commands."""

from hivemind_addon.kernel.values.snapshot import BudgetView
from hivemind_addon.kernel.values.spend import Budget, Period
from hivemind_addon.proxy.api.command import AccountView
from hivemind_addon.proxy.api.words import amount


def account_view(view: BudgetView) -> AccountView:
    """How a budget stands, as commands answer it."""
    budget, spent, reserved, added = view.budget, view.spent, view.reserved, view.added
    left = {one.unit: one.left for one in view.balances}
    return AccountView(
        holder=budget.holder,
        scope=budget.scope,
        name=budget.name,
        per=budget.per,
        limit_tokens=budget.tokens,
        spent_tokens=spent.tokens,
        reserved_tokens=reserved.tokens,
        added_tokens=added.tokens,
        left_tokens=left.get("tokens"),
        limit_micro_usd=budget.micro_usd,
        spent_micro_usd=spent.micro_usd,
        reserved_micro_usd=reserved.micro_usd,
        added_micro_usd=added.micro_usd,
        left_micro_usd=left.get("micro_usd"),
        limit_calls=budget.calls,
        spent_calls=spent.calls,
        reserved_calls=reserved.calls,
        added_calls=added.calls,
        left_calls=left.get("calls"),
        unpriced_tokens=spent.unpriced_tokens,
        guesses=view.guesses,
        renews_in_s=view.renews_in_s,
    )


def words_of(per: Period) -> str:
    """`per hour`, `for this run`."""
    return "for this run" if per is Period.RUN else f"per {per.value}"


def limits_of(budget: Budget) -> str:
    """`5,000,000 tokens and $20.00`."""
    return " and ".join(amount(unit, limit) for unit, limit in budget.by_unit if limit is not None)
