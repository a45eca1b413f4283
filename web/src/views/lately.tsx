/** What happened before the moment shown, newest first. */
import { clock } from "../format.ts";
import { happened, moments, shown } from "../moments.ts";
import { Card, EntryLink } from "../parts.tsx";

const SHOWN = 8;

export function Lately() {
  const at = shown.value;
  const known = moments.value;
  if (at === null || known === null) return null;
  const seen = new Map<number, number>();
  for (let place = known.moments.length - 1; place >= 0 && seen.size < SHOWN; place--) {
    const one = known.moments[place];
    if (one !== undefined && one.entry <= at) seen.set(one.entry, one.at_s);
  }
  return (
    <Card title="Lately">
      {seen.size === 0 ? (
        <p class="quiet">No loan, reclaim or request yet.</p>
      ) : (
        <ol class="lately">
          {[...seen].map(([entry, at_s]) => (
            <li key={entry}>
              <time>{clock(at_s, false)}</time> <span class="text">{happened(entry)}</span>{" "}
              <EntryLink entry={entry} />
            </li>
          ))}
        </ol>
      )}
    </Card>
  );
}
