/** The fleet on a canvas: the image of pixels, names over it, and the ring around one node. */

import { isolated } from "../bidi.ts";
import { type Fleet, type Layout, layOut } from "./layout.ts";
import type { Coloured, FleetColours } from "./looks.ts";
import { type Frame, type FramePalette, type Look, type Painted, paint, pixel } from "./paint.ts";

/** Colours as the page's style sheet has them. */
export interface Scheme {
  colours: FleetColours;
  frames: FramePalette;
  ground: number;
  text: string;
  muted: string;
  ring: string;
}

const SERIES = 8;
const STEPS = 5;

/** Read the scheme from the style sheet's variables. */
export function schemeOf(element: Element): Scheme {
  const style = getComputedStyle(element);
  const text = (name: string, otherwise: string): string =>
    style.getPropertyValue(name).trim() || otherwise;
  const of = (name: string, otherwise: string): number => pixel(text(name, otherwise));
  const series = Array.from({ length: SERIES }, (_, at) => of(`--fleet-${at + 1}`, "#0072b2"));
  const ramp = Array.from({ length: STEPS }, (_, at) => of(`--fleet-use-${at + 1}`, "#888888"));
  return {
    colours: {
      series,
      ramp,
      free: of("--fleet-free", "#dddddd"),
      freeInk: of("--fleet-free-ink", "#999999"),
      owner: of("--fleet-owner", "#cccccc"),
      ownerInk: of("--fleet-owner-ink", "#888888"),
      own: of("--fleet-own", "#9aabba"),
      ink: of("--fleet-ink", "#ffffff"),
      good: of("--fleet-good", "#009e73"),
      warn: of("--fleet-warn", "#e69f00"),
      bad: of("--fleet-bad", "#d55e00"),
      lent: of("--fleet-lent", "#56b4e9"),
    },
    frames: {
      silent: of("--fleet-bad", "#d55e00"),
      draining: of("--fleet-frame", "#222222"),
      cordoned: of("--fleet-frame", "#222222"),
      due: of("--fleet-due", "#e69f00"),
      lent: of("--fleet-lent", "#56b4e9"),
    },
    ground: of("--fleet-ground", "#ffffff"),
    text: text("--fleet-text", "#222222"),
    muted: text("--fleet-muted", "#666666"),
    ring: text("--fleet-ring", "#0050b0"),
  };
}

/** A fleet that is painted: what moves over it needs only the ring drawn anew. */
export class FleetPicture {
  readonly layout: Layout;
  /** How long the newest repaint took, in milliseconds. */
  took = 0;
  /** How many nodes it painted: those that looked otherwise before. */
  get nodes(): number {
    return this.painted?.nodes ?? 0;
  }
  private scheme: Scheme | null = null;
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private painted: Painted | null = null;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private fleet: Fleet,
    private readonly width: number,
    height: number,
    private readonly scale: number,
  ) {
    this.layout = layOut(fleet, width, height, scale);
  }

  /** Show another moment of the same nodes; false if they are others, or the room is another. */
  follow(canvas: HTMLCanvasElement, fleet: Fleet, width: number, scale: number): boolean {
    const fits = this.canvas === canvas && this.width === width && this.scale === scale;
    if (!fits || !likewise(this.fleet, fleet)) return false;
    this.fleet = fleet;
    return true;
  }

  /** Paint all of it, with a ring around a node if one is named. */
  repaint(shown: Coloured, scheme: Scheme, focused: number | null): void {
    this.scheme = scheme;
    const begun = performance.now();
    const { width, height } = this.layout;
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    const context = this.canvas.getContext("2d", { alpha: false });
    if (!context || !width) return;
    if (!this.image) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const line = Math.max(1, Math.round(this.scale));
    const { looks, lookOf } = shown;
    const { frames, ground } = scheme;
    const before = this.painted;
    this.painted = paint(
      this.pixels, this.fleet, this.layout, looks, lookOf, frames, ground, line, before,
    );
    this.drawn(context, focused);
    this.took = performance.now() - begun;
  }

  /** Move the ring. */
  focus(focused: number | null): void {
    const context = this.canvas.getContext("2d", { alpha: false });
    if (context) this.drawn(context, focused);
  }

  private drawn(context: CanvasRenderingContext2D, focused: number | null): void {
    if (!this.image || !this.scheme) return;
    context.putImageData(this.image, 0, 0);
    this.names(context, this.scheme);
    if (focused !== null) this.ring(context, focused, this.scheme.ring);
  }

  private names(context: CanvasRenderingContext2D, scheme: Scheme): void {
    const { fleet, layout, scale } = this;
    context.direction = "ltr";
    context.textBaseline = "middle";
    for (const place of layout.pools) {
      const pool = fleet.pools[place.pool];
      const middle = place.top + 14 * scale;
      context.font = `600 ${13 * scale}px system-ui, sans-serif`;
      context.fillStyle = scheme.text;
      const name = fitted(context, pool?.pool ?? "", layout.width / 2);
      context.fillText(name, layout.gap, middle);
      const after = layout.gap + context.measureText(name).width + 8 * scale;
      context.font = `${12 * scale}px system-ui, sans-serif`;
      context.fillStyle = scheme.muted;
      const count = place.nodes.length.toLocaleString("en");
      // Most pools are called by their kind: that is said once.
      const kind = pool === undefined || pool.kind === pool.pool ? "" : `${pool.kind} · `;
      context.fillText(`${kind}${count} ${place.nodes.length === 1 ? "node" : "nodes"}`, after, middle);
      if (!layout.label) continue;
      context.font = `${11 * scale}px system-ui, sans-serif`;
      for (const node of place.nodes) {
        const text = fitted(context, fleet.nodes.name[node] ?? "", place.blockWidth + layout.gap / 2);
        const y = (layout.y[node] ?? 0) - layout.label / 2 - 2 * scale;
        context.fillText(text, layout.x[node] ?? 0, y);
      }
    }
  }

  private ring(context: CanvasRenderingContext2D, node: number, colour: string): void {
    const place = this.layout.pools[this.layout.place[node] ?? 0];
    if (!place) return;
    const line = Math.max(2, Math.round(2 * this.scale));
    const away = Math.max(line, Math.floor(this.layout.gap / 2));
    const rows = Math.ceil((this.fleet.nodes.gpus[node] ?? 1) / place.across);
    const columns = Math.min(this.fleet.nodes.gpus[node] ?? 1, place.across);
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(
      (this.layout.x[node] ?? 0) - away,
      (this.layout.y[node] ?? 0) - away,
      columns * this.layout.side + 2 * away - line / 2,
      rows * this.layout.side + 2 * away - line / 2,
    );
  }
}

