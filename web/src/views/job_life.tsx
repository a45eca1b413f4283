/** Where a job was, when and how large, and where it waited: a Gantt over its pools. */
import { useMemo } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { clock, count, duration, moment, plural } from "../format.ts";
import { type Bar, Gantt, type Mark } from "../gantt.tsx";
import { head } from "../live.ts";
import { showTime } from "../moments.ts";
import { Card, Empty, ProblemNote, Table, Waiting } from "../parts.tsx";
import { isPast, route } from "../route.ts";

type Why = Schemas["WhyDocument"];
type Stay = Schemas["Stay"];
const WAITS = "waits";
/** Room after what is newest. */
const AFTER = 0.03;

export function Life({ id, why }: { id: string; why: Why }) {
  const { cell } = route.value;
  const newest = { timeless: true, again: head.value?.entry } as const;
  const pools = useData("/api/v1/overview", {}, { apartMs: 10_000, calm: true }).data?.pools;
  const { data: stays, problem } = useData("/api/v1/jobs/{job}/stays", { job: id, cell }, newest);
  // In the past, what the waits of the whole log were is asked for as well.
  const later = useData("/api/v1/jobs/{job}/why", { job: id, cell }, { ...newest, off: !isPast.value }).data;
  const whole = isPast.value && later !== null ? later : why;
  const drawn = useMemo(() => {
    if (stays === null) return null;
    const lenders = new Set((pools ?? []).filter((one) => one.kind !== "training").map((one) => one.pool));
    return picture(stays.stays, whole, lenders);
  }, [stays, whole, pools]);
  if (stays === null || drawn === null) {
    return (
      <Card title="Where it was" class="life">
        {problem === null ? <Waiting /> : <ProblemNote of={problem} />}
      </Card>
    );
  }
  return (
    <Card
      title="Where it was"
      class="life"
      aside={
        <ul class="legend">
          <li>
            <span class="swatch own" aria-hidden="true" /> training’s own GPUs
          </li>
          <li>
            <span class="swatch lent" aria-hidden="true" /> on loan
          </li>
          <li>
            <span class="swatch waits" aria-hidden="true" /> waits
          </li>
        </ul>
      }
    >
      {drawn.bars.length === 0 ? (
        <Empty title="It was on no GPUs yet, and waited nowhere." />
      ) : (
        <>
          <Gantt
            {...drawn}
            now_s={isPast.value ? why.now_s : null}
            label={`${plural(stays.stays.length, "stay")} of ${id} on GPUs, and ${plural(whole.waits.length, "wait")}; the table below has each.`}
            onPick={(at_s) => showTime(at_s, false)}
          />
          <details class="as-table">
            <summary>The same as a table</summary>
            <StaysTable stays={stays.stays} />
          </details>
        </>
      )}
    </Card>
  );
}

function picture(stays: readonly Stay[], why: Why, lenders: ReadonlySet<string>) {
  const names = [...new Set(stays.map((one) => one.pool))].sort(
    (a, b) => Number(lenders.has(a)) - Number(lenders.has(b)) || a.localeCompare(b),
  );
  const rows = [...names, WAITS];
  const bars: Bar[] = stays.map((one) => {
    const until_s = one.until_s ?? why.now_s;
    return {
      row: names.indexOf(one.pool),
      begin_s: one.since_s,
      end_s: until_s,
      text: count(one.gpus),
      about: `${one.how} on ${plural(one.gpus, "GPU")} of ${one.pool} (${one.nodes.join(", ")}), ${clock(one.since_s)} to ${one.until_s === null ? "now" : clock(one.until_s)}: ${duration(until_s - one.since_s)}`,
      fill: lenders.has(one.pool) ? "--lent" : "--used",
    };
  });
  const waiting = (begin_s: number, end_s: number, sentence: string | null): Bar => ({
    row: names.length, begin_s, end_s, text: "", fill: "--queue", hatched: true,
    about: `waited ${duration(end_s - begin_s)} from ${clock(begin_s)}${sentence === null ? "" : `: ${sentence}`}`,
  });
  for (const one of why.waits) bars.push(waiting(one.begin_s, one.end_s, one.sentence));
  if (why.state === "queued") bars.push(waiting(why.since_s, why.now_s, why.because?.sentence ?? null));
  const begins = bars.map((one) => one.begin_s);
  const ends = bars.map((one) => one.end_s);
  const begin_s = Math.min(...begins);
  const last_s = Math.max(...ends);
  const deadline_s = (why.spec as { deadline_s?: number | null }).deadline_s ?? null;
  const span_s = Math.max(60, last_s - begin_s);
  const near = deadline_s !== null && deadline_s < last_s + span_s / 2;
  const end_s = Math.max(last_s, near ? deadline_s : 0) + span_s * AFTER;
  const marks: Mark[] = deadline_s === null ? [] : [{ at_s: deadline_s, text: "deadline", stroke: "--bad" }];
  return { rows, bars, marks, begin_s, end_s };
}

function StaysTable({ stays }: { stays: readonly Stay[] }) {
  return (
    <Table label="Stays as a table" head={["from", "to", "how", "pool", "#GPUs", "nodes"]}>
      {stays.map((one) => (
        <tr key={one.since_s}>
          <td>{moment(one.since_s)}</td>
          <td>{one.until_s === null ? "now" : moment(one.until_s)}</td>
          <td>{one.how}</td>
          <td>{one.pool}</td>
          <td class="number">{count(one.gpus)}</td>
          <td>{one.nodes.join(", ")}</td>
        </tr>
      ))}
    </Table>
  );
}
