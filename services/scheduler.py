"""`tidegate scheduler`: leads the cells it is given, and stands by for the others."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from bus.clock import Clock, SystemClock
from bus.contract import BusError, Fenced
from bus.options import KafkaOptions
from bus.signing import Signer
from scheduler import garbage
from scheduler.service_config import ServiceConfig
from scheduler.service_options import SOURCE_RATES, ServiceOptions
from services.backends import join, kafka_of, open_bus_of
from services.cell_leadership import CellLeadership, LeaderTerm
from services.config import Config
from services.logs import Log
from services.metrics import Sample
from services.process import serve

#: The consumer group in which all schedulers of a cluster share the cells.
GROUP = "tidegate-scheduler"
#: How long to wait after a failure of the SQLite file.
RETRY_S = 2.0


def main(config: Config) -> int:
    """Run a scheduler until it is told to end; give the exit code."""
    section = config.scheduler
    section.check_policy()  # an unknown one must fail now, not when it leads
    signer = None
    if section.signing_key_file is not None:
        signer = Signer.from_file(section.signing_key_id, section.signing_key_file)
    options, clock = kafka_of(config), SystemClock()
    garbage.put_off()

    def make(log: Log) -> "SchedulerRole":
        if signer is None:
            log.warning("commands are not signed; set scheduler.signing_key_file")
        if options is not None and section.takes_unsigned:
            log.warning("anybody on the bus may submit and cancel; see scheduler.trusted_gateways")
        return SchedulerRole(config, options, clock, signer, log)

    return serve("scheduler", section.name, config, make)


class SchedulerRole:
    """Leads cells: with Kafka those that its group assigns, else the one of the SQLite file."""

    def __init__(
        self,
        config: Config,
        options: KafkaOptions | None,
        clock: Clock,
        signer: Signer | None,
        log: Log,
    ) -> None:
        names = (config.cell,) if options is None else options.cells
        self._log = log
        self._cells: dict[str, CellLeadership] = {}
        for name in names:
            open_bus = partial(open_bus_of, config, options, clock, name)
            self._cells[name] = CellLeadership(_service(config, name), open_bus, clock, signer, log)
        self._group = None
        if options is not None:
            self._group = join(options, clock, GROUP, config.scheduler.name)
        self._term: LeaderTerm | None = None
        self._stopping = False

    async def run(self) -> None:
        if self._group is not None:
            await self._group.run(lambda cell: self._cells[cell].new_term())
            return
        (cell,) = self._cells.values()
        opened = False
        while not self._stopping:
            try:
                self._term = cell.new_term()
                opened = True
                await self._term.run()
            except Fenced:
                # The later one leads; taking the cell back would only repeat the takeover.
                raise BusError(
                    f"another scheduler took cell {cell.config.cell} over; without Kafka only one "
                    "may run"
                ) from None
            except BusError:
                if not opened:  # a wrong path, or no log of ours: waiting would not say so
                    raise
                await asyncio.sleep(RETRY_S)

    def stop(self) -> None:
        self._stopping = True
        if self._group is not None:
            self._group.stop()
        elif self._term is not None:
            self._term.stop()

    async def refresh(self) -> None:
        for cell in list(self._cells.values()):
            await cell.refresh()

    def problems(self) -> list[str]:
        owned = self._cells if self._group is None else self._group.owned
        asked = [self._cells[name].problem for name in owned]
        found = [problem for problem in asked if problem]
        if self._group is not None and not self._group.joined:
            found.append("not yet a member of the schedulers' group")
        if found and self._group is not None and self._group.trouble:
            found.append(self._group.trouble)  # of the past, once all is well
        return found

    def details(self) -> dict[str, object]:
        leads = [name for name, cell in self._cells.items() if cell.leads]
        return {"leads": leads, "stands_by": [name for name in self._cells if name not in leads]}

    def samples(self) -> Iterable[Sample]:
        cells = list(self._cells.values())
        yield Sample("tidegate_takeovers_total", sum(cell.takeovers for cell in cells))
        for cell in cells:
            yield from cell.samples()


def _service(config: Config, cell: str) -> ServiceConfig:
    section, on_file = config.scheduler, config.bus.startswith("sqlite:")
    rates = replace(SOURCE_RATES, rate_per_s=section.source_rate_per_s, burst=section.source_burst)
    return ServiceConfig(
        **{name: getattr(section, name) for name in ServiceOptions.model_fields},
        cell=cell,
        rates=rates,
        pools=section.pool_rules(on_file=on_file),
        gateways=section.gateways(on_file=on_file),
        accept_unsigned=section.takes_unsigned,
    )
