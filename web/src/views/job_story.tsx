/** What happened to a job, newest first, each with the reason behind it and the entry that says so. */
import { useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { clock, count, day, zone } from "../format.ts";
import { Card, EntryLink, Waiting } from "../parts.tsx";

type Story = Schemas["StoryAnswer"];
type Why = Schemas["WhyDocument"];
const SHOWN = 12;

interface Line {
  at_s: number;
  entry: number | null;
  what: string;
  detail: string;
  because: string | null;
}

/** The history in words, each line with the entry of the fact that it tells of. */
function lines(why: Why, story: Story | null): Line[] {
  const byTime = new Map<number, number>();
  for (const one of story?.events ?? []) if (!byTime.has(one.at_s)) byTime.set(one.at_s, one.entry);
  return why.history.map((one) => ({ ...one, entry: byTime.get(one.at_s) ?? null })).reverse();
}

export function Story({ of, why, now_s }: { of: Story | null; why: Why; now_s: number | null }) {
  const [all, setAll] = useState(false);
  const told = lines(why, of);
  const shown = all ? told : told.slice(0, SHOWN);
  return (
    <Card title="Its story" aside={<span>{now_s === null ? "newest first" : "until then, newest first"}</span>}>
      {of === null && told.length === 0 && <Waiting />}
      <ol class="story">
        {shown.map((one, place) => (
          <li key={`${one.at_s} ${place}`}>
            <time title={`${day(one.at_s)} ${clock(one.at_s)}${zone()}`}>{clock(one.at_s)}</time>
            <div>
              <p>
                <b>{one.what}</b> <span class="text">{one.detail}</span>
              </p>
              {one.because !== null && <p class="quiet small text">{one.because}</p>}
            </div>
            {one.entry !== null && <EntryLink entry={one.entry} />}
          </li>
        ))}
      </ol>
      {told.length > SHOWN && (
        <button type="button" onClick={() => setAll(!all)} aria-expanded={all}>
          {all ? "Show fewer" : `Show all ${count(told.length)}`}
        </button>
      )}
    </Card>
  );
}
