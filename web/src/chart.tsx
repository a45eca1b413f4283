/** Time series by uPlot, in the palette in force; the moment shown is a line, what is later is dim. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, scheme } from "./theme.ts";

export interface Line {
  label: string;
  /** A variable of the palette, such as "--lent". */
  stroke: string;
  width?: number;
  dash?: number[];
  stepped?: boolean;
  /** Filled down to zero with this variable of the palette. */
  fill?: string;
}

/** Fill between two lines, by their numbers from 0: plain, or hatched. */
export interface Between {
  upper: number;
  lower: number;
  fill: string;
  hatched?: boolean;
}

export interface ChartProps {
  /** Seconds since the Unix epoch, ascending. */
  x: readonly number[];
  /** Of each line, its values. */
  ys: readonly (readonly (number | null)[])[];
  lines: readonly Line[];
  between?: readonly Between[];
  height: number;
  /** What it shows, for those who do not see it. */
  label: string;
  /** Whether the times are written below it. */
  times?: boolean;
  /** The moment that is shown, if not the newest. */
  now_s?: number | null;
  /** Charts of one name share cursor and zoom. */
  group?: string;
  /** Called with the row that the pointer is at; null: at none. */
  onPoint?: (row: number | null) => void;
  /** Called with the moment that was clicked. */
  onPick?: (at_s: number) => void;
  max?: number;
}

/** Stripes, so that it is told apart without its colour. */
export function hatch(stroke: string, ground: string): CanvasPattern | string {
  const ratio = devicePixelRatio || 1;
  const size = Math.round(7 * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const brush = tile.getContext("2d");
  if (brush === null) return stroke;
  brush.fillStyle = ground;
  brush.fillRect(0, 0, size, size);
  brush.strokeStyle = stroke;
  brush.lineWidth = 1.4 * ratio;
  brush.beginPath();
  for (const shift of [-size, 0, size]) {
    brush.moveTo(shift - 1, size + 1);
    brush.lineTo(shift + size + 1, -1);
  }
  brush.stroke();
  return brush.createPattern(tile, "repeat") ?? stroke;
}

const utc = (at_s: number): Date => uPlot.tzDate(new Date(at_s * 1000), "Etc/UTC");
const GUTTER = 46;
/** Of a chart of one moment, so much is shown before and after it. */
const AROUND_S = 300;

/** Whether all that there is to draw is of one moment: no line leads anywhere, so it is a point. */
function isOneMoment(plot: uPlot): boolean {
  const x = plot.data[0];
  return x.length > 0 && x[0] === x[x.length - 1];
}

/** Give the axis of one moment minutes; left to itself it has years. */
function showAround(plot: uPlot): void {
  const at_s = plot.data[0][0];
  if (isOneMoment(plot) && at_s !== undefined) plot.setScale("x", { min: at_s - AROUND_S, max: at_s + AROUND_S });
}

function options(props: ChartProps, width: number, latest: { current: ChartProps }): uPlot.Options {
  const ink = colour("--ink-3");
  const font = `12px ${colour("--font")}`;
  const grid = { stroke: colour("--line"), width: 1 };
  const ticks = { show: false };
  const steps = uPlot.paths.stepped?.({ align: 1 });
  return {
    width,
    height: props.height,
    tzDate: utc,
    padding: [8, 22, props.times ? 0 : 8, 0],
    legend: { show: false },
    ...(props.group === undefined
      ? { cursor: cursorOf() }
      : { cursor: { ...cursorOf(), sync: { key: props.group, setSeries: false } } }),
    scales: {
      x: { time: true },
      y: { range: (_, __, most) => [0, Math.max(1, latest.current.max ?? 0, most * 1.04)] },
    },
    axes: [
      {
        stroke: ink, font, grid, ticks, size: props.times ? 24 : 0, gap: 4, space: 90,
        values: props.times ? clocks : (_, splits) => splits.map(() => ""),
      },
      { stroke: ink, font, grid, ticks, size: GUTTER, gap: 6, space: 34, incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000] },
    ],
    series: [
      {},
      ...props.lines.map((line): uPlot.Series => ({
        label: line.label,
        stroke: colour(line.stroke),
        width: line.width ?? 1.75,
        points: { show: isOneMoment },
        ...(line.dash ? { dash: line.dash } : {}),
        ...(line.stepped && steps ? { paths: steps } : {}),
        ...(line.fill ? { fill: colour(line.fill) } : {}),
      })),
    ],
    bands: (props.between ?? []).map((band) => ({
      series: [band.upper + 1, band.lower + 1],
      fill: (band.hatched
        ? hatch(colour(band.fill), colour("--panel"))
        : colour(band.fill)) as string,
    })),
    hooks: {
      draw: [(plot) => markMoment(plot, latest.current.now_s ?? null)],
      setCursor: [(plot) => latest.current.onPoint?.(plot.cursor.idx ?? null)],
    },
  };
}

