/** Branches in words: what is changed, how far the method is off, what to be wary of. */
import { shortened } from "../bidi.ts";
import { clock, count, duration, figure, plural } from "../format.ts";
import type { Change, Outcome, Part, Result } from "./branches.ts";

export const ROWS: readonly { part: Part; said: string; better: "more" | "less" | null }[] = [
  { part: "done", said: "jobs done", better: "more" },
  { part: "mean_jct_h", said: "mean hours from submission to end", better: "less" },
  { part: "deadlines_met", said: "deadlines met", better: "more" },
  { part: "short_gpu_h", said: "GPU hours that owners missed", better: "less" },
  { part: "reclaims_late", said: "nodes given back late", better: "less" },
  { part: "used_gpu_h", said: "GPU hours used by jobs", better: "more" },
  { part: "lent_gpu_h", said: "GPU hours on loan", better: null },
  { part: "loans", said: "nodes lent", better: null },
  { part: "reclaims", said: "nodes given back", better: null },
  { part: "preemptions", said: "preemptions", better: null },
  { part: "migrations", said: "migrations", better: null },
  { part: "waiting", said: "jobs that wait at the end", better: "less" },
];

export function value(of: number | null | undefined): string {
  if (of === null || of === undefined) return "–";
  return Number.isInteger(of) ? count(of) : figure(of);
}

/** With its sign: "+4", "−0.25". */
export function signed(of: number): string {
  const size = value(Math.abs(of));
  return size === "0" ? "0" : `${of < 0 ? "−" : "+"}${size}`;
}

/** What is done otherwise, part by part; empty: nothing, the control alone. */
export function changeInWords(change: Change = {}): string[] {
  const parts: string[] = [];
  if (change.policy) parts.push(`policy ${shortened(change.policy)}`);
  for (const [name, of] of Object.entries(change.settings ?? {})) parts.push(`${shortened(name)} = ${of}`);
  for (const [pool, nodes] of Object.entries(change.add_nodes ?? {})) {
    if (nodes) parts.push(`${plural(nodes, "node")} more in ${shortened(pool)}`);
  }
  const lost = change.lose ?? [];
  if (lost.length) parts.push(lost.length > 3 ? `${lost.length} nodes lost` : `${lost.map(shortened).join(", ")} lost`);
  if (change.demand !== undefined && change.demand !== 1) parts.push(`owners need ×${change.demand}`);
  for (const one of change.jobs ?? []) parts.push(`${plural(one.count, "job")} like ${shortened(one.like)}`);
  for (const one of change.requests ?? []) parts.push(requestInWords(one));
  return parts;
}

/** A verb with its arguments: "node.drain train-001, within 30 min". */
export function requestInWords(args: Record<string, unknown>): string {
  const { verb, ...rest } = args;
  const parts = Object.entries(rest)
    .filter(([, of]) => of !== null && of !== false && of !== "")
    .map(([name, of]) => {
      if (name === "by_s") return `within ${duration(Number(of))}`;
      if (name === "until_s") return `for ${duration(Number(of))}`;
      if (of === true) return name.replace(/_/g, " ");
      return ["job", "node", "lender", "tenant", "line"].includes(name) ? shortened(String(of)) : `${name} ${shortened(String(of))}`;
    });
  return `${String(verb)} ${parts.join(", ")}`.trim();
}

/** How far the control is from the record, in the parts that people look for. */
export function errorInWords(result: Result): string[] {
  const { recorded, control_until_recorded_end: control } = result;
  if (recorded === null) return [];
  const told: string[] = [];
  const compare = (part: Part, said: (is: string, was: string) => string): void => {
    const is = control[part];
    const was = recorded[part];
    if (is === null || was === null) return;
    const off = was !== 0 ? ` (${signed(Math.round((100 * (is - was)) / was))}%)` : "";
    told.push(said(value(is), value(was)) + (is === was ? "" : off));
  };
  compare("done", (is, was) => `${is} jobs done where there were ${was}`);
  compare("deadlines_met", (is, was) => `${is} deadlines met for ${was}`);
  compare("short_gpu_h", (is, was) => `owners short by ${is} GPU h for ${was}`);
  compare("used_gpu_h", (is, was) => `${is} GPU h used for ${was}`);
  compare("reclaims", (is, was) => `nodes given back: ${is} for ${was}`);
  return told;
}

/** Whether a difference is smaller than what the method is off by anyway. */
export function isWithinError(result: Result, part: Part): boolean {
  const { recorded, control_until_recorded_end: until, control, branch } = result;
  if (recorded === null || branch === null) return false;
  const [was, is, plain, changed] = [recorded[part], until[part], control[part], branch[part]];
  if (was === null || is === null || plain === null || changed === null) return false;
  const off = Math.abs(is - was);
  return off > 0 && Math.abs(changed - plain) <= off;
}

/** What whoever reads the table should not overlook. */
export function warnings(result: Result): string[] {
  const { control, branch, until_s, recorded_until_s, violations } = result;
  const told: string[] = [];
  if (violations > 0) {
    told.push(`${plural(violations, "rule")} that must always hold did not: this is a fault of the engine, report it.`);
  }
  if (branch !== null) told.push(...ofBranch(control, branch));
  if (recorded_until_s < until_s && result.owners_need !== "recorded") {
    told.push(
      `The log ends at ${clock(recorded_until_s, false)}: after that owners need ${result.owners_need.replace("recorded, then ", "")}, no job comes and nothing fails.`,
    );
  }
  return told;
}

function ofBranch(control: Outcome, branch: Outcome): string[] {
  const told: string[] = [];
  const short = branch.short_gpu_h - control.short_gpu_h;
  if (short > 0.05 && branch.reclaims === 0 && branch.lent_gpu_h > 0) {
    told.push(
      `It never calls a node back: ${value(branch.lent_gpu_h)} GPU h stay lent, and owners are short by ${value(branch.short_gpu_h)} GPU h.`,
    );
  } else if (short > 0.05) {
    told.push(`Owners are short by ${value(short)} GPU h more than without the change.`);
  }
  const late = branch.reclaims_late - control.reclaims_late;
  if (late > 0) told.push(`${plural(late, "node")} more would be back late.`);
  const missed = control.deadlines_met - branch.deadlines_met;
  if (missed > 0) told.push(`${plural(missed, "deadline")} fewer would be met.`);
  return told;
}
