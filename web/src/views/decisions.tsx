/** Decisions: one row an entry, newest first: those with commands or reasons, or by subject or rule. */
import type { Schemas } from "../api.ts";
import { plural } from "../format.ts";
import { type Filter, JournalList, given } from "../journal-list.tsx";
import { factsInWords, stimulusInWords } from "../journal-words.ts";
import { usePages } from "../pages.ts";
import { Name } from "../parts.tsx";
import { go, route } from "../route.ts";
import type { Column } from "../table.tsx";

type Decided = Schemas["Decided"];
/** Rules that people look for; any other can be written. */
const RULES = [
  "loans.idle", "loans.unused", "loans.reclaim", "victims.fraction", "market.price", "market.gang",
  "market.outbid", "gang.capacity", "gang.deadline", "quota.tenant", "operator.recall",
];

const COLUMNS: readonly Column<Decided>[] = [
  { name: "stimulus", less: true, title: "on", width: "14%", cell: (row) => stimulusInWords(row.stimulus) },
  {
    name: "subject",
    title: "about",
    width: "11%",
    cell: (row) => (row.subject === null ? <span class="nil">–</span> : <Name of={row.subject} />),
  },
  { name: "facts", less: true, title: "decided", width: "24%", cell: (row) => <Decision of={row} /> },
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

const FILTERS: readonly Filter[] = [
  { name: "subject", label: "job, node or lender", placeholder: "job-0042" },
  { name: "rule", label: "rule", placeholder: "loans.unused", choices: RULES },
];

export function Decisions() {
  const { subject, rule } = given(FILTERS);
  const chosen = subject !== undefined || rule !== undefined;
  // Most cycles find nothing to do: they are noise, unless one asks for them.
  const all = route.value.query["all"] !== undefined;
  const telling = chosen || all ? undefined : "true";
  const found = usePages("/api/v1/decisions", "decisions", { subject, rule, telling });
  return (
    <JournalList
      title={all ? "All decisions" : "Decisions with commands or reasons"}
      filtered="Decisions that match"
      label="Decisions"
      found={found}
      columns={COLUMNS}
      filters={FILTERS}
      aside={
        !chosen && (
          <label class="check">
            <input
              type="checkbox"
              checked={all}
              onChange={(event) => go({ query: { all: event.currentTarget.checked ? "yes" : undefined } })}
            />
            also those without command or reason
          </label>
        )
      }
      none={{
        title: all ? "Nothing was decided yet." : "Nothing was decided yet that gave a command or has a reason.",
        hint: (
          <>
            A scheduler writes them: <code>tidegate demo --log run.db</code>
          </>
        ),
        filtered: "No decision matches.",
      }}
    />
  );
}
