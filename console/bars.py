"""Bars of characters, told apart by shape as well as by colour."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from scheduler.core.state import ClusterState, Node
from scheduler.core.transitions import LoanState, NodeState

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Use:
    """One way that a GPU is used."""

    name: str
    mark: str
    style: str


TRAINING = Use("training", "█", "green")
SERVING = Use("serving", "▓", "blue")
LENT = Use("lent, free", "▒", "yellow")
IDLE = Use("idle", "░", "bright_black")
LEAVING = Use("going back", "▚", "magenta")
SILENT = Use("silent", "?", "red")
#: Of one node only the owner knows which GPUs serve and which are idle.
OWNED = Use("its owner's", "▓", "blue")
#: In the order in which bars show them.
USES = (SERVING, TRAINING, LEAVING, LENT, IDLE, SILENT)


def progress(share: float, width: int, style: str = "green") -> Text:
    """Draw how much of a whole is done."""
    share = min(max(share, 0.0), 1.0)
    eighths = int(share * width * 8)
    full, part = divmod(eighths, 8)
    done = "█" * full + (_EIGHTHS[part] if part else "")
    text = Text(done, style)
    text.append("·" * (width - len(done)), "bright_black")
    return text


def sparkline(values: Sequence[float | None], top: float) -> str:
    """Draw a row of heights from 0 to `top`; a space where nothing is known."""
    return "".join(
        " "
        if value is None
        else _LEVELS[min(7, max(0, int(value / top * 8 - 1e-9)))]
        if top > 0
        else _LEVELS[0]
        for value in values
    )


def uses_of_node(node: Node) -> dict[Use, int]:
    """Count a node's GPUs by use, without its owner's own."""
    held = sum(holder is not None for holder in node.holder)
    free = node.gpu_count - held
    if node.state is not NodeState.ALIVE:
        return {SILENT: node.gpu_count}
    if node.loan_state in (LoanState.RECLAIMING, LoanState.RETURNING):
        return {LEAVING: node.gpu_count}
    if node.loan_state is LoanState.LENT:
        return {TRAINING: held, LENT: free}
    return {TRAINING: held, IDLE: free}


def uses_of_pool(state: ClusterState, pool: str) -> dict[Use, int]:
    """Count a pool's GPUs by use."""
    found = dict.fromkeys(USES, 0)
    nodes = [state.nodes[name] for name in state.pools[pool].nodes]
    for node in nodes:
        for use, count in uses_of_node(node).items():
            found[use] += count
    if state.pools[pool].kind != "training":
        names = [pool, *(node.id for node in nodes)]
        need = sum(state.lenders[n].gpus_needed for n in names if n in state.lenders)
        # What owners need and their own idle GPUs can serve; edge owners use all or nothing.
        serving = min(found[IDLE], round(need))
        found[SERVING] += serving
        found[IDLE] -= serving
    return found


def bar(uses: dict[Use, int], width: int) -> Text:
    """Draw GPUs by use, one mark each, or shared out over `width` if they are more."""
    total = sum(uses.values())
    if total == 0:
        return Text("no GPUs", "dim")
    text = Text()
    shown = [*USES, *(use for use in uses if use not in USES)]
    for use, count in zip(shown, _shares([uses.get(use, 0) for use in shown], width), strict=True):
        text.append(use.mark * count, use.style)
    return text


def _shares(counts: list[int], width: int) -> list[int]:
    """Share out `width` marks by largest remainder; whoever has any gets one, if there is room."""
    total = sum(counts)
    if total <= width:
        return counts
    exact = [count * width / total for count in counts]
    marks = [max(int(share), count > 0) for share, count in zip(exact, counts, strict=True)]
    order = sorted(range(len(counts)), key=lambda i: (marks[i] - exact[i], i))
    for index in order:
        if sum(marks) < width and counts[index]:
            marks[index] += 1
    while sum(marks) > width:
        largest = max(range(len(marks)), key=lambda i: (marks[i], -i))
        marks[largest] -= 1
    return marks


def legend(uses: Sequence[Use] = USES) -> Text:
    """Say what the marks mean."""
    text = Text()
    for use in uses:
        text.append(f"{use.mark} ", use.style)
        text.append(f"{use.name}  ", "dim")
    return text
