/** Times, lengths and numbers as people read them: the same as in a terminal (`explain.moments`). */
import { signal } from "@preact/signals";

/** A number and its unit stay on one line. */
const NB = "\u00a0";
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;

/** From here on no date is written as others are (`explain.moments`). */
const FAR_S = 253_402_214_400;
const FAR = "beyond year 9999";
/** Nor before here. */
const EARLY_S = -62_135_596_800;
const EARLY = "before year 1";

/** A clock of the log's own time, in UTC: "14:08:47". */
export function clock(at_s: number | null | undefined, seconds = true): string {
  if (at_s === null || at_s === undefined) return "–";
  if (at_s >= FAR_S) return FAR;
  if (at_s < EARLY_S) return EARLY;
  return new Date(at_s * 1000).toISOString().slice(11, seconds ? 19 : 16);
}

/** When the log began that is shown: its day is d0 where its time is simulated. */
export const origin = signal<number | null>(null);

/** When the simulated time of demos begins; that of simulations begins in 1970 (`explain.moments`). */
const DEMO_START_S = 1_767_571_200;

function isSimulated(origin_s: number): boolean {
  return origin_s < 365 * DAY || (origin_s >= DEMO_START_S && origin_s < DEMO_START_S + DAY);
}

/** A date, of whatever time: "2026-01-05". */
export function date(at_s: number): string {
  if (at_s < EARLY_S) return EARLY;
  return at_s >= FAR_S ? FAR : new Date(at_s * 1000).toISOString().slice(0, 10);
}

/** A day of the log's own time, as a terminal writes it: "2026-11-21", or "d0" in simulated time. */
export function day(at_s: number): string {
  const begun = origin.value;
  if (begun === null || !isSimulated(begun)) return date(at_s);
  return `d${Math.floor(at_s / DAY) - Math.floor(begun / DAY)}`;
}

/** Day and clock: "2026-11-21 14:08", or "d0 14:08". */
export function moment(at_s: number | null | undefined): string {
  if (at_s === null || at_s === undefined) return "–";
  if (at_s < EARLY_S) return EARLY;
  return at_s >= FAR_S ? FAR : `${day(at_s)} ${clock(at_s, false)}`;
}

/** " UTC", where the log lives in real time. */
export function zone(): string {
  return origin.value === null || isSimulated(origin.value) ? "" : " UTC";
}

/** A length of time in its two largest units, as a terminal writes it: "2 h 5 min". */
export function duration(length_s: number | null | undefined): string {
  if (length_s === null || length_s === undefined || !Number.isFinite(length_s)) return "–";
  if (length_s < 0) return `−${duration(-length_s)}`;
  if (length_s < 10 && length_s !== roundEven(length_s)) return `${length_s.toFixed(1)}${NB}s`;
  const whole = roundEven(length_s);
  for (const [unit_s, unit, lesser_s, lesser] of UNITS) {
    // Rounded to the lesser unit first, so that 59.9 min is 1 h.
    const rounded = Math.floor((whole + Math.floor(lesser_s / 2)) / lesser_s) * lesser_s;
    if (rounded < unit_s) continue;
    const second = Math.floor((rounded % unit_s) / lesser_s);
    const first = `${Math.floor(rounded / unit_s)}${NB}${unit}`;
    return second > 0 ? `${first}${NB}${second}${NB}${lesser}` : first;
  }
  return `${whole}${NB}s`;
}

const UNITS = [
  [DAY, "d", HOUR, "h"],
  [HOUR, "h", MINUTE, "min"],
  [MINUTE, "min", 1, "s"],
] as const;

/** A half goes to the even number, as in Python. */
function roundEven(value: number): number {
  const rounded = Math.round(value);
  return Math.abs(value % 1) === 0.5 && rounded % 2 !== 0 ? rounded - 1 : rounded;
}

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

/** A count: "1,204". */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : plain.format(value).replace("-", "−");
}

/** A figure of at most two decimals. */
export function figure(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : fine.format(value).replace("-", "−");
}

/** A share of one: "42%"; rounded down, so that nothing is done before it is. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined) return "–";
  return share > 0 && share < 0.01 ? "<1%" : `${Math.floor(share * 100 + 1e-9)}%`;
}

/** Bytes: "1.2 MB". */
export function bytes(size: number): string {
  if (size < 1000) return `${size} B`;
  const unit = size < 1e6 ? "kB" : size < 1e9 ? "MB" : "GB";
  const scaled = size / (size < 1e6 ? 1e3 : size < 1e9 ? 1e6 : 1e9);
  return `${fine.format(Number(scaled.toPrecision(3)))} ${unit}`;
}

/** "1 job", "2 jobs". */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A sentence that begins as one. */
export function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
