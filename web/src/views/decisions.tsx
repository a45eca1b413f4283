/** Decisions: one row an entry, newest first; by job, node, lender or rule. */
import { useId } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { moment, plural } from "../format.ts";
import { factsInWords, stimulusInWords } from "../journal-words.ts";
import { usePages } from "../pages.ts";
import { Card, Empty, Name, ProblemNote } from "../parts.tsx";
import { go, href, route } from "../route.ts";
import { type Column, LongTable } from "../table.tsx";
import "../journal.css";

type Decided = Schemas["Decided"];
/** Rules that people look for; any other can be written. */
const RULES = [
  "loans.idle", "loans.unused", "loans.reclaim", "victims.fraction", "market.price",
  "market.outbid", "gang.capacity", "gang.deadline", "quota.tenant", "operator.recall",
];

function entryHref(row: Decided): string {
  return href({ view: "decisions", id: String(row.entry), entry: row.entry });
}

const COLUMNS: readonly Column<Decided>[] = [
  {
    name: "entry",
    title: "entry",
    number: true,
    width: "6rem",
    cell: (row) => (
      <a href={entryHref(row)} class="entry">
        {row.entry}
      </a>
    ),
  },
  { name: "at", title: "at", width: "8rem", cell: (row) => moment(row.at_s) },
  { name: "stimulus", title: "on", width: "16%", cell: (row) => stimulusInWords(row.stimulus) },
  {
    name: "subject",
    title: "about",
    width: "13%",
    cell: (row) => (row.subject === null ? <span class="nil">–</span> : <Name of={row.subject} />),
  },
  { name: "facts", title: "decided", width: "28%", cell: (row) => <Decision of={row} /> },
  { name: "why", title: "because", cell: (row) => <Because of={row} /> },
];

function Decision({ of }: { of: Decided }) {
  if (of.error !== null) {
    return (
      <span class="tag bad" title={of.error}>
        the policy failed
      </span>
    );
  }
  const parts = factsInWords(of.facts);
  if (!parts.length) return <span class="nil">nothing</span>;
  return (
    <span title={parts.join(" · ")}>
      {parts.join(" · ")}
      {of.commands > 0 && <span class="quiet"> · {plural(of.commands, "command")}</span>}
    </span>
  );
}

function Because({ of }: { of: Decided }) {
  const [first] = of.reasons;
  if (first === undefined) return <span class="nil">–</span>;
  const more = of.reasons_total - 1;
  return (
    <span title={`${first.subject}: ${first.sentence} (${first.rule})`}>
      <Name of={first.subject} /> <bdi>{first.sentence}</bdi>
      {more > 0 && <span class="quiet"> and {plural(more, "more reason")}</span>}
    </span>
  );
}

export function Decisions() {
  const { subject, rule } = route.value.query;
  const found = usePages<Decided>("/api/v1/decisions", "decisions", { subject, rule });
  const filtered = subject !== undefined || rule !== undefined;
  return (
    <Card title={filtered ? "Decisions that match" : "All decisions"} aside={<Filters />}>
      {found.problem !== null && <ProblemNote of={found.problem} />}
      {!found.loading && !found.rows.length ? (
        <Empty title={filtered ? "No decision matches." : "Nothing was decided yet."}>
          {filtered ? (
            <a href={href({ query: { subject: undefined, rule: undefined } })}>Show all</a>
          ) : (
            <>
              A scheduler writes them: <code>tidegate demo --log run.db</code>
            </>
          )}
        </Empty>
      ) : (
        <LongTable
          label="Decisions"
          columns={COLUMNS}
          rows={found.rows}
          total={found.rows.length + (found.more ? 50 : 0)}
          id={(row) => String(row.entry)}
          reach={found.reach}
          open={(row) => go({ view: "decisions", id: String(row.entry), entry: row.entry })}
        />
      )}
    </Card>
  );
}

function Filters() {
  const { subject = "", rule = "" } = route.value.query;
  const list = useId();
  return (
    <form
      class="filters"
      key={`${subject} ${rule}`}
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        const of = (name: string) => String(given.get(name) ?? "").trim();
        go({ query: { subject: of("subject"), rule: of("rule") } });
      }}
    >
      <label>
        job, node or lender
        <input type="search" name="subject" defaultValue={subject} placeholder="job-0042" />
      </label>
      <label>
        rule
        <input type="search" name="rule" defaultValue={rule} list={list} placeholder="loans.unused" />
      </label>
      <datalist id={list}>
        {RULES.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
      <button type="submit">Show</button>
    </form>
  );
}
