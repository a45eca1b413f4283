/** Times, lengths and numbers as people read them. */

/** A number and its unit stay on one line. */
const NB = "\u00a0";
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;

/** A clock of the log's own time, in UTC: "14:08:47". */
export function clock(at_s: number | null | undefined, seconds = true): string {
  if (at_s === null || at_s === undefined) return "–";
  return new Date(at_s * 1000).toISOString().slice(11, seconds ? 19 : 16);
}

/** A day of the log's own time: "2026-01-05". */
export function day(at_s: number): string {
  return new Date(at_s * 1000).toISOString().slice(0, 10);
}

/** Day and clock: "5 Jan 14:08". */
export function moment(at_s: number | null | undefined): string {
  if (at_s === null || at_s === undefined) return "–";
  const at = new Date(at_s * 1000);
  const month = at.toLocaleString("en", { month: "short", timeZone: "UTC" });
  return `${at.getUTCDate()} ${month} ${clock(at_s, false)}`;
}

/** A length of time in its two largest units: "2 h 05 min". */
export function duration(length_s: number | null | undefined): string {
  if (length_s === null || length_s === undefined || !Number.isFinite(length_s)) return "–";
  const sign = length_s < 0 ? "−" : "";
  const s = Math.abs(length_s);
  if (s < MINUTE) return `${sign}${Math.round(s)}${NB}s`;
  if (s < HOUR) return `${sign}${Math.floor(s / MINUTE)}${NB}min`;
  if (s < DAY) {
    const minutes = String(Math.floor((s % HOUR) / MINUTE)).padStart(2, "0");
    return `${sign}${Math.floor(s / HOUR)}${NB}h${NB}${minutes}${NB}min`;
  }
  return `${sign}${Math.floor(s / DAY)}${NB}d${NB}${Math.floor((s % DAY) / HOUR)}${NB}h`;
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

/** A share of one: "42 %". */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined) return "–";
  return `${share > 0 && share < 0.01 ? "<1" : Math.floor(share * 100)}${NB}%`;
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
