/** Where the log is in time: which entry was when, and what happened that one looks back for. */
import { computed, effect, signal, untracked } from "@preact/signals";
import { type Schemas, get, lastFrame } from "./api.ts";
import { head } from "./live.ts";
import { go, route } from "./route.ts";

export type Moments = Schemas["MomentsAnswer"];
export type Moment = Schemas["MomentRow"];

export const moments = signal<Moments | null>(null);
/** Entries that a view holds to matter more than what is in `moments`, such as a job's. */
export const closer = signal<{ what: string; entries: readonly number[] } | null>(null);

const APART_MS = 5000;

/** Read them again every few seconds while the cell goes on. */
export function remember(): void {
  let lastAt = -APART_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let cellWas: string | null | undefined;
  effect(() => {
    const { cell } = route.value;
    const newest = head.value?.entry;
    if (cell !== cellWas) {
      cellWas = cell;
      moments.value = null;
      waiting = [];
      lastAt = -APART_MS;
    }
    if (newest === undefined || newest === null) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      lastAt = performance.now();
      get("/api/v1/moments", { cell }).then(
        (found) => {
          if (route.value.cell === cell) moments.value = found;
        },
        () => undefined,
      );
    }, Math.max(0, lastAt + APART_MS - performance.now()));
  });
}

/** The first and the newest entry, and when they were; null before anything is known. */
export const range = computed(() => {
  const known = moments.value;
  if (known === null || known.entry === null) return null;
  const newest = head.value;
  const last = Math.max(known.entry, newest?.entry ?? 0);
  const end_s = Math.max(known.now_s, newest?.now_s ?? 0);
  const begin_s = known.places[0]?.[1] ?? known.origin_s;
  return { first: known.first, last, begin_s, end_s: Math.max(end_s, begin_s + 1) };
});

/** (entry, when), ascending, to the live edge. */
const line = computed<readonly (readonly [number, number])[]>(() => {
  const known = moments.value;
  const whole = range.value;
  if (known === null || whole === null) return [];
  const found: [number, number][] = known.places.map(([entry, at_s]) => [entry as number, at_s as number]);
  for (const one of known.moments) found.push([one.entry, one.at_s]);
  found.push([whole.last, whole.end_s]);
  return found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
});

function between(value: number, of: 0 | 1): number {
  const points = line.value;
  const other = of === 0 ? 1 : 0;
  let low = 0;
  let high = points.length - 1;
  if (high < 0) return 0;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((points[middle]?.[of] ?? 0) <= value) low = middle;
    else high = middle - 1;
  }
  const before = points[low] ?? [0, 0];
  const after = points[low + 1];
  if (after === undefined || after[of] <= before[of] || value <= before[of]) return before[other];
  const share = (value - before[of]) / (after[of] - before[of]);
  return before[other] + share * (after[other] - before[other]);
}

/** About when an entry was; exactly, if an answer said so. */
export function timeOf(entry: number): number {
  const frame = lastFrame.value;
  return frame !== null && frame.entry === entry ? frame.now_s : between(entry, 0);
}

/** The entry at a moment, within what is known. */
export function entryAt(at_s: number): number {
  const whole = range.value;
  if (whole === null) return 0;
  return Math.max(whole.first, Math.min(whole.last, Math.floor(between(at_s, 1) + 1e-6)));
}

/** The entry that is shown now. */
export const shown = computed(() => route.value.entry ?? range.value?.last ?? null);

let waiting: (() => void)[] = [];
effect(() => {
  if (range.value === null) return;
  const moves = waiting;
  waiting = [];
  untracked(() => moves.forEach((move) => move()));
});

/** Move once it is known where the log begins and ends, so that an early key is not lost. */
function onceKnown(move: () => void): void {
  if (range.peek() === null) waiting.push(move);
  else move();
}

/** Show an entry; the newest one is not the live edge until one says so. */
export function show(entry: number, replace = true): void {
  const whole = range.value;
  if (whole === null) return;
  go({ entry: Math.max(whole.first, Math.min(whole.last, entry)) }, replace);
}

export function showTime(at_s: number, replace = true): void {
  const whole = range.value;
  if (whole !== null && at_s >= whole.end_s) go({ entry: null }, replace);
  else show(entryAt(at_s), replace);
}

export function step(by: number): void {
  onceKnown(() => {
    const at = shown.value;
    if (at !== null) show(at + by);
  });
}

/** Go to the nearest entry that matters, before or after. */
export function stepMatter(direction: -1 | 1): void {
  onceKnown(() => toMatter(direction));
}

function toMatter(direction: -1 | 1): void {
  const at = shown.value;
  const known = moments.value;
  if (at === null || known === null) return;
  const entries = closer.value?.entries ?? known.moments.map((one) => one.entry);
  let found: number | null = null;
  for (const entry of entries) {
    if (direction > 0 ? entry > at : entry < at) {
      if (found === null || (direction > 0 ? entry < found : entry > found)) found = entry;
    }
  }
  if (found !== null) show(found);
}

/** What happened at an entry, in words; empty if nothing that one looks back for. */
export function happened(entry: number): string {
  const here = moments.value?.moments.filter((one) => one.entry === entry) ?? [];
  const by = new Map<string, string[]>();
  for (const one of here) by.set(one.kind, [...(by.get(one.kind) ?? []), one.about]);
  const parts: string[] = [];
  for (const [kind, about] of by) {
    const names = about.length > 2 ? `${about.length} nodes` : about.join(" and ");
    parts.push((WORDS[kind] ?? "{}").replace("{}", names));
  }
  return parts.join("; ");
}

const WORDS: Readonly<Record<string, string>> = {
  lent: "{} is lent",
  reclaim: "{} is called back",
  returned: "{} is back with its owner",
  late: "{} is back late",
  lost: "{} died on loan",
  leader: "{} leads",
  drain: "{} is drained",
  pause: "the cell is paused",
  people: "somebody asked: {}",
};
