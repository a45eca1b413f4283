/** Search over jobs, nodes, entries, moments and views. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, problemFrom } from "./api.ts";
import { clock, count, date, day } from "./format.ts";
import { entryAt, range } from "./moments.ts";
import { searching } from "./overlays.ts";
import { Name } from "./parts.tsx";
import { type Change, go, href, route } from "./route.ts";
import { VIEWS } from "./views/index.ts";

interface Hit {
  kind: string;
  name: string;
  note: string;
  to: Change;
}
/** What the gateway answered, and to which text. */
interface Told {
  text: string;
  hits: readonly Hit[];
  problem: string | null;
}
const NOTHING: Told = { text: "", hits: [], problem: null };
/** Its type would want a list of its own; ours has more than text. */
const COMBOBOX: object = { role: "combobox" };
const EACH = 6;
const APART_MS = 160;

export function Search() {
  return searching.value ? <Box /> : null;
}

/** What the text means without asking anybody: an entry, a moment, a view. */
function near(text: string): Hit[] {
  const found: Hit[] = [];
  const whole = range.value;
  if (/^[0-9]+$/.test(text) && whole !== null && Number(text) <= whole.last) {
    found.push({ kind: "entry", name: text, note: "show that moment", to: { entry: Number(text) } });
  }
  const time = /^([0-2]?\d):([0-5]\d)(?::([0-5]\d))?$/.exec(text);
  if (time !== null && whole !== null) {
    const said = `${(time[1] ?? "").padStart(2, "0")}:${time[2]}:${time[3] ?? "00"}`;
    const days = new Set([date(whole.end_s), date(whole.end_s - 86_400), date(whole.begin_s)]);
    for (const one of days) {
      const at_s = Date.parse(`${one}T${said}Z`) / 1000;
      if (at_s < whole.begin_s || at_s > whole.end_s) continue;
      const entry = entryAt(at_s);
      found.push({ kind: "moment", name: `${day(at_s)} ${clock(at_s)}`, note: `entry ${count(entry)}`, to: { entry } });
    }
  }
  const wanted = text.toLowerCase();
  for (const view of VIEWS) {
    if (text !== "" && view.title.toLowerCase().includes(wanted)) {
      found.push({ kind: "view", name: view.title, note: "", to: { view: view.path } });
    }
  }
  return found;
}

async function far(text: string, signal: AbortSignal): Promise<Hit[]> {
  const { cell, entry } = route.value;
  const at = { cell, entry, text, limit: EACH };
  const [jobs, nodes] = await Promise.all([
    get("/api/v1/jobs", { ...at, fields: "job,state,tenant" }, signal),
    get("/api/v1/nodes", at, signal),
  ]);
  const found: Hit[] = [];
  for (const row of jobs.jobs) {
    const name = String(row["job" as keyof typeof row]);
    const state = String(row["state" as keyof typeof row]);
    found.push({ kind: "job", name, note: state, to: { view: "jobs", id: name } });
  }
  for (const row of nodes.nodes) {
    found.push({ kind: "node", name: row.node, note: row.pool, to: { view: "fleet", query: { node: row.node } } });
  }
  return found;
}

function Box() {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [told, setTold] = useState(NOTHING);
  const [place, setPlace] = useState(0);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  const wanted = text.trim();
  useEffect(() => {
    if (wanted === "") {
      setTold(NOTHING);
      return;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => {
      far(wanted, abort.signal).then(
        (hits) => setTold({ text: wanted, hits, problem: null }),
        (error: unknown) => {
          if (!abort.signal.aborted) setTold({ text: wanted, hits: [], problem: problemFrom(error).message });
        },
      );
    }, APART_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [wanted]);
  const answered = told.text === wanted;
  // Of an answer to what was typed before, only what fits: Enter would lead to another job.
  const others = answered ? told.hits : told.hits.filter((hit) => hit.name.includes(wanted));
  const hits = [...near(wanted), ...others];
  const at = Math.min(place, Math.max(0, hits.length - 1));

  function pressed(event: KeyboardEvent): void {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      setPlace(Math.max(0, Math.min(hits.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (event.key === "Enter") {
      const hit = hits[at];
      if (hit !== undefined) follow(hit);
    } else return;
    event.preventDefault();
  }

  function follow(hit: Hit): void {
    dialog.current?.close();
    go(hit.to);
  }

  return (
    <dialog class="search" ref={dialog} aria-label="Search" onClose={() => (searching.value = false)}>
      <input
        type="search"
        {...COMBOBOX}
        aria-expanded={hits.length > 0}
        aria-controls="hits"
        aria-activedescendant={hits.length > 0 ? `hit-${at}` : undefined}
        aria-label="Search jobs, nodes, entries and moments"
        placeholder="A job, a node, an entry, a time such as 06:30"
        value={text}
        autofocus
        onInput={(event) => {
          setText(event.currentTarget.value);
          setPlace(0);
        }}
        onKeyDown={pressed}
      />
      <div id="hits" role="listbox" aria-label="Found">
        {hits.map((hit, number) => (
          <a
            key={`${hit.kind} ${hit.name}`}
            id={`hit-${number}`}
            role="option"
            tabIndex={-1}
            aria-selected={number === at}
            href={href(hit.to)}
            onClick={() => dialog.current?.close()}
          >
            <span class="tag">{hit.kind}</span> <Name of={hit.name} wide />
            <small>{hit.note}</small>
          </a>
        ))}
      </div>
      {wanted !== "" && hits.length === 0 && (
        <p class="quiet text">{answered ? (told.problem ?? "Nothing is called so.") : "Looking…"}</p>
      )}
    </dialog>
  );
}
