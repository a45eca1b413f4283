/** A fleet in words: what a node is like, for who hears the page, and sums by pool. */

import { percent } from "../format.ts";
import { shortened } from "../bidi.ts";
import type { Fleet, Layout } from "./layout.ts";
import { frameOf } from "./paint.ts";

export interface PoolSums {
  pool: string;
  kind: string;
  nodes: number;
  gpus: number;
  held: number;
  lent: number;
  due: number;
  silent: number;
  draining: number;
  cordoned: number;
}

/** Sum a fleet up, pool by pool. */
export function sums(fleet: Fleet): PoolSums[] {
  const rows: PoolSums[] = fleet.pools.map((one) => ({
    ...one, nodes: 0, gpus: 0, held: 0, lent: 0, due: 0, silent: 0, draining: 0, cordoned: 0,
  }));
  let at = 0;
  fleet.nodes.name.forEach((_, node) => {
    const row = rows[fleet.nodes.pool[node] ?? 0];
    const gpus = fleet.nodes.gpus[node] ?? 0;
    if (row) {
      row.nodes++;
      row.gpus += gpus;
      for (let gpu = 0; gpu < gpus; gpu++) if ((fleet.gpus[at + gpu] ?? -1) >= 0) row.held++;
      if (fleet.nodes.loan[node] != null) {
        row.lent++;
        if (fleet.nodes.due_s[node] != null) row.due++;
      }
      if (fleet.nodes.state[node] !== "alive") row.silent++;
      if (fleet.nodes.draining[node]) row.draining++;
      if (fleet.nodes.cordoned[node]) row.cordoned++;
    }
    at += gpus;
  });
  return rows;
}

/** Which jobs hold how many GPUs of a node, most first. */
export function holders(fleet: Fleet, layout: Layout, node: number): { job: number; gpus: number }[] {
  const first = layout.offset[node] ?? 0;
  const counts = new Map<number, number>();
  for (let gpu = 0; gpu < (fleet.nodes.gpus[node] ?? 0); gpu++) {
    const job = fleet.gpus[first + gpu] ?? -1;
    if (job >= 0) counts.set(job, (counts.get(job) ?? 0) + 1);
  }
  return [...counts]
    .map(([job, gpus]) => ({ job, gpus }))
    .sort((one, other) => other.gpus - one.gpus);
}

/** Say what state a node is in, in a few words. */
export function stateWords(fleet: Fleet, node: number, clock: (at: number) => string): string {
  const due = fleet.nodes.due_s[node];
  switch (frameOf(fleet, node)) {
    case "silent":
      return fleet.nodes.state[node] === "dead" ? "dead" : "silent";
    case "draining":
      return "draining";
    case "cordoned":
      return "cordoned";
    case "due":
      return due == null ? "due back" : `lent, due back ${clock(due)}`;
    case "lent":
      return "lent";
    case "none":
      return "in contact";
  }
}

/** Say in one line what a node is and does, for the line under the picture and for readers of it. */
export function nodeWords(
  fleet: Fleet,
  layout: Layout,
  node: number,
  clock: (at: number) => string,
): { name: string; rest: string } {
  const pool = fleet.pools[fleet.nodes.pool[node] ?? 0]?.pool ?? "";
  const held = holders(fleet, layout, node);
  const gpus = fleet.nodes.gpus[node] ?? 0;
  const parts = [`pool ${shortened(pool)}`, stateWords(fleet, node, clock)];
  const used = fleet.nodes.used[node];
  if (held.length) {
    const jobs = held.slice(0, 3).map((one) => `${shortened(fleet.jobs[one.job]?.job ?? "?")} ×${one.gpus}`);
    if (held.length > 3) jobs.push(`${held.length - 3} more`);
    parts.push(jobs.join(", "));
  } else parts.push(`no job on its ${gpus} GPUs`);
  if (used != null) parts.push(`${percent(used)} busy`);
  return { name: shortened(fleet.nodes.name[node] ?? ""), rest: parts.join(" · ") };
}