/** Say whether two fleets are laid out alike: the same nodes, of the same pools and sizes. */
function likewise(one: Fleet, other: Fleet): boolean {
  const same = <T,>(these: readonly T[], those: readonly T[]): boolean =>
    these.length === those.length && these.every((value, at) => value === those[at]);
  return (
    same(one.pools.map((pool) => pool.pool), other.pools.map((pool) => pool.pool)) &&
    same(one.pools.map((pool) => pool.kind), other.pools.map((pool) => pool.kind)) &&
    same(one.nodes.name, other.nodes.name) &&
    same(one.nodes.pool, other.nodes.pool) &&
    same(one.nodes.gpus, other.nodes.gpus)
  );
}

/** Paint one tile, as the legend shows it. */
export function swatch(canvas: HTMLCanvasElement, look: Look, scale: number): void {
  painted(canvas, look, 14, 14, 1, scale, null, look.fill);
}

/** Paint a frame around two free GPUs, as the legend shows it. */
export function frameSwatch(canvas: HTMLCanvasElement, frame: Frame, scale: number): void {
  const { colours, ground } = schemeOf(canvas);
  const look: Look = { fill: colours.free, ink: colours.freeInk, hatch: "plain" };
  painted(canvas, look, 10, 30, 2, scale, frame, ground);
}

/** One node of free GPUs in a picture of its own. */
function painted(
  canvas: HTMLCanvasElement,
  look: Look,
  cssSide: number,
  cssWidth: number,
  gpus: number,
  scale: number,
  frame: Frame | null,
  ground: number,
): void {
  const side = Math.round(cssSide * scale);
  const width = Math.round(cssWidth * scale);
  const gap = frame === null ? 0 : Math.round(5 * scale);
  const height = side + 2 * gap;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { alpha: false });
  if (!context) return;
  const image = context.createImageData(width, height);
  const layout: Layout = {
    width, height, side, gap: 2 * gap, label: 0,
    pools: [{ pool: 0, nodes: [0], top: 0, first: gap, columns: 1,
      blockWidth: gpus * side, blockHeight: side, across: gpus }],
    x: Int32Array.of(gap), y: Int32Array.of(gap), place: new Int32Array(1),
    rank: new Int32Array(1), offset: new Int32Array(1),
  };
  const lent = frame === "lent" || frame === "due" ? "lent" : null;
  const fleet: Fleet = {
    cell: "", entry: null, now_s: 0, origin_s: 0, pools: [{ pool: "", kind: "training" }],
    nodes: { name: [""], pool: [0], gpus: [gpus], state: [frame === "silent" ? "unknown" : "alive"],
      loan: [lent], due_s: [frame === "due" ? 0 : null], cordoned: [frame === "cordoned"],
      draining: [frame === "draining"], used: [null] },
    jobs: [], gpus: Array.from({ length: gpus }, () => -1),
  };
  const line = Math.max(1, Math.round(scale));
  const pixels = new Uint32Array(image.data.buffer);
  const { frames } = schemeOf(canvas);
  paint(pixels, fleet, layout, [look], new Uint8Array(gpus), frames, ground, line);
  context.putImageData(image, 0, 0);
}

function fitted(context: CanvasRenderingContext2D, name: string, room: number): string {
  const clean = name.slice(0, 80).replace(/[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "·");
  if (context.measureText(clean).width <= room) return isolated(clean);
  let text = clean;
  while (text.length > 1 && context.measureText(`${text}…`).width > room) {
    text = text.slice(0, Math.floor(text.length * 0.9));
  }
  return isolated(`${text}…`);
}
