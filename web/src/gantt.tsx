/** Bars over time in rows, drawn on a canvas; what they say is for readers in a table beside it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { hatch } from "./chart.tsx";
import { colour, scheme } from "./theme.ts";

export interface Bar {
  row: number;
  begin_s: number;
  end_s: number;
  /** Written on it, where there is room. */
  text: string;
  /** Said when it is pointed at. */
  about: string;
  /** A variable of the palette. */
  fill: string;
  hatched?: boolean;
}

export interface Mark {
  at_s: number;
  text: string;
  stroke: string;
}

interface Props {
  rows: readonly string[];
  bars: readonly Bar[];
  marks?: readonly Mark[];
  begin_s: number;
  end_s: number;
  /** The moment shown; what is later is dim. Null: the newest. */
  now_s?: number | null;
  label: string;
  onPick?: (at_s: number) => void;
}

const ROW = 34;
const BAR = 22;
const AXIS = 22;
const LEFT = 96;
const RIGHT = 14;
const STEPS_S = [60, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800];

export function Gantt(props: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const [said, setSaid] = useState("");
  const height = props.rows.length * ROW + AXIS;
  useEffect(() => {
    const around = box.current;
    if (around === null || canvas.current === null) return;
    const draw = (): void => {
      if (canvas.current !== null) paint(canvas.current, props, height);
    };
    draw();
    const seen = new ResizeObserver(draw);
    seen.observe(around);
    return () => seen.disconnect();
  }, [props.rows, props.bars, props.marks, props.begin_s, props.end_s, props.now_s, scheme.value]);

  function at(event: MouseEvent): { at_s: number; row: number } | null {
    const element = canvas.current;
    if (element === null) return null;
    const { left, top, width } = element.getBoundingClientRect();
    const share = (event.clientX - left - LEFT) / (width - LEFT - RIGHT);
    const at_s = props.begin_s + share * (props.end_s - props.begin_s);
    return { at_s, row: Math.floor((event.clientY - top) / ROW) };
  }

  function pointed(event: MouseEvent): void {
    const where = at(event);
    if (where === null) return;
    const slack_s = (3 / Math.max(1, canvas.current?.clientWidth ?? 1)) * (props.end_s - props.begin_s);
    const hit = props.bars.find(
      (bar) => bar.row === where.row && where.at_s >= bar.begin_s - slack_s && where.at_s <= bar.end_s + slack_s,
    );
    setSaid(hit?.about ?? "");
  }

  return (
    <div class="gantt" ref={box}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={props.label}
        style={{ height: `${height}px` }}
        onMouseMove={pointed}
        onMouseLeave={() => setSaid("")}
        onClick={(event) => {
          const where = at(event);
          if (where !== null && where.at_s >= props.begin_s) props.onPick?.(where.at_s);
        }}
      />
      <p class="gantt-said text" aria-hidden="true">
        {said === "" ? "Point at a bar for what it is; click for that moment." : said}
      </p>
    </div>
  );
}

function paint(canvas: HTMLCanvasElement, of: Props, height: number): void {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const brush = canvas.getContext("2d");
  if (brush === null || width < LEFT + RIGHT) return;
  brush.scale(ratio, ratio);
  brush.font = `12px ${colour("--font")}`;
  brush.textBaseline = "middle";
  const span_s = Math.max(1, of.end_s - of.begin_s);
  const x = (at_s: number): number => LEFT + ((at_s - of.begin_s) / span_s) * (width - LEFT - RIGHT);
  const bottom = of.rows.length * ROW;

  const step = STEPS_S.find((one) => (one / span_s) * (width - LEFT - RIGHT) >= 72) ?? 604_800;
  brush.textAlign = "center";
  for (let at_s = Math.ceil(of.begin_s / step) * step; at_s <= of.end_s; at_s += step) {
    brush.fillStyle = colour("--line");
    brush.fillRect(Math.round(x(at_s)), 0, 1, bottom);
    brush.fillStyle = colour("--ink-3");
    const text = new Date(at_s * 1000).toISOString();
    brush.fillText(step >= 86_400 ? text.slice(5, 10) : text.slice(11, 16), x(at_s), bottom + AXIS / 2 + 2);
  }
  brush.textAlign = "left";
  for (const [place, name] of of.rows.entries()) {
    brush.fillStyle = colour("--line");
    brush.fillRect(LEFT, (place + 1) * ROW - 1, width - LEFT - RIGHT, 1);
    brush.fillStyle = colour("--ink-2");
    brush.fillText(shortened(brush, name, LEFT - 10), 0, place * ROW + ROW / 2);
  }
  for (const bar of of.bars) {
    const left = Math.max(LEFT, x(bar.begin_s));
    const right = Math.min(width - RIGHT, x(bar.end_s));
    if (right < left) continue;
    const top = bar.row * ROW + (ROW - BAR) / 2;
    const wide = Math.max(2, right - left - 0.5);
    brush.fillStyle = bar.hatched ? hatchFor(bar.fill, ratio) : colour(bar.fill);
    brush.beginPath();
    brush.roundRect(left, top, wide, BAR, Math.min(3, wide / 2));
    brush.fill();
    if (bar.text !== "" && !bar.hatched) {
      brush.textAlign = "center";
      brush.fillStyle = colour("--panel");
      if (brush.measureText(bar.text).width < wide - 6) brush.fillText(bar.text, left + wide / 2, top + BAR / 2 + 1);
      brush.textAlign = "left";
    }
  }
  for (const mark of of.marks ?? []) {
    if (mark.at_s < of.begin_s || mark.at_s > of.end_s) continue;
    brush.fillStyle = colour(mark.stroke);
    brush.fillRect(x(mark.at_s) - 1, 0, 2, bottom);
    brush.textAlign = x(mark.at_s) > width - 120 ? "right" : "left";
    const at_px = x(mark.at_s) + (brush.textAlign === "right" ? -5 : 5);
    // An edge in the panel's colour: the words can be read over a bar, too.
    brush.lineWidth = 4;
    brush.lineJoin = "round";
    brush.strokeStyle = colour("--panel");
    brush.strokeText(mark.text, at_px, 8);
    brush.fillText(mark.text, at_px, 8);
    brush.textAlign = "left";
  }
  if (of.now_s !== null && of.now_s !== undefined && of.now_s <= of.end_s) {
    brush.globalAlpha = 0.62;
    brush.fillStyle = colour("--panel");
    brush.fillRect(x(of.now_s), 0, width - RIGHT - x(of.now_s), bottom);
    brush.globalAlpha = 1;
    brush.fillStyle = colour("--amber");
    brush.fillRect(x(of.now_s) - 1, 0, 2, bottom);
  }
}

function hatchFor(fill: string, ratio: number): CanvasPattern | string {
  const found = hatch(colour(fill), colour("--panel"));
  // The pattern is as fine as the screen; the brush is scaled already.
  if (typeof found !== "string") found.setTransform(new DOMMatrix().scale(1 / ratio));
  return found;
}

function shortened(brush: CanvasRenderingContext2D, text: string, most: number): string {
  if (brush.measureText(text).width <= most) return text;
  let cut = text;
  while (cut.length > 1 && brush.measureText(`${cut}…`).width > most) cut = cut.slice(0, -1);
  return `${cut}…`;
}
