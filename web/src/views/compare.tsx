/** Two moments of one log side by side: which jobs and nodes differ, and by how much the sums. */
import { useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { shortened } from "../bidi.ts";
import { useData } from "../data.ts";
import { count, duration, figure, moment, plural } from "../format.ts";
import { valueInWords } from "../journal-words.ts";
import { head } from "../live.ts";
import { Card, Empty, JobLink, Loaded, NodeLink, Table } from "../parts.tsx";
import { go, href, route } from "../route.ts";
import "../journal.css";

type Diff = Schemas["DiffAnswer"];
type Changed = Schemas["Changed"];

export function Compare() {
  const { vs } = route.value;
  const entry = route.value.entry ?? (vs === null ? null : (head.value?.entry ?? null));
  const off = entry === null || vs === null;
  const found = useData(
    "/api/v1/diff",
    { entry: entry ?? 0, vs: vs ?? 0, limit: 1000 },
    { off },
  );
  return (
    <div class="stack">
      <Choose entry={entry} vs={vs} />
      {off ? (
        <Empty title="Two entries, side by side.">
          Choose them above, or press <kbd>c</kbd> while a past moment is shown.
        </Empty>
      ) : (
        <Loaded of={found}>{(diff) => <Sides of={diff} />}</Loaded>
      )}
    </div>
  );
}

function Choose({ entry, vs }: { entry: number | null; vs: number | null }) {
  const of = (given: FormData, name: string): number | null => {
    const text = String(given.get(name) ?? "").trim();
    return /^[0-9]{1,15}$/.test(text) ? Number(text) : null;
  };
  return (
    <form
      class="filters card"
      key={`${entry} ${vs}`}
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        go({ entry: of(given, "entry"), vs: of(given, "vs") });
      }}
    >
      <label>
        after entry
        <input type="number" name="entry" min="0" step="1" required defaultValue={entry ?? ""} />
      </label>
      <label>
        against entry
        <input type="number" name="vs" min="0" step="1" required defaultValue={vs ?? ""} />
      </label>
      <button type="submit" class="primary">
        Compare
      </button>
      {entry !== null && vs !== null && (
        <a class="button" href={href({ entry: vs, vs: entry })}>
          Turn round
        </a>
      )}
    </form>
  );
}

function Sides({ of }: { of: Diff }) {
  const apart = of.vs_s - of.entry_s;
  return (
    <div class="stack">
      <p>
        From <strong>{moment(of.entry_s)}</strong> (entry {of.entry}) to <strong>{moment(of.vs_s)}</strong>{" "}
        (entry {of.vs}): {duration(Math.abs(apart))} {apart < 0 ? "back" : "on"},{" "}
        {plural(Math.abs(of.vs - of.entry), "decision")}.
      </p>
      <Totals of={of.totals} />
      <Changes title="Jobs" kind="job" rows={of.jobs} total={of.jobs_total} />
      <Changes title="Nodes" kind="node" rows={of.nodes} total={of.nodes_total} />
    </div>
  );
}

function Totals({ of }: { of: Diff["totals"] }) {
  const rows = Object.entries(of);
  return (
    <Card title="What the sums grew by">
      {rows.length ? (
        <dl class="totals">
          {rows.map(([name, value]) => (
            <div key={name}>
              <dt>{SUMS[name] ?? name.replace(/_s$/, "").replace(/_/g, " ")}</dt>
              <dd>{grown(name, value)}</dd>
            </div>
          ))}
        </dl>
      ) : (
        <p class="quiet">No sum differs.</p>
      )}
    </Card>
  );
}

/** Sums whose names say too little. */
const SUMS: Readonly<Record<string, string>> = {
  jct_s: "from submission to end, all jobs",
  queueing_s: "waited for the first start",
  inference_shortfall_gpu_s: "owners were short by",
  loaned_gpu_s: "on loan",
  gpu_s: "GPUs there were",
  training_gpu_s: "used by jobs",
  serving_gpu_s: "used by owners",
  deadlines_total: "jobs with a deadline, ended",
  scale_outs: "gangs made larger",
  scale_ins: "gangs made smaller",
  claims_timed_out: "claims nobody answered",
};

/** Sums of seconds are told as hours: of GPUs, or of jobs. */
function grown(name: string, value: number): string {
  const sign = value > 0 ? "+" : "−";
  const size = Math.abs(value);
  if (name.endsWith("gpu_s")) return `${sign}${figure(size / 3600)} GPU h`;
  if (name.endsWith("_s")) return `${sign}${duration(size)}`;
  return `${sign}${Number.isInteger(size) ? count(size) : figure(size)}`;
}

interface ChangesOf {
  title: string;
  kind: "job" | "node";
  rows: readonly Changed[];
  total: number;
}

const SHOWN = 30;

function Changes({ title, kind, rows, total }: ChangesOf) {
  const [all, setAll] = useState(false);
  const shown = all ? rows : rows.slice(0, SHOWN);
  return (
    <Card title={`${title} that differ`} aside={<span>{count(total)}</span>}>
      {!rows.length ? (
        <p class="quiet">None does.</p>
      ) : (
        <Table label={`${title}, field by field`} head={[kind, "what differs"]}>
          {shown.map((row) => (
            <tr key={row.name}>
              <th scope="row">{kind === "job" ? <JobLink job={row.name} /> : <NodeLink node={row.name} />}</th>
              <td><What of={row} /></td>
            </tr>
          ))}
        </Table>
      )}
      {rows.length > SHOWN && (
        <button type="button" class="plain" onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${count(rows.length)}`}
        </button>
      )}
      {total > rows.length && <p class="quiet">The first {count(rows.length)} of {count(total)}.</p>}
    </Card>
  );
}

function What({ of }: { of: Changed }) {
  if (of.change !== "changed") return <span class="tag">{of.change === "added" ? "only later" : "only earlier"}</span>;
  return (
    <ul class="field-changes">
      {Object.entries(of.fields).map(([name, values]) => {
        const [was, is] = values as [unknown, unknown];
        return (
          <li key={name}>
            <span class="quiet">{name.replace(/_s$/, "").replace(/_/g, " ")}</span>{" "}
            <bdi class="change-was">{shortly(name, was)}</bdi> → <bdi>{shortly(name, is)}</bdi>
          </li>
        );
      })}
    </ul>
  );
}

/** A value in a few words: of who holds a node's GPUs, how many each has. */
function shortly(name: string, value: unknown): string {
  if (name === "holder" || name === "claim") {
    const counts = new Map<string, number>();
    for (const one of value as (string | null)[]) {
      const key = one ?? "free";
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    return [...counts].map(([key, times]) => `${shortened(key)} ×${times}`).join(", ");
  }
  if ((name === "allocation" || name === "target") && value !== null && typeof value === "object") {
    const parts = Object.entries(value as Record<string, number[]>);
    return parts.length ? parts.map(([node, gpus]) => `${shortened(node)} ×${gpus.length}`).join(", ") : "nowhere";
  }
  return shortened(valueInWords(name, value), 400);
}