function cursorOf(): uPlot.Cursor {
  return { y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: true } };
}

function clocks(_: uPlot, splits: number[], __: number, ___: number, step: number): string[] {
  let before = "";
  return splits.map((at_s) => {
    const text = new Date(at_s * 1000).toISOString();
    const today = text.slice(0, 10);
    const month = new Date(at_s * 1000).toLocaleString("en-GB", {
      day: "numeric", month: "short", timeZone: "UTC",
    });
    const shown = step >= 86_400 || (before !== "" && before !== today) ? month : text.slice(11, 16);
    before = today;
    return shown;
  });
}

/** Draw the moment shown, and lay a veil over what came later. */
function markMoment(plot: uPlot, now_s: number | null): void {
  if (now_s === null) return;
  const { left, top, width, height } = plot.bbox;
  const at = Math.round(plot.valToPos(now_s, "x", true));
  if (at < left || at > left + width) return;
  const brush = plot.ctx;
  brush.save();
  brush.globalAlpha = 0.62;
  brush.fillStyle = colour("--panel");
  brush.fillRect(at, top, left + width - at, height);
  brush.globalAlpha = 1;
  brush.fillStyle = colour("--amber");
  brush.fillRect(at - 1, top, Math.max(2, 2 * devicePixelRatio), height);
  brush.restore();
}

export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const look = JSON.stringify([props.lines, props.between, props.height, props.times, scheme.value]);
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const drawn = new uPlot(
      options(props, Math.max(200, element.clientWidth), latest),
      aligned(latest.current),
      element,
    );
    showAround(drawn);
    plot.current = drawn;
    let pressedAt = 0;
    drawn.over.addEventListener("mousedown", (event) => (pressedAt = event.clientX));
    drawn.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressedAt) > 3) return;
      const { left } = drawn.over.getBoundingClientRect();
      latest.current.onPick?.(drawn.posToVal(event.clientX - left, "x"));
    });
    const seen = new ResizeObserver(() => {
      const width = Math.max(200, element.clientWidth);
      if (width !== drawn.width) drawn.setSize({ width, height: props.height });
    });
    seen.observe(element);
    return () => {
      seen.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [look]);
  useEffect(() => {
    const { x } = props;
    const drawn = plot.current;
    if (drawn === null) return;
    const { min, max } = drawn.scales["x"] ?? {};
    const had = drawn.data[0];
    const zoomed = min != null && max != null && (min > (had[0] ?? 0) || max < (had[had.length - 1] ?? 0));
    drawn.setData(aligned(props), !zoomed);
    showAround(drawn);
    if (zoomed) drawn.redraw();
    void x;
  }, [props.x, props.ys]);
  useEffect(() => plot.current?.redraw(false), [props.now_s]);
  return <div ref={place} class="chart" role="img" aria-label={props.label} />;
}

function aligned(props: ChartProps): uPlot.AlignedData {
  return [props.x as number[], ...props.ys.map((one) => one as (number | null)[])];
}
