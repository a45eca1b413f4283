/** One entry of the journal: what came, what was decided, what was ordered, and why. */
import type { ComponentChildren } from "preact";
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { clock, count, day, plural } from "../format.ts";
import { fieldInWords, stimulusInWords, valueInWords, words } from "../journal-words.ts";
import { Card, Empty, JobLink, LenderLink, Loaded, Name, NodeLink, Table } from "../parts.tsx";
import { href, route } from "../route.ts";
import "../journal.css";

type Fields = Readonly<Record<string, unknown>>;
interface Stimulus {
  kind: string;
  at_s: number;
  cause: [string, number, number, number];
  data: Fields;
}
interface Decision {
  facts: [string, Fields][];
  error?: string | null;
}

export function Entry({ id }: { id: string }) {
  const number = /^[0-9]{1,15}$/.test(id) ? Number(id) : null;
  const off = number === null;
  const found = useData(
    "/api/v1/entries/{number}",
    { number: number ?? 0, cell: route.value.cell },
    { off, timeless: true },
  );
  if (number === null) {
    return (
      <Empty title="An entry has a number.">
        <a href={href({ view: "decisions" })}>Choose one from the decisions</a>
      </Empty>
    );
  }
  return (
    <div class="stack">
      {found.data === null && <h1>Entry {number}</h1>}
      <Loaded of={found}>
        {(entry) => {
          const stimulus = entry.stimulus as unknown as Stimulus;
          const decision = entry.decision as unknown as Decision;
          return (
            <div class="stack">
              <Head number={number} at_s={entry.at_s} policy={entry.policy} stimulus={stimulus} />
              <Reasons number={number} />
              <div class="columns">
                <What stimulus={stimulus} />
                <Commands decision={decision} />
              </div>
              <Facts of={decision.facts} error={decision.error ?? null} />
              <Raw entry={entry} />
            </div>
          );
        }}
      </Loaded>
    </div>
  );
}

function Head(props: { number: number; at_s: number; policy: string; stimulus: Stimulus }) {
  const { number, at_s, policy, stimulus } = props;
  const to = (entry: number) => href({ view: "decisions", id: String(entry), entry });
  return (
    <header class="entry-head">
      <div>
        <h1>Entry {number}</h1>
        <p class="quiet">
          {day(at_s)} {clock(at_s)} · on {stimulusInWords(stimulus.kind)} from{" "}
          <Name of={stimulus.cause[0]} wide /> · decided by <Name of={policy} wide />
        </p>
      </div>
      <nav class="row" aria-label="Entries beside this one">
        {number > 0 && (
          <a class="button" href={to(number - 1)}>
            ← {number - 1}
          </a>
        )}
        <a class="button" href={to(number + 1)}>
          {number + 1} →
        </a>
        <a class="button" href={href({ view: "what-if", query: { at: String(number) } })}>
          What if…
        </a>
        <a class="button" href={href({ view: "compare", entry: Math.max(0, number - 1), vs: number })}>
          What it changed
        </a>
      </nav>
    </header>
  );
}

function What({ stimulus }: { stimulus: Stimulus }) {
  const fields = Object.entries(stimulus.data).filter(([, value]) => value !== "" && value !== null);
  return (
    <Card title={`What came: ${stimulusInWords(stimulus.kind)}`}>
      {fields.length ? <Pairs of={Object.fromEntries(fields)} /> : <p class="quiet">Nothing more.</p>}
    </Card>
  );
}

function Reasons({ number }: { number: number }) {
  const found = useData(
    "/api/v1/decisions",
    { entry: number, limit: 1, cell: route.value.cell },
    { timeless: true },
  );
  return (
    <Card title="Why">
      <Loaded of={found}>
        {(page) => {
          const row = page.decisions.find((one) => one.entry === number);
          if (row === undefined || !row.reasons.length) {
            return <p class="quiet">No reason was recorded: it only took note.</p>;
          }
          const more = row.reasons_total - row.reasons.length;
          const [first, rest] = [row.reasons.slice(0, SHOWN), row.reasons.slice(SHOWN)];
          return (
            <>
              <ReasonList of={first} />
              {rest.length > 0 && (
                <details class="rest">
                  <summary>{plural(rest.length, "more reason")}</summary>
                  <ReasonList of={rest} />
                </details>
              )}
              {more > 0 && <p class="quiet">and {plural(more, "more reason")}, below as recorded.</p>}
            </>
          );
        }}
      </Loaded>
    </Card>
  );
}

