/** What the colours, hatches and frames of the picture mean. */
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { count } from "../format.ts";
import { Name } from "../parts.tsx";
import { scheme } from "../theme.ts";
import { frameSwatch, swatch } from "./canvas.ts";
import type { Fleet } from "./layout.ts";
import type { Coloured, Colouring } from "./looks.ts";
import { type Frame, frameOf, type Look } from "./paint.ts";

const FRAMES: readonly [Frame, string][] = [
  ["lent", "lent"],
  ["due", "due back"],
  ["draining", "draining"],
  ["cordoned", "cordoned"],
  ["silent", "silent"],
];

interface Shown {
  fleet: Fleet;
  colouring: Colouring;
  shown: Coloured;
}

export function FleetLegend({ fleet, colouring, shown }: Shown) {
  const { legend, more } = shown;
  const framed = useMemo(() => {
    const counts = new Map<Frame, number>();
    fleet.nodes.name.forEach((_, node) => {
      const frame = frameOf(fleet, node);
      counts.set(frame, (counts.get(frame) ?? 0) + 1);
    });
    return counts;
  }, [fleet]);
  return (
    <div class="fleet-legend">
      <ul aria-label={`Colours: GPUs by ${colouring}`}>
        {legend.map((row) => (
          <li key={row.label}>
            <Swatch look={row.look} />
            {row.isName ? <Name of={row.label} /> : row.label}
            <span class="number">{count(row.gpus)}</span>
          </li>
        ))}
        {more > 0 && <li>and {count(more)} more</li>}
      </ul>
      <ul aria-label="Frames: nodes">
        {FRAMES.filter(([frame]) => framed.has(frame)).map(([frame, label]) => (
          <li key={frame}>
            <FrameSwatch frame={frame} />
            {label}
            <span class="number">{count(framed.get(frame))}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Swatch({ look }: { look: Look }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    if (canvas.current) swatch(canvas.current, look, devicePixelRatio || 1);
  }, [look.fill, look.ink, look.hatch]);
  return <canvas ref={canvas} class="fleet-swatch" aria-hidden="true" />;
}

function FrameSwatch({ frame }: { frame: Frame }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const inForce = scheme.value;
  useLayoutEffect(() => {
    if (canvas.current) frameSwatch(canvas.current, frame, devicePixelRatio || 1);
  }, [frame, inForce]);
  return <canvas ref={canvas} class="fleet-swatch wide" aria-hidden="true" />;
}
