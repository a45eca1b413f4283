/** Audit: what people and programs asked for, when, why, and what came of it. */
import { useId } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { moment } from "../format.ts";
import { usePages } from "../pages.ts";
import { Card, Empty, Name, ProblemNote, State } from "../parts.tsx";
import { go, href, route } from "../route.ts";
import { type Column, LongTable } from "../table.tsx";
import "../journal.css";

type Act = Schemas["Act"];
const VERBS = [
  "job.submit", "job.cancel", "job.hold", "job.release", "job.requeue", "job.priority", "job.scale",
  "node.cordon", "node.uncordon", "node.drain", "node.accept", "node.refuse", "cell.pause", "cell.resume", "loans.freeze",
  "loans.unfreeze", "loans.recall", "quota.set", "quota.clear", "policy.set", "policy.clear",
];

const COLUMNS: readonly Column<Act>[] = [
  {
    name: "entry",
    title: "entry",
    number: true,
    width: "6rem",
    cell: (row) => (
      <a class="entry" href={href({ view: "decisions", id: String(row.entry), entry: row.entry })}>
        {row.entry}
      </a>
    ),
  },
  { name: "at", title: "at", width: "8rem", cell: (row) => moment(row.at_s) },
  { name: "who", title: "who", width: "17%", cell: (row) => <Who of={row} /> },
  { name: "verb", title: "asked for", width: "9rem", cell: (row) => <code>{row.verb}</code> },
  {
    name: "about",
    title: "about",
    width: "14%",
    cell: (row) => (row.about === "" ? <span class="nil">the cell</span> : <Name of={row.about} />),
  },
  { name: "result", title: "came of it", width: "9rem", cell: (row) => <State of={row.result} /> },
  {
    name: "why",
    title: "why, or why refused",
    cell: (row) => <Why of={row} />,
  },
  {
    name: "signed",
    title: "by key",
    width: "8rem",
    cell: (row) =>
      row.key_id === "" ? <span class="nil">not signed</span> : <Name of={row.key_id} />,
  },
];

function Who({ of }: { of: Act }) {
  return (
    <span title={`${of.subject}, ${of.role}, by ${of.via}`}>
      <Name of={of.subject} /> <span class="quiet">{of.role}</span>
    </span>
  );
}

function Why({ of }: { of: Act }) {
  const text = of.refused_because !== "" ? of.refused_because : of.reason;
  if (text === "") return <span class="nil">–</span>;
  return (
    <bdi class={of.refused_because === "" ? "" : "bad-text"} title={text}>
      {text}
    </bdi>
  );
}

export function Audit() {
  const { subject, verb, about } = route.value.query;
  const found = usePages<Act>("/api/v1/requests", "acts", { subject, verb, about });
  const filtered = subject !== undefined || verb !== undefined || about !== undefined;
  return (
    <Card title={filtered ? "What was asked for, and matches" : "What was asked for"} aside={<Filters />}>
      {found.problem !== null && <ProblemNote of={found.problem} />}
      {!found.loading && !found.rows.length ? (
        <Empty title={filtered ? "Nothing matches." : "Nobody asked for anything yet."}>
          {filtered ? (
            <a href={href({ query: { subject: undefined, verb: undefined, about: undefined } })}>Show all</a>
          ) : (
            <>
              Each verb is kept here with who asked and why: <code>tidegate job hold job-0042 --reason "its data is wrong"</code>
            </>
          )}
        </Empty>
      ) : (
        <>
          <LongTable
            label="What was asked for"
            columns={COLUMNS}
            rows={found.rows}
            total={found.rows.length + (found.more ? 50 : 0)}
            id={(row) => String(row.entry)}
            reach={found.reach}
            open={(row) => go({ view: "decisions", id: String(row.entry), entry: row.entry })}
          />
          <p class="quiet small note">
            Signatures are checked offline: <code>tidegate audit verify EXPORT --keys DIR</code>
          </p>
        </>
      )}
    </Card>
  );
}

function Filters() {
  const { subject = "", verb = "", about = "" } = route.value.query;
  const list = useId();
  return (
    <form
      class="filters"
      key={`${subject} ${verb} ${about}`}
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        const of = (name: string) => String(given.get(name) ?? "").trim();
        go({ query: { subject: of("subject"), verb: of("verb"), about: of("about") } });
      }}
    >
      <label>
        who
        <input type="search" name="subject" defaultValue={subject} />
      </label>
      <label>
        asked for
        <input type="search" name="verb" defaultValue={verb} list={list} />
      </label>
      <datalist id={list}>
        {VERBS.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
      <label>
        about
        <input type="search" name="about" defaultValue={about} placeholder="job or node" />
      </label>
      <button type="submit">Show</button>
    </form>
  );
}
