/**
 * A fleet as one image: each GPU a tile of its colour and its hatch, each node a frame.
 *
 * All is written as whole pixels into one buffer that goes to the canvas at once: for 10,000 nodes
 * of 8 GPUs that takes a sixth of what as many rectangles do. No colour stands alone: what differs
 * in colour differs in hatch or frame too, or is said in words beside it.
 */

import type { Fleet, Layout, PoolPlace } from "./layout.ts";

/** The hatches of a tile. */
export const HATCHES = ["plain", "rising", "dots", "lines", "falling", "bars", "checks"] as const;
export type Hatch = (typeof HATCHES)[number];

/** What a GPU looks like: its ground, its hatch, and the colour of that. */
export interface Look {
  fill: number;
  ink: number;
  hatch: Hatch;
}

/** What a node's frame says; the first that holds is shown. */
export type Frame = "silent" | "draining" | "cordoned" | "due" | "lent" | "none";

export interface FramePalette {
  silent: number;
  draining: number;
  cordoned: number;
  due: number;
  lent: number;
}

/** Say which frame a node has. */
export function frameOf(fleet: Fleet, node: number): Frame {
  const of = fleet.nodes;
  if (of.state[node] !== "alive") return "silent";
  if (of.draining[node]) return "draining";
  if (of.cordoned[node]) return "cordoned";
  if (of.loan[node] === null || of.loan[node] === undefined) return "none";
  return of.due_s[node] == null ? "lent" : "due";
}

