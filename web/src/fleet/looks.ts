/** What the colours of the fleet mean: by job, tenant, loan, use or health, and the legend of it. */

import type { Fleet } from "./layout.ts";
import { frameOf, type Hatch, HATCHES, type Look, mixed } from "./paint.ts";

export const COLOURINGS = ["job", "tenant", "loan", "use", "health"] as const;
export type Colouring = (typeof COLOURINGS)[number];

/** The colours of the page's scheme, as pixels. */
export interface FleetColours {
  /** Of jobs and tenants; told apart by readers who see few colours, with the hatches. */
  series: number[];
  /** From little use to much. */
  ramp: number[];
  /** A GPU that nobody holds, and its lines. */
  free: number;
  freeInk: number;
  /** A GPU on which its owner serves. */
  owner: number;
  ownerInk: number;
  /** A GPU of a training pool with a job, where only loans matter. */
  own: number;
  /** Hatches on any of the series. */
  ink: number;
  good: number;
  warn: number;
  bad: number;
  lent: number;
}

export interface LegendRow {
  /** What it is: of people's making if `isName`, and then shown isolated. */
  label: string;
  isName: boolean;
  look: Look;
  gpus: number;
}

export interface Coloured {
  looks: Look[];
  lookOf: Uint16Array;
  /** What is seen most, first. */
  legend: LegendRow[];
  /** How many more there are than the legend lists. */
  more: number;
}

const LISTED = 14;
const HATCHED: Hatch[] = HATCHES.filter((one) => one !== "dots");

/** Colour a fleet's GPUs by one of its properties. */
export function coloured(
  fleet: Fleet,
  colouring: Colouring,
  colours: FleetColours,
): Coloured {
  switch (colouring) {
    case "job":
      return byHolder(fleet, colours, fleet.jobs.map((one) => one.job), slotOfName);
    case "tenant": {
      const names = [...new Set(fleet.jobs.map((one) => one.tenant))].sort();
      const rank = new Map(names.map((name, at) => [name, at]));
      return byHolder(fleet, colours, fleet.jobs.map((one) => one.tenant), (name) =>
        rank.get(name) ?? 0,
      );
    }
    case "loan":
      return byKind(fleet, loanKinds(colours), (node, held) => loanOf(fleet, node, held));
    case "use":
      return byKind(fleet, useKinds(colours), (node) => useOf(fleet, node));
    case "health":
      return byKind(fleet, healthKinds(colours), (node) => healthOf(fleet, node));
  }
}

/** A job keeps its colour in every picture of it, at every moment: it is of its name alone. */
function slotOfName(name: string): number {
  let hash = 2166136261;
  for (let at = 0; at < name.length; at++) {
    hash = Math.imul(hash ^ name.charCodeAt(at), 16777619);
  }
  hash ^= hash >>> 15;
  return hash >>> 0;
}

function lookOfSlot(slot: number, colours: FleetColours): Look {
  const hues = colours.series.length;
  const fill = colours.series[slot % hues] as number;
  const hatch = HATCHED[Math.floor(slot / hues) % HATCHED.length] as Hatch;
  return { fill, ink: mixed(fill, colours.ink, 0.5), hatch };
}

/** What a GPU that no job holds looks like: free, or its owner's, on which he may serve. */
function unheld(colours: FleetColours): Look[] {
  return [
    { fill: colours.free, ink: colours.freeInk, hatch: "plain" },
    { fill: colours.owner, ink: colours.ownerInk, hatch: "dots" },
  ];
}

function isOwners(fleet: Fleet, node: number): boolean {
  const kind = fleet.pools[fleet.nodes.pool[node] ?? 0]?.kind;
  return kind !== "training" && fleet.nodes.loan[node] == null;
}

function byHolder(
  fleet: Fleet,
  colours: FleetColours,
  names: string[],
  slotOf: (name: string) => number,
): Coloured {
  const looks = unheld(colours);
  const slots = new Map<number, number>();
  const placeOf = names.map((name) => {
    const slot = slotOf(name) % (colours.series.length * HATCHED.length);
    let at = slots.get(slot);
    if (at === undefined) {
      at = looks.push(lookOfSlot(slot, colours)) - 1;
      slots.set(slot, at);
    }
    return at;
  });
  const lookOf = new Uint16Array(fleet.gpus.length);
  const held = new Uint32Array(names.length);
  let free = 0;
  let owners = 0;
  eachGpu(fleet, (node, at) => {
    const job = fleet.gpus[at] as number;
    if (job >= 0) {
      lookOf[at] = placeOf[job] as number;
      held[job] = (held[job] as number) + 1;
    } else if (isOwners(fleet, node)) {
      lookOf[at] = 1;
      owners++;
    } else free++;
  });
  const counts = new Map<string, number>();
  names.forEach((name, job) => counts.set(name, (counts.get(name) ?? 0) + (held[job] as number)));
  const legend: LegendRow[] = most(counts, LISTED).map(([label, gpus]) => ({
    label, isName: true, look: looks[placeOf[names.indexOf(label)] as number] as Look, gpus,
  }));
  if (owners) legend.push({ label: "its owner's", isName: false, look: looks[1] as Look, gpus: owners });
  if (free) legend.push({ label: "free", isName: false, look: looks[0] as Look, gpus: free });
  return { looks, lookOf, legend, more: Math.max(0, counts.size - LISTED) };
}

