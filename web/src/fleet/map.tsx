/** The picture of the fleet in the page: sized to it, walked by keys, told in words. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock } from "../format.ts";
import { FleetPicture, type Scheme } from "./canvas.ts";
import { type Fleet, moved, nodeAt } from "./layout.ts";
import type { Coloured } from "./looks.ts";
import { nodeWords, stateWords } from "./words.ts";

interface Shown {
  fleet: Fleet;
  shown: Coloured;
  inForce: Scheme;
  opened: string | null;
  open: (node: string | null) => void;
}

const HIGHEST = 0.72;

/** How wide a box is, in CSS pixels, and how many device pixels one of them has. */
function useSize(box: { current: HTMLDivElement | null }): { width: number; scale: number } {
  const [size, setSize] = useState({ width: 0, scale: 1 });
  useLayoutEffect(() => {
    const look = () => {
      const width = box.current?.clientWidth ?? 0;
      const scale = Math.min(3, Math.max(1, devicePixelRatio || 1));
      setSize((was) => (was.width === width && was.scale === scale ? was : { width, scale }));
    };
    look();
    const observer = new ResizeObserver(look);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return size;
}

export function FleetMap({ fleet, shown, inForce, opened, open }: Shown) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width, scale } = useSize(box);
  const [focused, setFocused] = useState<string | null>(opened);
  const [pointed, setPointed] = useState<number | null>(null);
  const places = useMemo(() => new Map(fleet.nodes.name.map((name, at) => [name, at])), [fleet]);
  const at = focused === null ? null : (places.get(focused) ?? null);
  const before = useRef<FleetPicture | null>(null);
  const picture = useMemo(() => {
    if (!canvas.current || !width) return null;
    // A moment later most nodes are as they were: then the picture is changed, not made anew.
    if (before.current?.follow(canvas.current, fleet, width, scale)) return before.current;
    const height = Math.max(280, innerHeight * HIGHEST);
    before.current = new FleetPicture(canvas.current, fleet, width, height, scale);
    return before.current;
  }, [fleet, width, scale]);
  const label = useMemo(() => summary(fleet), [fleet]);
  const ring = at ?? (opened === null ? null : (places.get(opened) ?? null));

  useLayoutEffect(() => {
    if (!picture || !canvas.current) return;
    canvas.current.style.width = `${picture.layout.width / scale}px`;
    canvas.current.style.height = `${picture.layout.height / scale}px`;
    picture.repaint(shown, inForce, ring);
    canvas.current.dataset["took"] = picture.took.toFixed(1);
    canvas.current.dataset["painted"] = String(picture.nodes);
  }, [picture, shown, inForce]);
  useEffect(() => picture?.focus(ring), [ring]);

  const show = (node: number) => {
    const name = fleet.nodes.name[node];
    if (name === undefined || !picture || !canvas.current) return;
    setFocused(name);
    const rect = canvas.current.getBoundingClientRect();
    const top = rect.top + (picture.layout.y[node] ?? 0) / scale;
    // Kept clear of what is fixed at the top and at the bottom of the page.
    if (top < 90) scrollBy(0, top - 140);
    else if (top > innerHeight - 160) scrollBy(0, top - innerHeight + 200);
  };
  const keys = (event: KeyboardEvent) => {
    if (!picture || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      if (focused !== null) open(focused);
    } else if (event.key === "Escape") {
      if (opened !== null) open(null);
    } else {
      const next = moved(picture.layout, at ?? 0, event.key);
      if (next === null) return;
      show(at === null ? 0 : next);
    }
    event.preventDefault();
    event.stopPropagation();
  };
  const under = (event: PointerEvent): number | null => {
    if (!picture) return null;
    return nodeAt(picture.layout, event.offsetX * scale, event.offsetY * scale);
  };
  const told = pointed ?? ring;
  return (
    <div class="fleet-map" ref={box}>
      <canvas
        ref={canvas}
        class="fleet-canvas"
        tabIndex={0}
        role="application"
        aria-roledescription="picture of the fleet"
        aria-label={label}
        aria-describedby="fleet-told fleet-keys"
        onKeyDown={keys}
        onFocus={() => {
          if (at === null) setFocused(opened ?? fleet.nodes.name[0] ?? null);
        }}
        onPointerMove={(event) => setPointed(under(event))}
        onPointerLeave={() => setPointed(null)}
        onClick={(event) => {
          const node = under(event as unknown as PointerEvent);
          if (node === null) return;
          setFocused(fleet.nodes.name[node] ?? null);
          open(fleet.nodes.name[node] ?? null);
        }}
      />
      <p id="fleet-told" class="fleet-told" aria-live="polite">
        {picture && told !== null ? (
          <Told fleet={fleet} picture={picture} node={told} />
        ) : (
          "Point at a node, or walk there with the arrow keys."
        )}
      </p>
      <p id="fleet-keys" class="hidden">
        Arrow keys move, Page Up and Page Down go to the next pool, Enter opens the node.
      </p>
    </div>
  );
}

function Told({ fleet, picture, node }: { fleet: Fleet; picture: FleetPicture; node: number }) {
  const words = nodeWords(fleet, picture.layout, node, (at_s) => clock(at_s, false));
  return (
    <>
      <strong>
        <bdi>{words.name}</bdi>
      </strong>{" "}
      {words.rest}
    </>
  );
}

function summary(fleet: Fleet): string {
  const counts = new Map<string, number>();
  fleet.nodes.name.forEach((_, node) => {
    const words = stateWords(fleet, node, () => "");
    counts.set(words.split(",")[0] ?? words, (counts.get(words.split(",")[0] ?? words) ?? 0) + 1);
  });
  const parts = [...counts].map(([words, nodes]) => `${nodes} ${words}`);
  return `${fleet.nodes.name.length} nodes in ${fleet.pools.length} pools: ${parts.join(", ")}`;
}
