"""How the figures of docs/results' index are worked out from the raw files of its claims.

Each function takes the raw files that its claim names, in their order, and gives the words of one
cell of the table.
"""

from collections.abc import Callable, Mapping
from typing import Any

#: A raw file, or the part of one that holds several runs, as read.
Raw = Mapping[str, Any]


def of(rows: list[Raw], **wanted: Any) -> Raw:
    """Give the one row that has these values."""
    (found,) = (row for row in rows if all(row[name] == value for name, value in wanted.items()))
    return found


def percent(part: float, digits: int = 1) -> str:
    return signed(100 * part, digits) + " %"


def signed(number: float, digits: int = 1) -> str:
    """Write a number with its sign, and none if it is shown as 0."""
    shown = round(number, digits)
    return f"{shown:+.{digits}f}" if shown else f"{0:.{digits}f}"


def day(raw: Raw) -> str:
    hours: dict[str, list[float]] = {}
    for row in raw["rows"]:
        hours.setdefault(row["policy"], []).append(row["mean_spent_s"] / 3600.0)
    means = {policy: sum(each) / len(each) for policy, each in hours.items()}
    ours = means.pop("tide")
    best = min(means, key=lambda policy: means[policy])
    return f"{ours:.2f}; `{best}` {means[best]:.2f}"


def against_pollux(policy: str) -> Callable[[Raw], str]:
    return lambda raw: percent(of(raw["runs"], policy=policy)["against_published_pollux"])


def fresh(raw: Raw) -> str:
    return percent(of(raw["runs"], policy="tide-unknown")["against_pollux_here"])


def longest_mean(*raws: Raw) -> str:
    return percent(max(row["against_nothing"] for raw in raws for row in raw["runs"]))


def deadlines_lost(*raws: Raw) -> str:
    lost = max(-row["met_more"] for raw in raws for row in raw["runs"])
    return f"{max(lost, 0)} of {raws[0]['runs'][0]['deadlines']:,} at worst"


def several_agents(now: Raw, before: Raw, peers: Raw) -> str:
    def mean_s(raw: Raw, agents: int, **which: str) -> float:
        return float(of(raw["runs"], agents=agents, **which)["mean_jct_s"])

    shortest_s = min(
        row["mean_jct_s"] for row in peers["runs"] if row["agents"] == 4 and row["policy"] != "tide"
    )
    costs, did = (mean_s(raw, 4) / mean_s(raw, 1) - 1 for raw in (now, before))
    return f"{percent(costs)} (before: {percent(did)}); {percent(mean_s(now, 4) / shortest_s - 1)}"


def gangs_of_types(*raws: Raw) -> str:
    """How far the mean of `tide` is from the best other's, where peers are in several files."""
    return gpu_types({"rows": [row for raw in raws for row in raw["rows"]]})


def gpu_types(*raws: Raw) -> str:
    """How far the mean of `tide` is from the best other's, at each rate of jobs."""
    said = []
    for raw in raws:
        for rate_h in sorted({row["rate_h"] for row in raw["rows"]}):
            hours: dict[str, float] = {}
            for row in raw["rows"]:
                if row["rate_h"] == rate_h:
                    hours[row["policy"]] = hours.get(row["policy"], 0.0) + row["mean_jct_h"]
            ours = hours.pop("tide")
            best = min(hours, key=lambda policy: hours[policy])
            said.append(f"{percent(ours / hours[best] - 1)} (`{best}`)")
    return ", ".join(said)


def on_sias(*raws: Raw) -> str:
    """How far the mean of `tide` is from the best other's on Sia's workloads, of each set."""
    said = []
    for raw in raws:
        mean_s: dict[str, float] = {}
        for row in raw["rows"]:
            mean_s[row["policy"]] = mean_s.get(row["policy"], 0.0) + row["mean_jct_s"]
        ours = mean_s.pop("tide")
        best = min(mean_s, key=lambda policy: mean_s[policy])
        said.append(f"{percent(ours / mean_s[best] - 1)} (`{best}`)")
    return ", ".join(said)


def tail(raw: Raw) -> str:
    """How far `tide`, as it is by default, is from the best of both."""
    run = of(raw["runs"], policy="tide:patience_s=21600")
    return f"{percent(run['p99_above_rights'])}; {percent(run['mean_above_best'])}"


def broken(peers: Raw, own: Raw) -> str:
    theirs = [row for row in peers["runs"] if row["policy"] == "elasticflow"]
    ours, elasticflow = (
        sum(row["promises_broken"] for row in rows) for rows in (own["runs"], theirs)
    )
    return f"{ours}; `elasticflow` {elasticflow:,}"


