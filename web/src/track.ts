/** The picture under the scrubber's thumb: what is lent over time, and ticks for what happened. */
import type { Schemas } from "./api.ts";
import type { Moment } from "./moments.ts";
import { colour } from "./theme.ts";

export interface TrackOf {
  begin_s: number;
  end_s: number;
  now_s: number;
  vs_s: number | null;
  moments: readonly Moment[];
  tide: readonly Schemas["TideRow"][];
}

/** Half of the thumb: the range goes from here to as far from the end. */
const EDGE = 6;
/** What a tick looks like: its colour, and from where to where it goes, 0 above to 1 below. */
const TICKS: Readonly<Record<string, readonly [string, number, number, number]>> = {
  lent: ["--lent", 0.02, 0.14, 1],
  returned: ["--used", 0.02, 0.14, 1],
  reclaim: ["--ink-2", 0.02, 0.14, 1],
  drain: ["--queue", 0.86, 1, 2],
  pause: ["--queue", 0.86, 1, 2],
  people: ["--queue", 0.86, 1, 2],
  leader: ["--ink", 0.7, 1, 2],
  late: ["--bad", 0, 1, 2],
  lost: ["--bad", 0, 1, 2],
};

export function paintTrack(canvas: HTMLCanvasElement, of: TrackOf): void {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const brush = canvas.getContext("2d");
  if (brush === null || width === 0) return;
  brush.scale(ratio, ratio);
  const x = (at_s: number): number =>
    EDGE + ((at_s - of.begin_s) / (of.end_s - of.begin_s)) * (width - 2 * EDGE);
  const top = height * 0.16;
  const bottom = height * 0.84;

  brush.fillStyle = colour("--raised");
  brush.fillRect(EDGE, top, width - 2 * EDGE, bottom - top);
  const most = Math.max(1, ...of.tide.map((row) => row.lent + row.owned));
  const y = (gpus: number): number => bottom - (gpus / most) * (bottom - top);
  area(brush, of, x, y, bottom, (row) => row.lent, colour("--lent-soft"));
  area(brush, of, x, y, bottom, (row) => row.lent - row.unused, colour("--lent"));

  // What is later than the moment shown is dim.
  brush.globalAlpha = 0.6;
  brush.fillStyle = colour("--panel");
  brush.fillRect(x(of.now_s), top, Math.max(0, width - EDGE - x(of.now_s)), bottom - top);
  brush.globalAlpha = 1;

  for (const one of of.moments) {
    const tick = TICKS[one.kind];
    if (tick === undefined || (one.kind === "leader" && one.entry === 0)) continue;
    const [name, from, to, wide] = tick;
    brush.fillStyle = colour(name);
    brush.fillRect(x(one.at_s) - wide / 2, height * from, wide, height * (to - from));
  }
  if (of.vs_s !== null) {
    brush.fillStyle = colour("--amber");
    brush.fillRect(x(of.vs_s) - 1.5, 0, 3, height);
  }
}

function area(
  brush: CanvasRenderingContext2D,
  of: TrackOf,
  x: (at_s: number) => number,
  y: (gpus: number) => number,
  bottom: number,
  value: (row: Schemas["TideRow"]) => number,
  fill: string,
): void {
  if (of.tide.length === 0) return;
  brush.beginPath();
  brush.moveTo(x(of.begin_s), bottom);
  let before = bottom;
  for (const row of of.tide) {
    // What a row says holds until the next.
    brush.lineTo(x(row.at_s), before);
    before = y(value(row));
    brush.lineTo(x(row.at_s), before);
  }
  brush.lineTo(x(of.end_s), before);
  brush.lineTo(x(of.end_s), bottom);
  brush.closePath();
  brush.fillStyle = fill;
  brush.fill();
}
