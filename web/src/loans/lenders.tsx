/** Lenders: what each has lent, what of it is used, who froze it; freeze, unfreeze, recall. */
import { useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { count, duration } from "../format.ts";
import { may } from "../me.ts";
import { By, Empty, LenderLink, Table } from "../parts.tsx";
import { href } from "../route.ts";
import { AskButton } from "../verbs.tsx";

type Freeze = Schemas["Freeze"];

export interface LenderRow {
  lender: string;
  kind: string;
  gpus: number;
  nodes: number;
  lent: number;
  used: number;
  due: number;
}

/** Sum loans up by the pool that lends. */
export function lendersOf(
  loans: readonly Schemas["LoanRow"][],
  pools: readonly Schemas["PoolRow"][],
): LenderRow[] {
  const found = new Map<string, LenderRow>();
  const of = (lender: string, kind: string, gpus: number): LenderRow => {
    const known = found.get(lender);
    if (known !== undefined) return known;
    const row = { lender, kind, gpus, nodes: 0, lent: 0, used: 0, due: 0 };
    found.set(lender, row);
    return row;
  };
  for (const pool of pools) if (pool.kind !== "training") of(pool.pool, pool.kind, pool.gpus ?? 0);
  for (const loan of loans) {
    const row = of(loan.pool, "", 0);
    row.nodes++;
    row.lent += loan.gpus;
    row.used += loan.gpus_used;
    if (loan.due_s !== null) row.due++;
  }
  return [...found.values()];
}

interface Shown {
  rows: readonly LenderRow[];
  freezes: Readonly<Record<string, Freeze>>;
  now_s: number;
}

export function LenderTable({ rows, freezes, now_s }: Shown) {
  const [minutes, setMinutes] = useState(15);
  const verbs = may("loans.freeze") || may("loans.recall");
  if (!rows.length) {
    return (
      <Empty title="No pool lends.">
        A pool of kind inference or edge does: <code>tidegate demo</code> has both.
      </Empty>
    );
  }
  const everything = freezes[""];
  return (
    <>
      {everything !== undefined && (
        <p class="problem">
          No lender lends: <By of={everything} />
        </p>
      )}
      <Table
        label="Lenders"
        class="lenders"
        head={["lender", "lent, used and unused", "#lent", "#used", "#unused", "#due back", "frozen", verbs && "ask"]}
      >
        {rows.map((row) => (
          <tr key={row.lender}>
            <th scope="row">
              <LenderLink lender={row.lender} />
            </th>
            <td><LentBar of={row} /></td>
            <td class="number">{count(row.lent)} of {count(row.gpus)}</td>
            <td class="number">{count(row.used)}</td>
            <td class={row.lent > row.used ? "number bad-text" : "number nil"}>{count(row.lent - row.used)}</td>
            <td class={row.due ? "number" : "number nil"}>{count(row.due)}</td>
            <td>
              {freezes[row.lender] === undefined ? (
                <span class="nil">no</span>
              ) : (
                <By of={freezes[row.lender] as Freeze} />
              )}
            </td>
            {verbs && (
              <td>
                <Verbs row={row} frozen={freezes[row.lender] !== undefined} minutes={minutes} now_s={now_s} />
              </td>
            )}
          </tr>
        ))}
      </Table>
      {verbs && (
        <p class="row small quiet recall-within">
          <label class="row">
            Recalled nodes are due in
            <select value={minutes} onChange={(event) => setMinutes(Number(event.currentTarget.value))}>
              {[5, 15, 30, 60].map((one) => (
                <option key={one} value={one}>{duration(one * 60)}</option>
              ))}
            </select>
          </label>
        </p>
      )}
    </>
  );
}

/** Owned, lent and used, lent but unused: widths of one bar; the unused part is hatched. */
function LentBar({ of }: { of: LenderRow }) {
  const all = Math.max(1, of.gpus, of.lent);
  const used = (100 * of.used) / all;
  const lent = (100 * of.lent) / all;
  return (
    <svg class="lent-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <defs>
        <pattern id="unused" width="2.4" height="10" patternUnits="userSpaceOnUse" patternTransform="skewX(-20)">
          <rect class="bar-unused-line" width="1" height="10" />
        </pattern>
      </defs>
      <rect class="bar-owned" width="100" height="10" />
      <rect class="bar-unused" width={lent} height="10" />
      <rect fill="url(#unused)" width={lent} height="10" />
      <rect class="bar-used" width={used} height="10" />
    </svg>
  );
}

interface VerbsOf {
  row: LenderRow;
  frozen: boolean;
  minutes: number;
  now_s: number;
}

function Verbs({ row, frozen, minutes, now_s }: VerbsOf) {
  const { lender } = row;
  return (
    <div class="row">
      {frozen ? (
        <AskButton
          label="Unfreeze"
          of={{
            title: "Unfreeze this lender",
            about: "Its idle GPUs may be borrowed again.",
            requests: [{ name: lender, args: { verb: "loans.unfreeze", lender } }],
          }}
        />
      ) : (
        <AskButton
          label="Freeze"
          of={{
            title: "Freeze this lender",
            about: "Nothing more is borrowed from it. What is lent stays lent until it is called back.",
            requests: [{ name: lender, args: { verb: "loans.freeze", lender } }],
          }}
        />
      )}
      <AskButton
        label="Recall…"
        disabled={row.nodes === 0}
        of={{
          title: "Call its nodes back",
          about: `All ${row.nodes} nodes that it lent are emptied, and due in ${duration(minutes * 60)}.`,
          danger: true,
          requests: [{ name: lender, args: { verb: "loans.recall", lender, by_s: now_s + minutes * 60 } }],
        }}
      />
      <a
        class="button"
        href={href({
          view: "what-if",
          query: { request: JSON.stringify({ verb: "loans.recall", lender, by_s: minutes * 60 }) },
        })}
      >
        Preview
      </a>
    </div>
  );
}
