/**
 * Where each node of a fleet is on the canvas, in whole device pixels.
 *
 * Pools follow each other from the top; the nodes of a pool fill rows from left to right in their
 * order, each a block of its GPUs. The largest cell is taken that fits the height; where even the
 * smallest does not, the canvas is higher and its box scrolls.
 */
import type { Schemas } from "../api.ts";

/** The answer of `GET /fleet`: columns, so that 10,000 nodes are quick to send and to read. */
export type Fleet = Schemas["FleetAnswer"];

export interface PoolPlace {
  pool: number;
  /** Its nodes, in the order in which they are laid out. */
  nodes: number[];
  top: number;
  /** Where its first row of blocks begins; above it is its name. */
  first: number;
  columns: number;
  /** Of its blocks, in pixels; a row and a column take a gap more. */
  blockWidth: number;
  blockHeight: number;
  /** How many GPUs a block has in a row. */
  across: number;
}

export interface Layout {
  width: number;
  height: number;
  /** The side of a GPU, with the line that parts it from the next. */
  side: number;
  /** Between blocks; a node's frame is in it. */
  gap: number;
  /** Above each row of blocks, for names; 0 if there is no room. */
  label: number;
  pools: PoolPlace[];
  /** By node: its left upper corner, and which pool's place it is in. */
  x: Int32Array;
  y: Int32Array;
  place: Int32Array;
  /** By node: its position among the nodes of its pool. */
  rank: Int32Array;
  /** By node: its first GPU in the column of GPUs. */
  offset: Int32Array;
}

const SIDES = [24, 20, 18, 16, 14, 12, 10, 8, 6, 5, 4, 3];
const NAMED_FROM = 12;

/** Lay a fleet out for so many CSS pixels; `scale` device pixels are one of them. */
export function layOut(fleet: Fleet, width: number, height: number, scale: number): Layout {
  const members: number[][] = fleet.pools.map(() => []);
  fleet.nodes.pool.forEach((pool, node) => members[pool]?.push(node));
  const most = members.map((nodes) =>
    nodes.reduce((so, node) => Math.max(so, fleet.nodes.gpus[node] ?? 0), 1),
  );
  const across = Math.max(1, Math.floor(width * scale));
  const sizes = SIDES.map((side) => sized(members, most, across, side, scale));
  const found = sizes.find((one) => one.height <= height * scale) ?? sizes.at(-1);
  return placed(fleet, members, found as Sized);
}

type Sized = Pick<Layout, "width" | "height" | "side" | "gap" | "label" | "pools">;

function sized(
  members: number[][],
  most: number[],
  width: number,
  cssSide: number,
  scale: number,
): Sized {
  const side = Math.max(2, Math.round(cssSide * scale));
  const line = Math.max(1, Math.round(scale));
  const gap = cssSide >= 8 ? Math.round(10 * scale) : 4 * line;
  const label = cssSide >= NAMED_FROM ? Math.round(17 * scale) : 0;
  const pools: PoolPlace[] = [];
  let top = 0;
  members.forEach((nodes, pool) => {
    if (!nodes.length) return;
    const gpus = most[pool] ?? 1;
    // Small blocks are folded: squarer ones leave less of the width to gaps.
    const across = cssSide <= 5 && gpus > 4 ? Math.ceil(gpus / 2) : Math.min(gpus, 16);
    const blockWidth = across * side;
    const blockHeight = Math.ceil(gpus / across) * side;
    const columns = Math.max(1, Math.floor((width - gap) / (blockWidth + gap)));
    const first = top + Math.round(24 * scale) + gap;
    pools.push({ pool, nodes, top, first, columns, blockWidth, blockHeight, across });
    top = first + Math.ceil(nodes.length / columns) * (blockHeight + gap + label);
    top += Math.round(6 * scale);
  });
  return { width, height: Math.max(top, 1), side, gap, label, pools };
}

function placed(fleet: Fleet, members: number[][], size: Sized): Layout {
  const { gap, label } = size;
  const count = fleet.nodes.name.length;
  const layout: Layout = {
    ...size,
    x: new Int32Array(count), y: new Int32Array(count), place: new Int32Array(count),
    rank: new Int32Array(count), offset: new Int32Array(count),
  };
  let offset = 0;
  for (let node = 0; node < count; node++) {
    layout.offset[node] = offset;
    offset += fleet.nodes.gpus[node] ?? 0;
  }
  size.pools.forEach((place, at) => {
    (members[place.pool] ?? []).forEach((node, rank) => {
      const row = Math.floor(rank / place.columns);
      layout.x[node] = gap + (rank % place.columns) * (place.blockWidth + gap);
      layout.y[node] = place.first + label + row * (place.blockHeight + gap + label);
      layout.place[node] = at;
      layout.rank[node] = rank;
    });
  });
  return layout;
}

/** Say which node is at a pixel, with its frame and its name. */
export function nodeAt(layout: Layout, x: number, y: number): number | null {
  for (const place of layout.pools) {
    const stepX = place.blockWidth + layout.gap;
    const stepY = place.blockHeight + layout.gap + layout.label;
    const row = Math.floor((y - place.first) / stepY);
    const column = Math.floor((x - layout.gap / 2) / stepX);
    if (row < 0 || column < 0 || column >= place.columns) continue;
    const node = place.nodes[row * place.columns + column];
    if (node !== undefined) return node;
  }
  return null;
}

/** Say where a key leads from a node; the same node if it leads nowhere, null if it is no such key. */
export function moved(layout: Layout, node: number, key: string): number | null {
  const at = layout.place[node] ?? 0;
  const place = layout.pools[at];
  const rank = layout.rank[node] ?? 0;
  if (!place) return null;
  const last = place.nodes.length - 1;
  const to = (index: number, wanted: number): number => {
    const other = layout.pools[index];
    if (!other) return node;
    return other.nodes[Math.min(Math.max(wanted, 0), other.nodes.length - 1)] ?? node;
  };
  switch (key) {
    case "ArrowRight":
      return rank < last ? to(at, rank + 1) : to(at + 1, 0);
    case "ArrowLeft":
      return rank > 0 ? to(at, rank - 1) : at > 0 ? to(at - 1, Infinity) : node;
    case "ArrowDown": {
      if (rank + place.columns <= last) return to(at, rank + place.columns);
      const isLastRow = Math.floor(rank / place.columns) === Math.floor(last / place.columns);
      return isLastRow ? below(layout, node, at) : to(at, last);
    }
    case "ArrowUp":
      return rank >= place.columns ? to(at, rank - place.columns) : above(layout, node, at);
    case "Home":
      return to(at, 0);
    case "End":
      return to(at, last);
    case "PageDown":
      return to(at + 1, 0);
    case "PageUp":
      return rank > 0 ? to(at, 0) : to(at - 1, 0);
    default:
      return null;
  }
}

function below(layout: Layout, node: number, at: number): number {
  const other = layout.pools[at + 1];
  if (!other) return node;
  const column = columnAt(layout, other, layout.x[node] ?? 0);
  return other.nodes[Math.min(column, other.nodes.length - 1)] ?? node;
}

function above(layout: Layout, node: number, at: number): number {
  const other = layout.pools[at - 1];
  if (!other) return node;
  const last = other.nodes.length - 1;
  const row = Math.floor(last / other.columns) * other.columns;
  return other.nodes[Math.min(row + columnAt(layout, other, layout.x[node] ?? 0), last)] ?? node;
}

function columnAt(layout: Layout, place: PoolPlace, x: number): number {
  const column = Math.round((x - layout.gap) / (place.blockWidth + layout.gap));
  return Math.min(Math.max(column, 0), place.columns - 1);
}
