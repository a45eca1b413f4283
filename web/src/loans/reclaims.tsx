/** Reclaims: each as a bar from the call over the last save and the empty node to the hand-back. */
import type { Schemas } from "../api.ts";
import { capital, clock, duration, plural } from "../format.ts";
import { Filters } from "../journal-list.tsx";
import { usePages } from "../pages.ts";
import { Card, DecisionLink, Empty, NodeLink, ProblemNote, Waiting } from "../parts.tsx";
import { href, route } from "../route.ts";

type ReclaimRow = Schemas["ReclaimRow"];

export function Reclaims() {
  const { node } = route.value.query;
  const found = usePages("/api/v1/reclaims", "reclaims", { node });
  const rows = found.rows;
  const longest = rows.reduce((so, row) => Math.max(so, row.due_s - row.called_s, tookOf(row, found.now_s)), 60);
  return (
    <Card title="Reclaims" aside={<Filters of={[{ name: "node", label: "node" }]} />}>
      {found.problem !== null && <ProblemNote of={found.problem} />}
      {!rows.length && !found.loading ? (
        <Empty title={node === undefined ? "No node was called back yet." : "This node was never called back."}>
          A node goes back when its owner is forecast to need it, or when nobody has a use for it.
        </Empty>
      ) : found.now_s === null && found.problem === null ? (
        <Waiting />
      ) : (
        <>
          <Key />
          <ol class="reclaims" aria-label="Reclaims, newest first">
            {rows.map((row) => (
              <Reclaim key={`${row.node} ${row.called_entry}`} of={row} longest={longest} now_s={found.now_s ?? row.called_s} />
            ))}
          </ol>
          {found.more && (
            <button type="button" onClick={() => found.reach(rows.length + 1)}>
              Show earlier ones
            </button>
          )}
        </>
      )}
    </Card>
  );
}

function tookOf(row: ReclaimRow, now_s: number | null): number {
  return (row.end_s ?? now_s ?? row.called_s) - row.called_s;
}

function Key() {
  return (
    <ul class="reclaim-key" aria-hidden="true">
      <li><i class="seg-saving" />jobs save and leave</li>
      <li><i class="seg-emptying" />until empty</li>
      <li><i class="seg-returning" />handed back</li>
      <li><i class="seg-late" />late</li>
      <li><i class="seg-due" />due</li>
    </ul>
  );
}

interface Shown {
  of: ReclaimRow;
  longest: number;
  now_s: number;
}

function Reclaim({ of, longest, now_s }: Shown) {
  const is = of.state === "going" ? "is" : "was";
  return (
    <li class={of.late_s > 0 ? "reclaim late" : "reclaim"}>
      <div class="reclaim-who">
        <NodeLink node={of.node} />
        <DecisionLink entry={of.called_entry} at_s={of.called_s} title="The entry that called it" />
      </div>
      <Bar of={of} longest={longest} now_s={now_s} />
      <div class="reclaim-said">
        <p>{said(of, now_s)}</p>
        {of.because !== null && (
          <p class="quiet">
            It {is} called back because <bdi class="text">{of.because.sentence}</bdi>{" "}
            <a class="rule" href={href({ view: "decisions", query: { rule: of.because.rule } })}>
              {of.because.rule}
            </a>
          </p>
        )}
      </div>
    </li>
  );
}

/** The whole of it in words: what the bar shows, for who does not see it. */
function said(of: ReclaimRow, now_s: number): string {
  const after = (at_s: number) => duration(at_s - of.called_s);
  const parts: string[] = [];
  if (of.jobs) parts.push(`${plural(of.jobs, "job")} left it`);
  if (of.saved_s !== null) parts.push(`saved after ${after(of.saved_s)}`);
  if (of.empty_s !== null) parts.push(`empty after ${after(of.empty_s)}`);
  if (of.state === "back" && of.end_s !== null) parts.push(`back after ${after(of.end_s)}`);
  if (of.state === "lost" && of.end_s !== null) parts.push(`lost with its node after ${after(of.end_s)}`);
  const notice = of.due_s - of.called_s;
  const due = `due after ${duration(notice)} (${clock(of.due_s, false)})`;
  if (of.late_s > 0) parts.push(`${due}, late by ${duration(of.late_s)}`);
  else if (of.state === "going") parts.push(`${due}, in ${duration(of.due_s - now_s)}`);
  else if (of.end_s !== null) parts.push(`${due}, ${duration(of.due_s - of.end_s)} to spare`);
  return `${capital(parts.join("; "))}.`;
}

const WIDE = 1000;
const LEAST = 6;

function Bar({ of, longest, now_s }: Shown) {
  const scale = (at_s: number) => (WIDE * Math.max(0, at_s - of.called_s)) / longest;
  const end_s = of.end_s ?? now_s;
  const empty_s = of.empty_s ?? end_s;
  // While it still goes, nobody knows which save will be the last.
  const saved_s = of.empty_s === null ? end_s : Math.min(of.saved_s ?? of.called_s, empty_s);
  const parts: [string, number, number][] = [
    ["seg-saving", of.called_s, saved_s],
    ["seg-emptying", saved_s, empty_s],
    ["seg-returning", empty_s, end_s],
  ];
  const due = scale(of.due_s);
  const whole = Math.max(scale(end_s), LEAST);
  return (
    <svg class="reclaim-bar" viewBox={`-4 0 ${WIDE + 8} 24`} preserveAspectRatio="none" aria-hidden="true">
      <rect class="seg-track" x="0" y="10" width={WIDE} height="4" />
      <rect class="seg-notice" x="0" y="8" width={due} height="8" />
      <rect class="seg-returning" x="0" y="4" width={whole} height="16" />
      {parts.map(([kind, from, to]) =>
        to > from ? (
          <rect key={kind} class={kind} x={scale(from)} y="4" width={Math.max(scale(to) - scale(from), 2)} height="16" />
        ) : null,
      )}
      {end_s > of.due_s && (
        <rect class="seg-late" x={due} y="4" width={Math.max(scale(end_s) - due, LEAST)} height="16" />
      )}
      <rect class="seg-due" x={due - 2} y="0" width="4" height="24" />
    </svg>
  );
}

