/** The tide three times: as it was, in the control, in the branch; one cursor over all. */
import { useState } from "preact/hooks";
import { Chart, type Line } from "../chart.tsx";
import { clock } from "../format.ts";
import type { Result, TideRow } from "./branches.ts";
import { value } from "./words.ts";

const LINES: readonly Line[] = [
  { label: "owners need", stroke: "--need", width: 2 },
  { label: "owners have", stroke: "--owned", dash: [4, 4], width: 1.25, stepped: true },
  { label: "lent", stroke: "--lent", stepped: true, fill: "--lent-soft" },
  { label: "jobs use", stroke: "--used" },
];

interface Side {
  title: string;
  note: string;
  rows: readonly TideRow[];
}

export function Tides({ of }: { of: Result }) {
  const [at, setAt] = useState<number | null>(null);
  const sides: Side[] = [
    { title: "As it was", note: "", rows: of.tide.recorded },
    { title: "Control", note: "nothing changed, ideal agents", rows: of.tide.control },
    { title: "Branch", note: "with the change", rows: of.tide.branch ?? [] },
  ].filter((side) => side.rows.length > 1);
  const most = Math.max(1, ...sides.flatMap((side) => side.rows.flatMap((row) => [row.need, row.owned, row.lent, row.used])));
  return (
    <div class="tides">
      {sides.map((side) => (
        <figure key={side.title}>
          <figcaption>
            <strong>{side.title}</strong> <span class="quiet">{side.note}</span>
          </figcaption>
          <Chart
            x={side.rows.map((row) => row.at_s)}
            ys={[
              side.rows.map((row) => row.need),
              side.rows.map((row) => row.owned),
              side.rows.map((row) => row.lent),
              side.rows.map((row) => row.used),
            ]}
            lines={LINES}
            height={170}
            label={inWords(side)}
            times
            group="what-if"
            max={most}
            onPoint={(row) => setAt(row === null ? null : (side.rows[row]?.at_s ?? null))}
          />
          <Reading rows={side.rows} at_s={at} />
        </figure>
      ))}
    </div>
  );
}

function Reading({ rows, at_s }: { rows: readonly TideRow[]; at_s: number | null }) {
  const row = at_s === null ? rows.at(-1) : rowAt(rows, at_s);
  if (row === undefined) return null;
  return (
    <p class="tide-reading">
      <span>{clock(row.at_s, false)}</span>
      <span class="key key-need">need {value(Math.round(row.need))}</span>
      <span class="key key-owned">have {value(row.owned)}</span>
      <span class="key key-lent">lent {value(row.lent)}</span>
      <span class="key key-used">used {value(row.used)}</span>
    </p>
  );
}

/** The last row at or before a moment. */
function rowAt(rows: readonly TideRow[], at_s: number): TideRow | undefined {
  let found = rows[0];
  for (const row of rows) {
    if (row.at_s > at_s) break;
    found = row;
  }
  return found;
}

function inWords({ title, rows }: Side): string {
  const most = (part: (row: TideRow) => number): string => value(Math.round(Math.max(...rows.map(part))));
  return (
    `${title}: owners need at most ${most((row) => row.need)} GPUs, ` +
    `${most((row) => row.lent)} are lent at most, jobs use at most ${most((row) => row.used)}`
  );
}
