"""Draw the live view of a recorded demo's day, so many hours after its noon.

`python docs/make_picture.py RUN.db HOURS OUT.svg`
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from bus.reading import open_log
from demo.live import LiveView
from explain.moments import DEMO_START_S
from scheduler.core.engine import Engine
from scheduler.core.record import stimulus_from_dict
from scheduler.core.state import ClusterState
from scheduler.policies.registry import make_policy
from schemas.journal import decode_entry
from schemas.parse import Rejected
from schemas.topics import JOURNAL
from simulator.scenario import first_hour

#: The fonts that rich names would be fetched from afar by whoever looks at the picture.
_REMOTE_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def main(log: str, hour: str, out: str) -> None:
    """Decide the log again up to the hour, showing every decision to the view, and draw it."""
    start_s = DEMO_START_S + 3600.0 * first_hour(24.0)
    until_s = start_s + float(hour) * 3600.0
    view = LiveView("Tidegate · tide", start_s, start_s + 86_400.0)
    engine = Engine(ClusterState(), make_policy)
    console = Console(record=True, width=118, height=36, file=io.StringIO())
    with open_log(log) as opened:
        for record in opened.records(JOURNAL.name):
            entry = decode_entry(record.value or b"")
            if isinstance(entry, Rejected):
                raise SystemExit(f"{log}: {entry.reason}")
            if entry.at_s > until_s:
                break
            stimulus = stimulus_from_dict(entry.stimulus)
            decision = engine.handle(stimulus)
            view.note(stimulus, decision)
            view.render(engine.state)
    console.print(view.render(engine.state))
    picture = _REMOTE_FONT.sub("", console.export_svg(title="make demo"))
    Path(out).write_text(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