/** So many reasons are shown; the rest is folded. */
const SHOWN = 8;

function ReasonList({ of }: { of: readonly Schemas["ReasonDocument"][] }) {
  return (
    <ul class="given-reasons">
      {of.map((reason, at) => (
        <li key={at}>
          <strong>
            <Name of={reason.subject} />
          </strong>{" "}
          <span class="tag">{reason.verb.replace(/_/g, " ")}</span>{" "}
          <bdi class="text">{reason.sentence}</bdi>{" "}
          <a
            class="rule"
            href={href({ view: "decisions", query: { rule: reason.rule } })}
            title="Other decisions by this rule"
          >
            {reason.rule}
          </a>
        </li>
      ))}
    </ul>
  );
}

function Commands({ decision }: { decision: Decision }) {
  const issued = decision.facts.filter(([kind]) => kind === "CommandIssued").map(([, of]) => of);
  return (
    <Card title="What was ordered">
      {issued.length === 0 ? (
        <p class="quiet">No command went out.</p>
      ) : (
        <Table label="Commands" head={["command", "about", "to agent", "until"]}>
          {issued.map((one) => (
            <tr key={String(one["command"])}>
              <td title={String(one["command"])}>{words(String(one["kind"]))}</td>
              <td><Subject name="job" of={String(one["subject"])} /></td>
              <td><Name of={String(one["agent"])} /></td>
              <td>{clock(Number(one["expires_s"]))}</td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

/** Facts that say what other parts of the page do. */
const ELSEWHERE = new Set(["CommandIssued", "JobExplained"]);

function Facts({ of, error }: { of: Decision["facts"]; error: string | null }) {
  const groups = new Map<string, Fields[]>();
  for (const [kind, fields] of of) {
    if (!ELSEWHERE.has(kind)) groups.set(kind, [...(groups.get(kind) ?? []), fields]);
  }
  return (
    <Card title="What was decided">
      {error !== null && <p class="problem">The policy failed: {error}</p>}
      {groups.size === 0 && <p class="quiet">Nothing changed.</p>}
      {[...groups].map(([kind, rows]) => (
        <section key={kind} class="fact-group">
          <h3>
            {words(kind)}
            {rows.length > 1 && <span class="quiet"> ×{count(rows.length)}</span>}
          </h3>
          <FactTable kind={kind} rows={rows} />
        </section>
      ))}
    </Card>
  );
}

function FactTable({ kind, rows }: { kind: string; rows: Fields[] }) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  if (names.length > 7) return <>{rows.map((row, at) => <Pairs of={row} key={at} />)}</>;
  return (
    <Table label={`Facts: ${words(kind)}`} head={names.map(fieldInWords)}>
      {rows.map((row, at) => (
        <tr key={at}>
          {names.map((name) => (
            <td key={name}><Value name={name} of={row[name]} /></td>
          ))}
        </tr>
      ))}
    </Table>
  );
}

function Pairs({ of }: { of: Fields }) {
  return (
    <dl class="pairs">
      {Object.entries(of).map(([name, value]) => (
        <div key={name}>
          <dt>{fieldInWords(name)}</dt>
          <dd><Value name={name} of={value} /></dd>
        </div>
      ))}
    </dl>
  );
}

function Value({ name, of }: { name: string; of: unknown }): ComponentChildren {
  if (typeof of === "string" && of !== "") return <Subject name={name} of={of} />;
  return <bdi class="text">{valueInWords(name, of)}</bdi>;
}

function Subject({ name, of }: { name: string; of: string }) {
  if (name === "job") return <JobLink job={of} />;
  if (name === "lender") return <LenderLink lender={of} />;
  if (name === "node") return <NodeLink node={of} />;
  return <bdi class="text">{of}</bdi>;
}

function Raw({ entry }: { entry: object }) {
  return (
    <details class="card raw">
      <summary>As recorded, in JSON</summary>
      <pre tabIndex={0}>
        <code>{JSON.stringify(entry, null, 2)}</code>
      </pre>
    </details>
  );
}
