/** Jobs: chosen and sorted by the server, as the address says; with what may be done to many. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { useData } from "../data.ts";
import { clock, count, duration, figure, moment, percent, plural } from "../format.ts";
import { may } from "../me.ts";
import { Card, Empty, JobLink, Name, ProblemNote, Share, State, Waiting } from "../parts.tsx";
import { go, href, route } from "../route.ts";
import { useRows } from "../rows.ts";
import { ENDED, type JobRow, LIVING, MOVING, ended } from "../states.ts";
import { type Column, LongTable } from "../table.tsx";
import { SubmitLink } from "../submit/link.tsx";
import { JOB_VERBS, type JobVerb, askJobs } from "./job_verbs.ts";

const GROUPS: readonly { name: string; title: string; states: readonly string[] }[] = [
  { name: "", title: "living", states: LIVING },
  { name: "queued", title: "queued", states: ["queued"] },
  { name: "running", title: "running", states: ["running"] },
  { name: "moving", title: "on the move", states: MOVING },
  { name: "completed", title: "completed", states: ["completed"] },
  { name: "failed", title: "failed", states: ["failed"] },
  { name: "cancelled", title: "cancelled", states: ["cancelled"] },
  { name: "all", title: "all", states: [...LIVING, ...ENDED] },
];

export function Jobs() {
  const { query } = route.value;
  const group = GROUPS.find((one) => one.name === (query["state"] ?? "")) ?? GROUPS[0];
  const sort = query["sort"] ?? "-submitted";
  const params = {
    state: group?.name === "all" ? undefined : group?.states.join(),
    tenant: query["tenant"], pool: query["pool"], text: query["text"], sort,
    // The policy's own order costs it a look at the cell: it is asked for where it is all one looks at.
    position: group?.name === "queued" ? "true" : undefined,
  };
  const found = useRows<JobRow>("/api/v1/jobs", "jobs", params);
  // With their rows as they were: of a long list those far away are not kept.
  const [picked, setPicked] = useState<ReadonlyMap<string, JobRow>>(new Map());
  const chosen = useMemo(() => new Set(picked.keys()), [picked]);
  const asked = JSON.stringify([params, route.value.cell]);
  useEffect(() => setPicked(new Map()), [asked]);
  const byName = useMemo(() => new Map(found.rows.map((row) => [row.job, row])), [found.rows]);
  function choose(names: ReadonlySet<string>): void {
    const next = new Map<string, JobRow>();
    for (const name of names) {
      const row = byName.get(name) ?? picked.get(name);
      if (row !== undefined) next.set(name, row);
    }
    setPicked(next);
  }
  const filtered = ["tenant", "pool", "text"].some((name) => query[name] !== undefined);
  const verbs = JOB_VERBS.filter((one) => one.bulk && may(one.verb));
  // Rows are drawn anew only if the columns are: an hour is as fine as they tell time.
  const hour_s = Math.floor((found.now_s ?? 0) / 3600) * 3600;
  const shown = useMemo(() => columns(hour_s), [hour_s]);
  const rows = [...picked].map(([name, row]) => byName.get(name) ?? row);
  return (
    <Card
      title={
        <>
          Jobs <span class="quiet">{found.now_s === null ? "" : count(found.total)}</span>
        </>
      }
      aside={
        <>
          {found.newer && (
            <button type="button" onClick={found.again}>
              Newer jobs: read again
            </button>
          )}
          <SubmitLink />
          {rows.length > 0 && <Bulk rows={rows} verbs={verbs} done={() => setPicked(new Map())} />}
        </>
      }
    >
      <Filters />
      {found.problem !== null && <ProblemNote of={found.problem} />}
      {found.now_s === null && found.problem === null ? (
        <Waiting />
      ) : found.total === 0 && !found.loading ? (
        <Nothing filtered={filtered || query["state"] !== undefined} />
      ) : (
        <LongTable
          label="Jobs"
          columns={shown}
          rows={found.rows}
          total={found.total}
          id={(row) => row.job}
          at={found.at}
          see={found.see}
          open={(row) => go({ view: "jobs", id: row.job })}
          sort={sort}
          onSort={(by) => go({ query: { sort: by } }, true)}
          {...(verbs.length > 0
            ? { chosen, onChoose: choose, choosable: (row: JobRow) => !ended(row.state) && may("job.cancel", row.tenant) }
            : {})}
        />
      )}
    </Card>
  );
}

function columns(now_s: number): readonly Column<JobRow>[] {
  return [
    { name: "job", title: "job", width: "8.5rem", sort: "job", cell: (row) => <JobLink job={row.job} /> },
    { name: "state", title: "state", width: "8rem", sort: "state", cell: (row) => <State of={row.state} /> },
    { name: "tenant", less: true, title: "tenant", width: "7rem", sort: "tenant", cell: (row) => <Name of={row.tenant} /> },
    { name: "gpus", less: true, title: "GPUs", width: "6.5rem", sort: "gpus", number: true, cell: size },
    {
      name: "progress", less: true, title: "progress", width: "9rem", sort: "progress",
      cell: (row) => <Share of={row.progress} label={percent(row.progress)} />,
    },
    {
      name: "slack", less: true, title: "slack", width: "8rem", sort: "slack", number: true,
      cell: (row) => <Slack of={row} />,
    },
    {
      name: "waited", less: true, title: "waited", width: "6.5rem", number: true,
      cell: (row) => <span class="quiet">{duration(row.waited_s)}</span>,
    },
    { name: "why", title: "why", cell: (row) => <Why of={row} /> },
    {
      name: "submitted", less: true, title: "submitted", width: "6.8rem", sort: "submitted", number: true,
      cell: (row) => (
        <time class="quiet" title={moment(row.submit_s)}>
          {now_s - row.submit_s > 86_400 ? moment(row.submit_s) : clock(row.submit_s, false)}
        </time>
      ),
    },
  ];
}

function size(row: JobRow) {
  const range = row.gpus_min === row.gpus_max ? count(row.gpus_min) : `${row.gpus_min}–${row.gpus_max}`;
  return (
    <>
      {row.gpus > 0 ? <b>{count(row.gpus)}</b> : "–"} <span class="quiet small">of {range}</span>
    </>
  );
}

function Slack({ of }: { of: JobRow }) {
  if (of.slack_s === null) return <span class="quiet">–</span>;
  const late = of.slack_s < 0;
  return (
    <span class={late ? "late" : ""} title={late ? "It will miss its deadline by so much" : "So much may be lost before its deadline is"}>
      {late ? "▾ " : ""}
      {duration(of.slack_s)}
    </span>
  );
}

function Why({ of }: { of: JobRow }) {
  const hold = of.hold === null ? "" : `held by ${of.hold.by}${of.hold.reason === "" ? "" : `: ${of.hold.reason}`}`;
  const { position } = of;
  const said = hold || of.why_in_short;
  return (
    <span class="text" title={hold || (of.why_in_words ?? of.why_in_short)}>
      {typeof position === "number" && <span class="tag">no. {figure(position)} in the queue</span>} {said}
    </span>
  );
}

function Nothing({ filtered }: { filtered: boolean }) {
  if (filtered) {
    return (
      <Empty title="No job is like that.">
        <a href={href({ view: "jobs" })}>Show those that live</a>
      </Empty>
    );
  }
  return (
    <Empty title="No job waits or runs.">
      Submit one{may("job.submit") ? " above" : ""}: <code>tidegate submit --model resnet50 --gpus 1..4 --steps 1000 --rate 1=300</code>, or see{" "}
      <a href={href({ query: { state: "all" } })}>all that there were</a>
    </Empty>
  );
}

function Filters() {
  const { query } = route.value;
  const pools = useData("/api/v1/overview", {}, { apartMs: 5000, calm: true }).data;
  const [text, setText] = useState(query["text"] ?? "");
  useEffect(() => setText(query["text"] ?? ""), [query["text"]]);
  useEffect(() => {
    if (text === (query["text"] ?? "")) return;
    const timer = setTimeout(() => go({ query: { text } }, true), 200);
    return () => clearTimeout(timer);
  }, [text]);
  const at = query["state"] ?? "";
  const number = (states: readonly string[]): number =>
    states.reduce((sum, state) => sum + (pools?.jobs[state] ?? 0), 0);
  return (
    <div class="filters" role="search" aria-label="Which jobs">
      <div class="tabs" role="group" aria-label="State">
        {GROUPS.map((one) => (
          <button
            key={one.name}
            type="button"
            aria-pressed={at === one.name}
            onClick={() => go({ query: { state: one.name } })}
          >
            {one.title} <small>{pools === null ? "" : count(number(one.states))}</small>
          </button>
        ))}
      </div>
      <label>
        <span class="hidden">Name, model or tenant has</span>
        <input type="search" placeholder="name, model or tenant" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <label>
        <span class="hidden">Pool</span>
        <select value={query["pool"] ?? ""} onChange={(event) => go({ query: { pool: event.currentTarget.value } })}>
          <option value="">every pool</option>
          {pools?.pools.map((one) => (
            <option key={one.pool} value={one.pool}>
              {one.pool}
            </option>
          ))}
        </select>
      </label>
      {query["tenant"] !== undefined && (
        <button type="button" onClick={() => go({ query: { tenant: undefined } })}>
          tenant <Name of={query["tenant"]} /> ✕
        </button>
      )}
    </div>
  );
}

function Bulk(props: { rows: readonly JobRow[]; verbs: readonly JobVerb[]; done: () => void }) {
  const { rows, verbs, done } = props;
  return (
    <div class="row" role="group" aria-label="With the chosen jobs">
      <span>{plural(rows.length, "job")} chosen</span>
      {verbs.map((one) => {
        const fitting = rows.filter((row) => one.fits(row));
        return (
          <button
            key={one.verb}
            type="button"
            class={one.danger ? "danger" : ""}
            disabled={fitting.length === 0}
            onClick={() => askJobs(one, fitting, done)}
          >
            {one.title}
          </button>
        );
      })}
    </div>
  );
}
