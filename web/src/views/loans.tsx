/** Loans and reclaims: what is lent, what of it is unused, and how each node went back. */
import { useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { count, duration, figure, moment, plural } from "../format.ts";
import { LenderTable, lendersOf } from "../loans/lenders.tsx";
import { Reclaims } from "../loans/reclaims.tsx";
import { Card, Empty, Figures, Loaded, Name, NodeLink, Share, State, Table, type Figure } from "../parts.tsx";
import "../loans/loans.css";

type LoanRow = Schemas["LoanRow"];

export function Loans() {
  const loans = useData("/api/v1/loans");
  const rules = useData("/api/v1/rules");
  const overview = useData("/api/v1/overview");
  return (
    <div class="stack">
      <Loaded of={loans}>
        {(page) => (
          <div class="stack">
            <Sums loans={page.loans} totals={page.totals} now_s={page.now_s} />
            <Card title="By lender">
              <LenderTable
                rows={lendersOf(page.loans, overview.data?.pools ?? [])}
                freezes={rules.data?.freezes ?? {}}
                now_s={page.now_s}
              />
            </Card>
            <OnLoan of={page.loans} now_s={page.now_s} />
          </div>
        )}
      </Loaded>
      <Reclaims />
    </div>
  );
}

interface SumsOf {
  loans: readonly LoanRow[];
  totals: Schemas["LoanTotals"];
  now_s: number;
}

function Sums({ loans, totals, now_s }: SumsOf) {
  const gpus = loans.reduce((sum, row) => sum + row.gpus, 0);
  const used = loans.reduce((sum, row) => sum + row.gpus_used, 0);
  const due = loans.filter((row) => row.due_s !== null);
  const late = due.filter((row) => (row.due_s ?? 0) < now_s);
  const short_h = totals.inference_shortfall_gpu_s / 3600;
  const rows: Figure[] = [
    { label: "GPUs lent", value: count(gpus), note: plural(loans.length, "node") },
    { label: "lent but unused", value: count(gpus - used), tone: gpus > used ? "bad" : "quiet" },
    { label: "nodes due back", value: count(due.length), note: late.length ? `${late.length} late` : "" },
    { label: "lent / given back so far", value: `${count(totals.loans_granted)} / ${count(totals.loans_reclaimed)}` },
    { label: "of them late", value: count(totals.reclaims_late), tone: totals.reclaims_late ? "bad" : "quiet" },
    { label: "GPU hours lent", value: figure(totals.loaned_gpu_s / 3600) },
    { label: "GPU hours short", value: figure(short_h), tone: short_h > 0 ? "bad" : "quiet" },
  ];
  return <Figures of={rows} />;
}

const SHOWN = 12;

function OnLoan({ of, now_s }: { of: readonly LoanRow[]; now_s: number }) {
  const [all, setAll] = useState(false);
  if (!of.length) {
    return (
      <Card title="On loan">
        <Empty title="Nothing is on loan at this moment.">
          Owners lend what they will not need for a while, if the policy borrows:{" "}
          <code>tidegate policies tide</code>
        </Empty>
      </Card>
    );
  }
  const rows = [...of].sort((one, other) => (one.due_s ?? 1e12) - (other.due_s ?? 1e12));
  const shown = all ? rows : rows.slice(0, SHOWN);
  return (
    <Card title="On loan" aside={<span>{plural(of.length, "node")}</span>}>
      <Table
        label="Nodes on loan"
        head={["node", "lender", "state", "lent for", "used by jobs", "due back", "called by"]}
      >
        {shown.map((row) => (
          <tr key={row.node}>
            <td><NodeLink node={row.node} /></td>
            <td><Name of={row.pool} /></td>
            <td><State of={row.state ?? "lent"} /></td>
            <td title={moment(row.since_s)}>{duration(now_s - row.since_s)}</td>
            <td>
              <Share of={row.gpus_used / Math.max(1, row.gpus)} label={`${row.gpus_used} of ${row.gpus}`} />
            </td>
            <td><Due of={row.due_s} now_s={now_s} /></td>
            <td>{row.recall === null ? <span class="nil">–</span> : <Name of={row.recall.by} />}</td>
          </tr>
        ))}
      </Table>
      {rows.length > SHOWN && (
        <p>
          <button type="button" class="plain" onClick={() => setAll(!all)}>
            {all ? "Show fewer" : `Show all ${count(rows.length)}`}
          </button>
        </p>
      )}
    </Card>
  );
}

function Due({ of, now_s }: { of: number | null; now_s: number }) {
  if (of === null) return <span class="nil">not called</span>;
  if (of < now_s) return <span class="tag bad">late by {duration(now_s - of)}</span>;
  return <>in {duration(of - now_s)}</>;
}
