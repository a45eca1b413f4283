/** The tide: what owners need and have, what is lent, and what training makes of it. */
import { useMemo, useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { Chart } from "../chart.tsx";
import { useData } from "../data.ts";
import { foreseen } from "../foreseen.ts";
import { clock, count, figure, moment } from "../format.ts";
import { head } from "../live.ts";
import { showTime } from "../moments.ts";
import { Card, Empty, Figures, Loaded, Table, type Figure } from "../parts.tsx";
import { isPast, route } from "../route.ts";
import { ended } from "../states.ts";
import { Attention } from "./attention.tsx";
import { Lately } from "./lately.tsx";

type Rows = readonly Schemas["TideRow"][];
const GROUP = "tide";

export function Tide() {
  const overview = useData("/api/v1/overview");
  // The picture is of the whole log, also in the past: what came later is drawn dim.
  const { cell } = route.value;
  const tide = useData(
    "/api/v1/tide",
    { cell, points: 700 },
    { timeless: true, again: head.value?.entry, apartMs: 1000 },
  );
  // Rows are five minutes apart; the last one of an answer is of its very moment.
  const then = useData("/api/v1/tide", { points: 2 }, { apartMs: 5000, off: !isPast.value });
  const ahead = useData("/api/v1/tide", { points: 2, forecast: "true" }, { apartMs: 5000, calm: true });
  return (
    <div class="stack">
      <Loaded of={overview}>{(data) => <Strip of={data} />}</Loaded>
      <div class="beside">
        <Loaded of={tide}>
        {(data) =>
          data.rows.length < 2 ? (
            <Card title="The tide">
              <Empty title="Nothing has happened yet.">
                Submit a job: <code>tidegate submit --model resnet50 --gpus 1..4 --steps 1000 --rate 1=300</code>
              </Empty>
            </Card>
          ) : (
            <Picture
              rows={data.rows}
              complete={data.complete}
              then={isPast.value ? (then.data?.rows.at(-1) ?? null) : null}
              ahead={ahead.data}
            />
          )
        }
      </Loaded>
        <div class="stack">
          <Attention overview={overview.data} />
          <Lately />
        </div>
      </div>
    </div>
  );
}

function Strip({ of }: { of: Schemas["Overview"] }) {
  const { jobs, gpus, loans, deadlines } = of;
  const short_h = loans.inference_shortfall_gpu_s / 3600;
  const figures: Figure[] = [
    { label: "running", value: count(jobs["running"] ?? 0), note: `of ${count(living(jobs))} jobs` },
    { label: "queued", value: count(jobs["queued"] ?? 0) },
    { label: "GPUs in use", value: count(gpus.held), note: `of ${count(gpus.alive)}` },
    { label: "GPUs on loan", value: count(gpus.loaned) },
    { label: "loans · back again", value: `${count(loans.loans_granted)} · ${count(loans.loans_reclaimed)}` },
    { label: "back late", value: count(loans.reclaims_late), tone: loans.reclaims_late > 0 ? "bad" : "quiet" },
    { label: "owners short of", value: figure(short_h), note: "GPU h", tone: short_h >= 0.005 ? "bad" : "quiet" },
    { label: "deadlines kept", value: count(deadlines.met), note: `of ${count(deadlines.total)}` },
  ];
  return (
    <section class="card" aria-label="In numbers">
      <Figures of={figures} />
    </section>
  );
}

function living(jobs: Readonly<Record<string, number>>): number {
  return Object.entries(jobs).reduce((sum, [state, n]) => sum + (ended(state) ? 0 : n), 0);
}

interface PictureOf {
  rows: Rows;
  complete: boolean;
  then: Schemas["TideRow"] | null;
  /** Of the moment shown, with the forecast. */
  ahead: Schemas["TideAnswer"] | null;
}

function Picture({ rows, complete, then, ahead }: PictureOf) {
  const now_s = then?.at_s ?? null;
  const [pointed, setPointed] = useState<number | null>(null);
  const at = pointed === null ? (then ?? rows.at(-1)) : (rows[pointed] ?? rows.at(-1));
  const columns = useMemo(() => {
    const next = foreseen(ahead?.forecast ?? [], rows, ahead?.slot_s ?? 300, ahead?.now_s ?? 0);
    const empty = next.later.map(() => null);
    const of = (value: (row: Schemas["TideRow"]) => number) => [...rows.map(value), ...empty];
    const owned = of((row) => row.owned);
    const withUsed = of((row) => row.owned + row.lent - row.unused);
    const all = of((row) => row.owned + row.lent);
    return {
      x: [...rows.map((row) => row.at_s), ...next.later],
      owners: [owned, withUsed, all, of((row) => row.need), next.need, next.high],
      foresees: next.need.some((one) => one !== null),
      training: [of((row) => row.used)],
      queue: [of((row) => row.queue)],
      most: Math.max(...rows.map((row) => row.owned + row.lent)),
    };
  }, [rows, ahead]);
  if (at === undefined) return null;
  const shared = { x: columns.x, group: GROUP, now_s, onPoint: setPointed, onPick: (s: number) => showTime(s, false) };
  const before = pointed === null ? (now_s === null ? "now" : "then") : clock(at.at_s, false);
  return (
    <Card title="The tide" aside={<span>GPUs of owners and of training, {before} · click for that moment, drag to zoom, twice for all</span>}>
      {!complete && <p class="quiet">The index of the log is being built: what was earlier comes when it is done.</p>}
      <PanelTitle title="Owners’ GPUs">
        <Key kind="need line" name="need" value={figure(Math.round(at.need))} />
        {columns.foresees && <Key kind="forecast line" name="forecast, and with margin" value="" />}
        <Key kind="owned" name="theirs now" value={count(at.owned)} />
        <Key kind="lent" name="lent, used" value={count(at.lent - at.unused)} />
        <Key kind="unused" name="lent, unused" value={count(at.unused)} />
      </PanelTitle>
      <Chart
        {...shared}
        ys={columns.owners}
        height={230}
        max={columns.most}
        label={told(rows, at)}
        lines={[
          { label: "theirs", stroke: "--owned", width: 1, stepped: true, fill: "--owned-soft" },
          { label: "lent, used", stroke: "--lent", width: 1, stepped: true },
          { label: "lent", stroke: "--lent", width: 1, stepped: true },
          { label: "need", stroke: "--need", width: 2.25 },
          { label: "forecast", stroke: "--need", width: 1.5, dash: [5, 4] },
          { label: "with margin", stroke: "--need", width: 1, dash: [1, 3] },
        ]}
        between={[
          { upper: 1, lower: 0, fill: "--lent" },
          { upper: 2, lower: 1, fill: "--lent", hatched: true },
        ]}
      />
      <PanelTitle title="GPUs that jobs hold">
        <Key kind="used" name="training uses" value={count(at.used)} />
      </PanelTitle>
      <Chart
        {...shared}
        ys={columns.training}
        height={110}
        label={`GPUs that jobs hold, on loan or not: ${count(at.used)} at ${clock(at.at_s)}`}
        lines={[{ label: "used", stroke: "--used", width: 1.5, stepped: true, fill: "--used-soft" }]}
      />
      <PanelTitle title="Jobs that wait">
        <Key kind="queue" name="in the queue" value={count(at.queue)} />
      </PanelTitle>
      <Chart
        {...shared}
        ys={columns.queue}
        height={106}
        times
        label={`Jobs that wait: ${count(at.queue)} at ${clock(at.at_s)}`}
        lines={[{ label: "queue", stroke: "--queue", width: 1.5, stepped: true, fill: "--queue-soft" }]}
      />
      <AsTable rows={rows} />
    </Card>
  );
}

function told(rows: Rows, at: Schemas["TideRow"]): string {
  const most = Math.max(...rows.map((row) => row.lent));
  return (
    `Owners’ GPUs over time. At ${moment(at.at_s)} owners need ${Math.round(at.need)} and have ` +
    `${at.owned}; ${at.lent} are lent, ${at.unused} of them unused. At most ${most} were lent. ` +
    "The table below has every figure."
  );
}

function PanelTitle({ title, children }: { title: string; children: preact.ComponentChildren }) {
  return (
    <div class="panel-title">
      <h3>{title}</h3>
      <ul class="legend">{children}</ul>
    </div>
  );
}

function Key({ kind, name, value }: { kind: string; name: string; value: string }) {
  return (
    <li>
      <span class={`swatch ${kind.split(" ").reverse().join(" ")}`} aria-hidden="true" />
      {name} {value !== "" && <b>{value}</b>}
    </li>
  );
}

/** The same figures, for who reads rather than looks. */
function AsTable({ rows }: { rows: Rows }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="as-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open && (
        <Table
          label="The tide as a table"
          head={["when", "#need", "#theirs", "#lent", "#lent, unused", "#used by jobs", "#jobs that wait"]}
        >
          {[...rows].reverse().map((row) => (
            <tr key={row.at_s}>
              <th scope="row">{moment(row.at_s)}</th>
              {[row.need, row.owned, row.lent, row.unused, row.used, row.queue].map((value, place) => (
                <td key={place} class="number">
                  {figure(value)}
                </td>
              ))}
            </tr>
          ))}
        </Table>
      )}
    </details>
  );
}
