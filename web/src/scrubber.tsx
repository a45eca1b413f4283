/** The moment under all views: a track over the log by time, with what happened on it. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useData } from "./data.ts";
import { clock, count, day, zone } from "./format.ts";
import { Icon } from "./icons.tsx";
import { nobodyLeads } from "./live.ts";
import { closer, entryAt, happened, moments, range, showTime, shown, step, stepMatter, timeOf } from "./moments.ts";
import { type Route, go, isPast, route } from "./route.ts";
import { Verified } from "./standing.tsx";
import { paintTrack } from "./track.ts";
import { scheme } from "./theme.ts";

const playing = signal(false);
/** The whole log is played in so many steps. */
const STEPS = 240;
const TICK_MS = 260;
/** While the thumb is dragged, views follow so often. */
const DRAG_MS = 140;

export function play(): void {
  playing.value = !playing.value;
  const whole = range.value;
  // From the live edge there is nothing to play: begin anew.
  if (playing.value && !isPast.value && whole !== null) showTime(whole.begin_s);
}

export function live(): void {
  playing.value = false;
  go({ entry: null });
}

export function compare(): void {
  go({ vs: route.value.vs === null ? shown.value : null }, true);
}

export function Scrubber() {
  usePlaying();
  const whole = range.value;
  const at = shown.value;
  const { vs } = route.value;
  const past = isPast.value;
  const now_s = whole === null || at === null ? null : past ? timeOf(at) : whole.end_s;
  const what = past && at !== null ? happened(at) : "";
  const ends = nobodyLeads.value !== null;
  const matter = closer.value?.what ?? "loan, reclaim or request";
  return (
    <footer class="scrubber" aria-label="Moment of the log">
      <div class="scrubber-keys" role="group" aria-label="Step">
        <Step of="first" label={`Back to the last ${matter} ([)`} onClick={() => stepMatter(-1)} />
        <Step of="back" label="One decision back (,)" onClick={() => step(-1)} />
        <Step of={playing.value ? "pause" : "play"} label={playing.value ? "Stop (Space)" : "Play (Space)"} onClick={play} />
        <Step of="forward" label="One decision on (.)" onClick={() => step(1)} />
        <Step of="last" label={`On to the next ${matter} (])`} onClick={() => stepMatter(1)} />
      </div>
      <Track now_s={now_s} />
      <div class="scrubber-said">
        <Verified />
        <span class="when" title={what === "" ? "In the log’s own time, UTC" : what}>
          <strong>{now_s === null ? "–" : clock(now_s)}</strong>
          <small>
            {now_s === null ? "" : day(now_s)}{zone()} · entry{" "}
            {at === null ? "–" : count(at)}
            {past && whole !== null ? ` of ${count(whole.last)}` : ""}
          </small>
        </span>
        <button type="button" aria-pressed={vs !== null} onClick={compare} disabled={at === null}>
          {vs === null ? "Compare" : `Compared with ${count(vs)}`}
        </button>
        <button type="button" class={past ? "primary" : ""} onClick={live} disabled={!past}>
          {ends ? "End" : "Live"}
        </button>
      </div>
      <p class="hidden" aria-live="polite">
        {what}
      </p>
    </footer>
  );
}

function Step(props: { of: Parameters<typeof Icon>[0]["of"]; label: string; onClick: () => void }) {
  return (
    <button type="button" class="plain" aria-label={props.label} title={props.label} onClick={props.onClick}>
      <Icon of={props.of} />
    </button>
  );
}

function Track({ now_s }: { now_s: number | null }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const box = useRef<HTMLDivElement>(null);
  /** Where the thumb is, and what was shown as it came there. */
  const pending = useRef<{ at_s: number; from: Route } | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const whole = range.value;
  const known = moments.value;
  const { cell, vs } = route.value;
  const tide = useData(
    "/api/v1/tide",
    { cell, points: 400 },
    { timeless: true, again: known, apartMs: 5000, calm: true },
  ).data;
  useEffect(() => {
    const element = canvas.current;
    const around = box.current;
    if (element === null || around === null || whole === null) return;
    const paint = (): void =>
      paintTrack(element, {
        ...whole,
        now_s: now_s ?? whole.end_s,
        vs_s: vs === null ? null : timeOf(vs),
        moments: known?.moments ?? [],
        tide: tide?.rows ?? [],
      });
    paint();
    const seen = new ResizeObserver(paint);
    seen.observe(around);
    return () => seen.disconnect();
  }, [whole, known, now_s, vs, tide, scheme.value]);

  function moved(value: number): void {
    pending.current = { at_s: value, from: route.value };
    if (timer.current !== undefined) return;
    const settle = (): void => {
      timer.current = undefined;
      const to = pending.current;
      pending.current = null;
      if (to === null || to.from !== route.value) return; // one went elsewhere meanwhile
      showTime(to.at_s);
      timer.current = setTimeout(settle, DRAG_MS);
    };
    settle();
  }

  const said = now_s === null ? "not known" : `${clock(now_s)}, entry ${entryAt(now_s)}`;
  return (
    <div class="track" ref={box}>
      <canvas ref={canvas} aria-hidden="true" />
      <input
        type="range"
        aria-label="Moment of the log"
        aria-valuetext={isPast.value ? said : `${nobodyLeads.value === null ? "live" : "the end"}, ${said}`}
        min={whole?.begin_s ?? 0}
        max={whole?.end_s ?? 1}
        step={whole === null ? 1 : Math.max(0.001, (whole.end_s - whole.begin_s) / 2000)}
        value={now_s ?? 0}
        disabled={whole === null}
        onInput={(event) => {
          playing.value = false;
          moved(Number(event.currentTarget.value));
        }}
      />
    </div>
  );
}

function usePlaying(): void {
  const on = playing.value;
  useEffect(() => {
    if (!on) return;
    const timer = setInterval(() => {
      const whole = range.value;
      const at = shown.value;
      if (whole === null || at === null || !isPast.value) {
        playing.value = false;
        return;
      }
      const next_s = timeOf(at) + (whole.end_s - whole.begin_s) / STEPS;
      if (entryAt(next_s) <= at && next_s < whole.end_s) step(1);
      else showTime(next_s);
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [on]);
}