def closed(peers: Raw, own: Raw) -> str:
    """Average the part of the gap to both bounds that `tide` closes, where there is one."""
    parts: dict[str, list[float]] = {"bound": [], "alone": []}
    for one in own["runs"]:
        same = {"trace": one["trace"], "nodes": one["nodes"]}
        best = max(
            of(peers["runs"], policy=name, **same)["ratio"] for name in ("elasticflow", "edgeflow")
        )
        for bound, found in parts.items():
            if (one[bound] - best) * one["jobs"] > 0.5:  # figures of peers are rounded
                found.append((one["ratio"] - best) / (one[bound] - best))
    count = len(parts["bound"])
    together, alone = (f"{100 * sum(found) / len(found):.0f} %" for found in parts.values())
    return f"{together} on average of {count} cases; {alone} of the gap to each job alone"


def closed_elsewhere(*raws: Raw) -> str:
    """Do the same where all policies are in the same files."""
    rows = [row for raw in raws for row in raw["runs"]]
    return closed({"runs": rows}, {"runs": [row for row in rows if row["policy"] == "tide"]})


def paid(*raws: Raw) -> str:
    return ", ".join(f"{100 * of(raw['rows'], policy='tide')['paid']:.0f} %" for raw in raws)


def paid_mean(*raws: Raw) -> str:
    parts = [of(raw["rows"], policy="tide")["paid"] for raw in raws]
    return f"{100 * sum(parts) / len(parts):.0f} % on average of {len(parts)} seeds"


def mean_s(raw: Raw) -> str:
    return f"{sum(row['mean_jct_s'] for row in raw['rows']) / len(raw['rows']):,.0f} s"


def reclaims(raw: Raw) -> str:
    return percent(of(raw["ratios"], answer="mended")["preemptions"] - 1)


def captured(raw: Raw) -> str:
    parts = [100 * row["captured"] for row in raw["rows"]]
    return f"{min(parts):.1f} to {max(parts):.1f} %"


def rebuilt(raw: Raw) -> str:
    rows = [of(raw["pollux"]["policies"], policy=p) for p in ("tiresias", "optimus", "pollux")]
    return ", ".join(percent(row["measured"] / row["published"] - 1) for row in rows)


def chaos(raw: Raw) -> str:
    return f"{raw['lost']} of {raw['events_accepted']:,}, {raw['double_effects']} twice"


def chaos_real(raw: Raw) -> str:
    return f"{raw['steps_lost']} of {raw['steps']:,}, {raw['double_effects']} twice"


def moved(raw: Raw) -> str:
    return f"{raw['steps_lost']} and {raw['steps_repeated']} of {raw['steps']:,}"


def agent_memory(raw: Raw) -> str:
    return f"{raw['figures']['agent_nvml_rss_mib']:.1f} MiB"


def best_with_loans(*raws: Raw) -> str:
    """Name who is shortest with loans in each file, and the mean."""
    best = [min(raw["rows"], key=lambda row: row["lent"]["mean_jct_s"]) for raw in raws]
    return ", ".join(f"`{row['policy']}` {row['lent']['mean_jct_s']:,.0f} s" for row in best)


def aryl(*raws: Raw) -> str:
    return ", ".join(f"{of(raw['rows'], policy='aryl')['jct_ratio']:.2f}x" for raw in raws)


def against_fifo(raw: Raw) -> str:
    """How many times as long jobs queue, and take, under `fifo` as with loans."""
    return "; ".join(
        f"`{row['policy']}` {row['queueing_ratio']:.0f}x, {row['jct_ratio']:.2f}x"
        for row in raw["rows"]
        if row["policy"] != "fifo"
    )


def least_lead(*raws: Raw) -> str:
    """Give by how many points `tide` is above `edgeflow` where it is least so."""
    met: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in (row for raw in raws for row in raw["rows"]):
        place = tuple(row[name] for name in ("servers", "load", "gpus", "pause_s", "speed"))
        met.setdefault(place, {}).setdefault(row["policy"], []).append(row["deadline_ratio"])
    leads = [
        sum(by["tide"]) / len(by["tide"]) - sum(by["edgeflow"]) / len(by["edgeflow"])
        for by in met.values()
    ]
    return f"{signed(100 * min(leads))} points at least"


def growth(raw: Raw) -> str:
    """Give by how much the mean of `tide` grows with a failure of each node in 12 hours."""

    def mean(often: str | float) -> float:
        rows = [r for r in raw["runs"] if r["policy"] == "tide" and r["mtbf_h"] == often]
        return float(sum(row["mean_jct_s"] for row in rows) / len(rows))

    often = next(row["mtbf_h"] for row in raw["runs"] if str(row["mtbf_h"]).startswith("12"))
    return percent(mean(often) / mean("never") - 1)


