"""`tidegate logs`: what a worker of a job writes, sent by its agent while somebody reads."""

import asyncio
import secrets
from dataclasses import dataclass
from typing import Annotated

import typer

from console.forms import reads
from console.job_output import Output
from console.output import fail, say
from console.source import Away, Source, Wire, job_of
from explain.rows import JobRow
from scheduler.core.transitions import TERMINAL
from schemas.logs import LogChunk
from schemas.requests import ReadLog

#: Unless more is asked for, so much of the end: what an agent sends in a second.
TAIL_BYTES = 256 * 1024
_ALL = 2**53
#: A scheduler lets nobody read longer than 60 s without asking again.
_RENEW_S = 40.0
#: An agent that is in contact has sent something by then, or said why not.
_SILENT_S = 15.0
#: One that has begun to send goes on within this, over a slow line too, or ends.
_GONE_S = 60.0
_LOOK_S, _RETRY_S = 0.2, 2.0


@reads
def logs(
    at: Source,
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, until it ends.")
    ] = False,
    rank: Annotated[int, typer.Option(min=0, max=65_535, help="Which worker of its gang.")] = 0,
    tail: Annotated[
        int, typer.Option(min=0, metavar="BYTES", help="How much of its end; 0: all there is.")
    ] = TAIL_BYTES,
    raw: Annotated[
        bool, typer.Option("--raw", help="Leave in what controls a terminal, such as colours.")
    ] = False,
) -> None:
    """Print what a job's worker writes; its agent sends it, wherever it runs.

    Example: tidegate logs job-0042 -f --log run.db
    """
    known = job_of(at, job)
    wire = at.wire(job)
    if known.first_start_s is None and known.state in TERMINAL:
        fail(f"{job} never ran, so there is no log of it; it is {known.state}.", code=1)
    if known.first_start_s is None:
        fail(f"{job} has not run yet; `tidegate why {job}` says what it waits for.", code=1)
    output = Output(raw=raw)
    reading = _Reading(wire, at, job, rank, follow=follow, position=-tail)
    try:
        asyncio.run(reading.print_to(output))
    finally:
        output.write(b"", final=True)


@dataclass(slots=True)
class _Reading:
    """One reading of a log."""

    wire: Wire
    at: Source
    job: str
    rank: int
    follow: bool
    position: int  #: Where to go on; negative: from the end.
    epoch: int = -1  #: Of the run that is read.
    waits: bool = False  #: Somebody was told that it waits for a worker.

    async def print_to(self, output: Output) -> None:
        """Print until the log ends, of which `follow` reads one run after the other."""
        away = False
        try:
            while True:
                try:
                    if await self._one_run(output):
                        return
                    away = False
                except Away as error:  # a gateway that is started again, say
                    if not self.follow or self.epoch < 0:
                        fail(f"{error}.")
                    if not away:
                        say(f"[{error}; waiting for it]")
                    away = True
                    await asyncio.sleep(_RETRY_S)
        finally:
            await self.wire.close()

    async def _one_run(self, output: Output) -> bool:
        """Print one run's log; tell whether it was the last."""
        end = await self._run(output)
        if end.end == "busy" or (end.end == "missing" and not self.follow):
            fail(f"{self.job}: {end.note} (agent {end.agent}).", code=1)
        if end.end == "complete" and self.position == 0:
            say(f"{self.job}: its worker has written nothing.")
        if not self.follow:
            return True
        known = await self._next_run(end)
        if known.state in TERMINAL:
            say(f"{self.job} is {known.state}.")
        return known.state in TERMINAL

    async def _next_run(self, end: LogChunk) -> JobRow:
        """Wait for the next gang of the job, for the first word of this one, or for its end."""
        while True:
            known = await self.wire.job()
            if known is None:
                fail(f"{self.job}: the scheduler has forgotten it meanwhile.", code=1)
            if known.state in TERMINAL:
                if end.end == "missing":
                    fail(f"{self.job}: {end.note} (agent {end.agent}).", code=1)
                return known
            if end.end == "complete" and known.start_epoch > self.epoch and known.allocation:
                self.position = 0
                return known
            if not self.waits:
                say(f"{self.job} is {known.state}; waiting for its worker to write.")
                self.waits = end.end == "missing"
            await asyncio.sleep(_RETRY_S)
            if end.end == "missing":
                return known

    async def _run(self, output: Output) -> LogChunk:
        """Print one run's log; give the last piece."""
        reader = f"cli-{secrets.token_hex(8)}"
        time_s = asyncio.get_running_loop().time
        asked_s = heard_s = float("-inf")
        offset, heard = await self.wire.end(), False
        while True:
            if time_s() > asked_s + _RENEW_S:
                asked_s = time_s()
                await self._ask(reader)
                heard_s = time_s() if not heard else heard_s
            pieces, offset = await self.wire.pieces(offset, reader)
            for chunk in pieces:
                self._print(chunk, output)
                heard, heard_s = True, time_s()
                if chunk.end == "expired":
                    asked_s = float("-inf")
                elif chunk.end is not None:
                    return chunk
            if heard and not self.follow and time_s() > heard_s + _GONE_S:
                fail(
                    f"{self.job}: its agent sends no more, and this may not be all; "
                    "`tidegate nodes` shows whether it is in contact.",
                    code=1,
                )
            if not heard and time_s() > heard_s + _SILENT_S:
                fail(
                    f"{self.job}: its agent does not answer; `tidegate nodes` shows "
                    "whether it is in contact, and one of an older release sends no logs.",
                    code=1,
                )
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, reader: str) -> None:
        args = ReadLog(
            job=self.job,
            rank=self.rank,
            reader=reader,
            from_byte=self.position,
            max_bytes=_ALL,
            follow=self.follow,
            until_s=self.at.now_s + 1.5 * _RENEW_S,
        )
        if refused := await self.wire.ask(args):
            fail(f"The scheduler refused it: {refused}.", code=1)

    def _print(self, chunk: LogChunk, output: Output) -> None:
        if chunk.end == "missing":
            return
        data = chunk.written
        if self.epoch >= 0 and chunk.epoch != self.epoch:
            say(f"[the job was started again: epoch {chunk.epoch}]")
        elif self.position >= 0:
            data = data[max(0, self.position - chunk.offset) :]
        if chunk.note and chunk.epoch != self.epoch:
            say(f"[{chunk.note}]")
        if chunk.skipped:
            say(f"[{chunk.skipped} bytes before this are not kept any more]")
        elif self.position < 0 and chunk.offset:
            say(f"[{chunk.offset} bytes before this; --tail 0 prints all]")
        end = chunk.offset + len(chunk.written)
        # A piece may come again after those that follow it.
        self.position = max(self.position, end) if chunk.epoch == self.epoch else end
        self.epoch = chunk.epoch
        output.write(data)
