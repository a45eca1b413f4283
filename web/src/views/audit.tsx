/** Audit: what people and programs asked for, when, why, and what came of it. */
import type { Schemas } from "../api.ts";
import { type Filter, JournalList, given } from "../journal-list.tsx";
import { usePages } from "../pages.ts";
import { Name, State } from "../parts.tsx";
import type { Column } from "../table.tsx";

type Act = Schemas["Act"];
const VERBS = [
  "job.submit", "job.cancel", "job.hold", "job.release", "job.requeue", "job.priority", "job.scale",
  "node.cordon", "node.uncordon", "node.drain", "node.accept", "node.refuse", "cell.pause", "cell.resume", "loans.freeze",
  "loans.unfreeze", "loans.recall", "quota.set", "quota.clear", "policy.set", "policy.clear",
];

const COLUMNS: readonly Column<Act>[] = [
  { name: "who", title: "who", width: "17%", cell: (row) => <Who of={row} /> },
  { name: "verb", title: "asked for", width: "9rem", cell: (row) => <code>{row.verb}</code> },
  {
    name: "about",
    less: true,
    title: "about",
    width: "14%",
    cell: (row) => (row.about === "" ? <span class="nil">the cell</span> : <Name of={row.about} />),
  },
  { name: "result", title: "came of it", width: "9rem", cell: (row) => <State of={row.result} /> },
  {
    name: "why",
    less: true,
    title: "why, or why refused",
    cell: (row) => <Why of={row} />,
  },
  {
    name: "signed",
    less: true,
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

const FILTERS: readonly Filter[] = [
  { name: "subject", label: "who", placeholder: "ann@example.org" },
  { name: "verb", label: "asked for", placeholder: "job.cancel", choices: VERBS },
  { name: "about", label: "about", placeholder: "job or node" },
];

export function Audit() {
  const found = usePages("/api/v1/requests", "acts", given(FILTERS));
  return (
    <JournalList
      title="What was asked for"
      filtered="What was asked for, and matches"
      label="What was asked for"
      found={found}
      columns={COLUMNS}
      filters={FILTERS}
      none={{
        title: "Nobody asked for anything yet.",
        hint: (
          <>
            Each verb is kept here with who asked and why: <code>tidegate job hold job-0042 --reason "its data is wrong"</code>
          </>
        ),
        filtered: "Nothing matches.",
      }}
    >
      <p class="quiet small note">
        Signatures are checked offline: <code>tidegate audit verify EXPORT --keys DIR</code>
      </p>
    </JournalList>
  );
}
