"""Whether the running agent is ready, and obeys the commands that it gets."""

from collections.abc import Iterator

from explain.shares import counted
from runtime.gate import UNVOUCHED
from services.doctor.finding import CheckContext, Finding, Reporter
from services.install.status import probe_of

_report = Reporter("agent")
#: What the check of the bus says itself.
_OF_BUS = "MQTT broker"
_KEYS = (
    "compare agent.trusted_keys with the schedulers' scheduler.signing_key_id and "
    "signing_key_file; the agent's log names each command that it refuses, and why"
)


def check(context: CheckContext) -> Iterator[Finding]:
    """Pass on what the agent's own probe says, and which commands it refused since its start."""
    if context.readiness is None:
        if context.is_running and (page := probe_of(context.config)):
            yield _report.problem(
                f"the agent runs, and nothing of it answers at {page}",
                "see whether it hangs, in its log, and restart it: its gangs run on; so do where "
                "http.port was changed since its start",
            )
        return
    reasons = [str(reason) for reason in context.readiness.get("reasons", ())]
    wrong = [reason for reason in reasons if _OF_BUS not in reason]
    refuses = [reason for reason in wrong if "refuses all commands" in reason]
    for reason in wrong:
        fix = _KEYS if reason in refuses else "mend that; /readyz answers 200 once it is mended"
        yield _report.problem(f"the agent runs, and is not ready: {reason}", fix)
    unvouched = {kind: count for kind, count in context.refused.items() if kind in UNVOUCHED}
    if not refuses and any(unvouched.values()):
        kinds = ", ".join(f"{kind} {count}" for kind, count in unvouched.items() if count)
        yield _report.warning(
            f"since its start the agent has refused {counted(sum(unvouched.values()), 'command')} "
            f"that no key it trusts has signed ({kinds})",
            _KEYS,
        )
    elif not wrong and not reasons:
        yield _report.ok("the agent runs, is ready, and has refused no command for its signature")