/** Read a colour, as `#rgb` or `#rrggbb`, into a pixel of an image. */
export function pixel(colour: string): number {
  const digits = colour.trim().replace("#", "");
  const long = digits.length === 3 ? [...digits].map((one) => one + one).join("") : digits;
  const value = Number.parseInt(long, 16);
  if (!/^[0-9a-f]{6}$/i.test(long) || Number.isNaN(value)) return 0xff80_8080 >>> 0;
  const red = value >> 16;
  const green = (value >> 8) & 255;
  const blue = value & 255;
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Mix two colours; `share` of the second. */
export function mixed(one: number, other: number, share: number): number {
  const part = (shift: number): number => {
    const from = (one >> shift) & 255;
    return Math.round(from + (((other >> shift) & 255) - from) * share) << shift;
  };
  return (0xff00_0000 | part(16) | part(8) | part(0)) >>> 0;
}

/** Say whether a hatch has ink at a pixel of a tile. */
function inked(hatch: Hatch, x: number, y: number, side: number): boolean {
  const period = side < 6 ? 3 : Math.max(4, Math.round(side / 3));
  const thick = side < 10 ? 1 : Math.max(1, Math.round(period / 3));
  switch (hatch) {
    case "plain":
      return false;
    case "rising":
      return (x + y) % period < thick;
    case "falling":
      return (x - y + period * side) % period < thick;
    case "lines":
      return y % period < thick;
    case "bars":
      return x % period < thick;
    case "dots":
      return Math.abs(x - (side - 1) / 2) <= side / 9 && Math.abs(y - (side - 1) / 2) <= side / 9;
    case "checks":
      return (x + y) % period < thick || (x - y + period * side) % period < thick;
  }
}

function tileOf(look: Look, side: number, line: number): Uint32Array {
  const shown = side >= 5 * line ? side - line : side;
  const tile = new Uint32Array(shown * shown);
  for (let y = 0; y < shown; y++) {
    for (let x = 0; x < shown; x++) {
      tile[y * shown + x] = inked(look.hatch, x, y, shown) ? look.ink : look.fill;
    }
  }
  return tile;
}

/** What an image shows: only nodes that are otherwise now are painted anew. */
export interface Painted {
  /** By GPU: the number of its look. */
  looks: Int32Array;
  /** By node: the number of its frame. */
  frames: Uint8Array;
  /** Looks by what they are, each with its tile. */
  known: Map<string, { number: number; tile: Uint32Array }>;
  /** Everything else that pixels depend on. */
  scheme: string;
  /** How many nodes were painted last. */
  nodes: number;
}

const FRAME_NUMBERS: readonly Frame[] = ["none", "silent", "draining", "cordoned", "due", "lent"];

/**
 * Paint a fleet into the pixels of an image of the layout's size.
 *
 * `lookOf` has, by GPU, the place in `looks` of what it looks like. `before` is what the pixels show
 * by now, of the same layout; without it all is painted.
 */
export function paint(
  pixels: Uint32Array,
  fleet: Fleet,
  layout: Layout,
  looks: Look[],
  lookOf: Uint8Array | Uint16Array,
  frames: FramePalette,
  ground: number,
  line: number,
  before: Painted | null = null,
): Painted {
  const { width, height, side } = layout;
  const scheme = JSON.stringify([frames, ground, line]);
  const kept = before?.scheme === scheme ? before : null;
  const painted: Painted = kept ?? {
    looks: new Int32Array(fleet.gpus.length).fill(-1), frames: new Uint8Array(fleet.nodes.name.length),
    known: new Map(), scheme, nodes: 0,
  };
  const found = looks.map((look) => {
    const name = `${look.fill} ${look.ink} ${look.hatch}`;
    let one = painted.known.get(name);
    if (one === undefined) {
      one = { number: painted.known.size, tile: tileOf(look, side, line) };
      painted.known.set(name, one);
    }
    return one;
  });
  const numbers = Int32Array.from(found, (one) => one.number);
  const tiles = found.map((one) => one.tile);
  const shown = side >= 5 * line ? side - line : side;
  const others = layout.pools.map((place) =>
    place.nodes.filter((node) => differs(painted, fleet, layout, node, lookOf, numbers)));
  painted.nodes = others.reduce((sum, nodes) => sum + nodes.length, 0);
  // To clear many nodes one by one takes longer than to begin with the whole ground.
  const whole = kept === null || painted.nodes > fleet.nodes.name.length / 2;
  if (whole) pixels.fill(ground);
  for (const [index, place] of layout.pools.entries()) {
    for (const node of whole ? place.nodes : (others[index] ?? [])) {
      if (!whole) clear(pixels, layout, place, node, ground);
      const left = layout.x[node] as number;
      const top = layout.y[node] as number;
      const gpus = fleet.nodes.gpus[node] as number;
      const first = layout.offset[node] as number;
      for (let gpu = 0; gpu < gpus; gpu++) {
        const x = left + (gpu % place.across) * side;
        const y = top + Math.floor(gpu / place.across) * side;
        if (x + shown > width || y + shown > height) continue;
        stamp(pixels, y * width + x, width, tiles[lookOf[first + gpu] as number] as Uint32Array, shown);
      }
      const frame = frameOf(fleet, node);
      if (frame === "none") continue;
      const wide = Math.min(gpus, place.across) * side - (side - shown);
      const high = Math.ceil(gpus / place.across) * side - (side - shown);
      box(pixels, layout, frame, frames[frame], left, top, wide, high, line);
    }
  }
  return painted;
}

/** Copy a tile of `shown` by `shown` pixels to a place of an image. */
function stamp(pixels: Uint32Array, place: number, width: number, tile: Uint32Array, shown: number): void {
  let from = 0;
  for (let row = 0; row < shown; row++) {
    let at = place + row * width;
    for (let column = 0; column < shown; column++) pixels[at++] = tile[from++] as number;
  }
}

/** Say whether a node looks otherwise than it was painted, and note how it looks now. */
function differs(
  painted: Painted,
  fleet: Fleet,
  layout: Layout,
  node: number,
  lookOf: Uint8Array | Uint16Array,
  numbers: Int32Array,
): boolean {
  const first = layout.offset[node] as number;
  const end = first + (fleet.nodes.gpus[node] as number);
  const frame = FRAME_NUMBERS.indexOf(frameOf(fleet, node));
  let other = painted.frames[node] !== frame;
  painted.frames[node] = frame;
  for (let gpu = first; gpu < end; gpu++) {
    const number = numbers[lookOf[gpu] as number] as number;
    if (painted.looks[gpu] === number) continue;
    painted.looks[gpu] = number;
    other = true;
  }
  return other;
}

/** Take a node and its frame away: half of the gap around its block is its own. */
function clear(pixels: Uint32Array, layout: Layout, place: PoolPlace, node: number, ground: number): void {
  const { width, height } = layout;
  const around = Math.floor(layout.gap / 2);
  const from = Math.max(0, (layout.x[node] as number) - around);
  const to = Math.min(width, (layout.x[node] as number) + place.blockWidth + around);
  const top = Math.max(0, (layout.y[node] as number) - around);
  const bottom = Math.min(height, (layout.y[node] as number) + place.blockHeight + around);
  for (let y = top; y < bottom; y++) pixels.fill(ground, y * width + from, y * width + to);
}

/**
 * Draw a node's frame: all round if lent, dashed if due back, dotted if it drains, corners alone
 * if cordoned, and crossed out if its agent is silent.
 */
function box(
  pixels: Uint32Array,
  layout: Layout,
  frame: Frame,
  colour: number,
  left: number,
  top: number,
  wide: number,
  high: number,
  line: number,
): void {
  const { width, height, side } = layout;
  // It is as far away as it is thick.
  const thick = layout.gap >= 8 * line ? 2 * line : line;
  const x0 = left - 2 * thick;
  const y0 = top - 2 * thick;
  const w = wide + 4 * thick;
  const h = high + 4 * thick;
  const dash = Math.max(3 * line, Math.round(side * 0.6));
  const corner = Math.max(2 * line, Math.min(Math.round(w / 5), 3 * side));
  const put = (x: number, y: number): void => {
    if (x >= 0 && y >= 0 && x < width && y < height) pixels[y * width + x] = colour;
  };
  const drawn = (along: number, length: number): boolean => {
    if (frame === "due") return along % (2 * dash) < dash;
    if (frame === "draining") return along % (2 * thick + 2 * line) < thick;
    if (frame === "cordoned") return along < corner || along >= length - corner;
    return true;
  };
  for (let x = 0; x < w; x++) {
    if (!drawn(x, w)) continue;
    for (let t = 0; t < thick; t++) {
      put(x0 + x, y0 + t);
      put(x0 + x, y0 + h - 1 - t);
    }
  }
  for (let y = 0; y < h; y++) {
    if (frame === "cordoned" ? y >= h / 3 && y < (2 * h) / 3 : !drawn(y, h)) continue;
    for (let t = 0; t < thick; t++) {
      put(x0 + t, y0 + y);
      put(x0 + w - 1 - t, y0 + y);
    }
  }
  if (frame !== "silent") return;
  for (let x = 0; x < wide; x++) {
    const y = Math.round((x * (high - 1)) / Math.max(wide - 1, 1));
    for (let t = 0; t < thick; t++) {
      put(left + x, top + y + t);
      put(left + x, top + high - 1 - y + t);
    }
  }
}
