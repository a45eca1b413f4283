"""Whether the MQTT broker lets this agent connect, publish and subscribe.

With a certificate or a user name the broker may tie the session to that name, whatever client id
is given. So this logs in as the agent itself, with the agent's own subscriptions, and leaves the
session as it was: it acknowledges no message that waits there. While the agent runs it does not log
in, because a second client of one name would cut the agent off.
"""

import asyncio
from collections.abc import Iterator

from bus.clock import Clock
from bus.contract import BusError
from bus.mqtt_client import MqttClient, Refused
from bus.options import MqttOptions
from bus.wire import Incoming, LinkDown, Outgoing
from schemas.topics import MQTT_DOWN, MQTT_DOWN_KINDS, MQTT_UP
from services.doctor.finding import CheckContext, Finding, Reporter
from services.doctor.reach import Server, reach

_report = Reporter("bus")
#: The broker answers within this long, or it is no use.
_ANSWER_S = 5.0
_LOOK_S = 0.05


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the broker of `[mqtt]`."""
    config = context.config
    try:
        options = config.mqtt.options()
    except (BusError, OSError) as error:
        yield _report.problem(str(error), "set mqtt.url, and name a password file that can be read")
        return
    server = Server(options.host, options.port, options.tls, "the MQTT broker", "mqtt.url", "mqtt")
    for finding in reach(server, _report, context.clock.now_s()):
        yield finding
        if finding.verdict == "problem":
            return
    is_here = options.host in ("localhost", "::1") or options.host.startswith("127.")
    if options.tls is None and not is_here:
        yield _report.warning(
            "what is said to the broker can be read and forged on the way",
            "write mqtts:// in mqtt.url, and name an authority in mqtt.ca_file",
        )
    if config.agent.name is None:
        return  # there is no name to log in with
    named = bool(options.username or (options.tls and options.tls.cert_file))
    if context.is_running and (named or _complaints(context)):
        yield _of_running(context)
        return
    yield asyncio.run(_let_in(options, config.agent.name, named, context.clock))


def _of_running(context: CheckContext) -> Finding:
    if context.readiness is None:
        return _report.ok(
            "the agent runs, and was not disturbed by a second login under its name (its probe, "
            "at http.port, would say how its own goes)"
        )
    if reasons := _complaints(context):
        return _report.problem(
            f"the agent that runs says: {reasons[0]}",
            "stop the agent and run this again: it then tries a login of its own",
        )
    return _report.ok("the agent that runs has its connection to the broker")


def _complaints(context: CheckContext) -> list[str]:
    """Give what the agent that runs says of its own connection, where it has none."""
    reasons = map(str, (context.readiness or {}).get("reasons", ()))
    return [reason for reason in reasons if "MQTT broker" in reason]


async def _let_in(options: MqttOptions, agent: str, named: bool, clock: Clock) -> Finding:
    """Log in, subscribe, and publish a message that means nothing to a bridge."""
    who = f"{options.namespace or 'tidegate'}-{'agent' if named else 'doctor'}-{agent}"
    client = MqttClient(
        options,
        who,
        subscriptions=[MQTT_DOWN.format(node=agent, kind=kind) for kind in MQTT_DOWN_KINDS],
        hear=_nothing,
        clock=clock,
        keep_session=named,
    )
    client.start()
    try:
        return await _asked(client, agent)
    finally:
        await client.close()


async def _asked(client: MqttClient, agent: str) -> Finding:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _ANSWER_S
    while not client.connected:
        if loop.time() > end_s or "refuses" in client.problem:
            return _not_let_in(client.problem, agent)
        await asyncio.sleep(_LOOK_S)
    # An empty birth would clear a retained one; this one is not retained, so it does nothing. But
    # the broker checks the right to publish it as it would for any other.
    probe = Outgoing(MQTT_UP.format(node=agent, kind="birth"), b"")
    try:
        async with asyncio.timeout(_ANSWER_S):
            heard = await client.send(probe)
    except Refused as error:
        return _report.problem(
            f"the broker lets {agent} in, but not speak: {error}",
            f"give the agent a certificate (or user) named {agent}, and see the broker's acl: a "
            f"device may write below {probe.address.rpartition('/')[0]}/ of its own name",
        )
    except (LinkDown, TimeoutError):
        return _report.problem(
            f"the broker let {agent} in and hung up: {client.problem}",
            f"see whether another client goes by the name {agent}, and the broker's log",
        )
    if not heard:
        return _report.warning(
            f"{agent} may speak and listen, but no bridge hears it",
            "start a bridge (tidegate bridge), or see that its mqtt.namespace is the same",
        )
    return _report.ok(f"{agent} may speak and listen, and a bridge hears it")


def _not_let_in(problem: str, agent: str) -> Finding:
    if "subscription" in problem:
        fix = f"see the broker's acl: {agent} must be able to read what is below its own name"
    elif "refuses" in problem:
        fix = (
            "correct mqtt.username and mqtt.password_file (or have the certificate of "
            f"mqtt.cert_file made for {agent}), as the broker knows them"
        )
    else:
        fix = (
            "see the broker's log; a listener with TLS wants mqtts:// in mqtt.url, and one that "
            "asks for certificates mqtt.cert_file"
        )
    return _report.problem(f"the broker does not let {agent} in: {problem}", fix)


def _nothing(incoming: Incoming) -> None:
    """Leave incoming messages to the agent: what is not acknowledged comes again."""