def decision(raw: Raw) -> str:
    row = of(raw["rows"], gpus=2_048, jobs=400, mode="steady")
    return f"{row['cpu_ms']:.1f} / {row['cpu_p99_ms']:.1f} ms"


def measured(name: str, unit: str) -> Callable[[Raw], str]:
    return lambda raw: f"{round(raw['figures'][name], -2):,.0f} {unit}"


def days(raw: Raw) -> str:
    return f"{of(raw['rows'], policy='tide')['cpu_s']:.0f} s of CPU"


def kafka_publish(raw: Raw) -> str:
    found = raw["figures"]
    return f"{found['kafka_publish_per_s'] / found['raw_aiokafka_publish_per_s']:.2f}"


def commands(raw: Raw) -> str:
    own = "multiplexed_1000_devices_at_1000_per_s_event_to_command"
    return (
        " / ".join(f"{raw['figures'][f'{own}_{part}_ms']:.0f}" for part in ("p50", "p99")) + " ms"
    )


def cycle(raw: Raw) -> str:
    cell = of(raw["cells"], nodes=10_000, jobs=50_000)["steady"]
    return f"{cell['cycle_p50_s']:.1f} s median, {cell['cycle_p99_s']:.1f} s p99"


def source(raw: Raw) -> str:
    return f"{of(raw['sources'], sources=100_000)['next_us']} us"


def storms(raw: Raw) -> str:
    return f"{raw['broken']} of {raw['seeds']:,}"


def gpu_shared(raw: Raw) -> str:
    """Who was seen on a GPU, and what its job lost."""
    seen = raw["figures"]
    at_once = seen["looks_with_owner_and_job_at_once"]
    return f"{at_once} of {seen['looks']:,} looks; {seen['steps_lost']} of {seen['steps']:,}"


def gpu_answer(raw: Raw) -> str:
    """How long users wait for a GPU that is lent."""
    return f"{raw['figures']['reclaim']['first_answer_s']} s"


def gateway_kills(raw: Raw) -> str:
    return f"{len(raw['problems'])} of {raw['requests']:,}, {raw['gateways_killed']} kills"


def twenty_days(raw: Raw) -> str:
    third, end = raw["memory"][len(raw["memory"]) // 3], raw["memory"][-1]
    return "; ".join(
        f"{third[who]:.0f}, {end[who]:.0f} MiB" for who in ("demo_rss_mib", "gateway_rss_mib")
    )


def control_error(raw: Raw) -> str:
    pairs = [one["recorded_and_control"] for one in raw["nights"]]
    done, deadlines = (
        max(abs(one[part][1] - one[part][0]) for one in pairs) for part in ("done", "deadlines_met")
    )
    used = max(abs(one["used_gpu_h"][1] / one["used_gpu_h"][0] - 1) for one in pairs)
    return f"{done}, {deadlines}, {percent(used)}"


def seek(raw: Raw) -> str:
    return f"{raw['gateway_seek_p50_ms']:.0f} / {raw['gateway_seek_p95_ms']:.0f} ms"


def viewers(raw: Raw) -> str:
    now, past = (
        raw[f"gateway_{what}_1000_streams_p95_ms"] for what in ("overview", "past_overview")
    )
    return f"{now:.0f} / {past:.0f} ms"


def large_gateway(raw: Raw) -> str:
    now, past = (raw[f"cell_{what}_p95_ms"] for what in ("overview", "past"))
    return f"{raw['cell_peak_mib'] / 1024:.1f} GiB; {now:.0f} ms, {past:,.0f} ms"


def console_arrives(raw: Raw) -> str:
    return _p95(raw, "paint_first", "paint_figures")


def console_seeks(raw: Raw) -> str:
    return _p95(raw, "seek_far", "seek_near", "seek_step")


def console_draws(raw: Raw) -> str:
    return _p95(raw, "fleet_repaint", "scroll_frame")


def console_memory(raw: Raw) -> str:
    return f"{raw['server_peak_mib'] / 1024:.1f} GiB, {raw['page_jobs_heap_mib']:.0f} MiB"


def _p95(raw: Raw, *names: str) -> str:
    return " / ".join(f"{raw[f'{name}_p95_ms']:,.0f}" for name in names) + " ms"


def requests(raw: Raw) -> str:
    return "; ".join(
        f"{raw[f'{bus}_p50_ms']:.0f} / {raw[f'{bus}_p99_ms']:.0f} ms" for bus in ("sqlite", "kafka")
    )