/** Give the names with the largest counts: of twenty thousand, without sorting them all. */
function most(counts: ReadonlyMap<string, number>, listed: number): (readonly [string, number])[] {
  const found: (readonly [string, number])[] = [];
  for (const one of counts) {
    const least = found.at(-1);
    if (found.length >= listed && least !== undefined && !isBefore(one, least)) continue;
    let at = found.length;
    while (at > 0 && isBefore(one, found[at - 1] as readonly [string, number])) at--;
    found.splice(at, 0, one);
    if (found.length > listed) found.pop();
  }
  return found;
}

function isBefore(one: readonly [string, number], other: readonly [string, number]): boolean {
  return one[1] > other[1] || (one[1] === other[1] && one[0] < other[0]);
}

interface Kind {
  label: string;
  look: Look;
}

function byKind(
  fleet: Fleet,
  kinds: Kind[],
  kindOf: (node: number, held: boolean) => number,
): Coloured {
  const looks = kinds.map((one) => one.look);
  const lookOf = new Uint16Array(fleet.gpus.length);
  const counts = kinds.map(() => 0);
  eachGpu(fleet, (node, at) => {
    const kind = kindOf(node, (fleet.gpus[at] as number) >= 0);
    lookOf[at] = kind;
    counts[kind] = (counts[kind] as number) + 1;
  });
  const legend = kinds
    .map((one, at) => ({ ...one, isName: false, gpus: counts[at] as number }))
    .filter((one) => one.gpus > 0);
  return { looks, lookOf, legend, more: 0 };
}

function loanKinds(colours: FleetColours): Kind[] {
  const { lent, warn, own, owner, ownerInk, free, freeInk, ink } = colours;
  return [
    { label: "own pool, free", look: { fill: free, ink: freeInk, hatch: "plain" } },
    { label: "own pool, used", look: { fill: own, ink, hatch: "plain" } },
    { label: "its owner's", look: { fill: owner, ink: ownerInk, hatch: "dots" } },
    { label: "lent and used", look: { fill: lent, ink, hatch: "plain" } },
    { label: "lent but unused", look: { fill: free, ink: lent, hatch: "rising" } },
    { label: "due back, still used", look: { fill: warn, ink, hatch: "falling" } },
    { label: "due back, empty", look: { fill: free, ink: warn, hatch: "lines" } },
  ];
}

function loanOf(fleet: Fleet, node: number, held: boolean): number {
  if (fleet.nodes.loan[node] != null) {
    if (fleet.nodes.due_s[node] != null) return held ? 5 : 6;
    return held ? 3 : 4;
  }
  if (held) return 1;
  return isOwners(fleet, node) ? 2 : 0;
}

function useKinds(colours: FleetColours): Kind[] {
  const steps = colours.ramp.length;
  const kinds: Kind[] = [
    { label: "not measured", look: { fill: colours.free, ink: colours.freeInk, hatch: "rising" } },
  ];
  colours.ramp.forEach((fill, at) => {
    const from = Math.round((100 * at) / steps);
    const to = Math.round((100 * (at + 1)) / steps);
    kinds.push({ label: `${from} to ${to}%`, look: { fill, ink: fill, hatch: "plain" } });
  });
  return kinds;
}

function useOf(fleet: Fleet, node: number): number {
  const used = fleet.nodes.used[node];
  if (used == null) return 0;
  return 1 + Math.min(4, Math.max(0, Math.floor(used * 5)));
}

function healthKinds(colours: FleetColours): Kind[] {
  const { good, warn, bad, free, freeInk, ink, series } = colours;
  return [
    { label: "in contact", look: { fill: good, ink, hatch: "plain" } },
    { label: "silent", look: { fill: warn, ink, hatch: "rising" } },
    { label: "dead", look: { fill: bad, ink, hatch: "checks" } },
    { label: "draining", look: { fill: series[4 % series.length] as number, ink, hatch: "falling" } },
    { label: "cordoned", look: { fill: free, ink: freeInk, hatch: "bars" } },
  ];
}

function healthOf(fleet: Fleet, node: number): number {
  if (fleet.nodes.state[node] === "dead") return 2;
  const frame = frameOf(fleet, node);
  if (frame === "silent") return 1;
  if (frame === "draining") return 3;
  return frame === "cordoned" ? 4 : 0;
}

function eachGpu(fleet: Fleet, visit: (node: number, at: number) => void): void {
  const count = fleet.nodes.name.length;
  let at = 0;
  for (let node = 0; node < count; node++) {
    const end = at + (fleet.nodes.gpus[node] as number);
    for (; at < end; at++) visit(node, at);
  }
}
