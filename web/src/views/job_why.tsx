/** Why a job is as it is, who is ahead of it, and what would have to change. */
import { useEffect, useState } from "preact/hooks";
import { type Problem, type Schemas, address, asked, problemFrom, problemOf } from "../api.ts";
import { capital, clock, count, duration, figure } from "../format.ts";
import { Card, JobLink, LenderLink, NodeLink, ProblemNote } from "../parts.tsx";
import { repeated } from "../repeated.ts";
import { href, route } from "../route.ts";
import { type JobRow, ended } from "../states.ts";

type WhyDocument = Schemas["WhyDocument"];
type Reason = Schemas["ReasonDocument"];

export function Why({ of, row }: { of: WhyDocument; row: JobRow | null }) {
  const waits = of.state === "queued";
  const reason = of.because;
  return (
    <Card title={waits ? "Why not now" : ended(of.state) ? "How it ended" : "Why it is so"}>
      {of.failure !== null && <p class="problem">{of.failure}</p>}
      {of.asked.map((one) => (
        <p key={one} class="asked-for text">
          {one}
        </p>
      ))}
      {(of.ended ?? []).map((one) => (
        <p key={one} class="text">
          {one}
        </p>
      ))}
      {reason === null || ended(of.state) ? (
        // Why it once had GPUs is no answer to how it ended.
        !ended(of.state) && <p class="quiet">No reason was recorded.</p>
      ) : (
        <>
          <p class="sentence text">{capital(reason.sentence)}.</p>
          <p class="quiet small">
            rule <code>{reason.rule}</code>, given {clock(reason.at_s)}, {duration(of.now_s - reason.at_s)} before
          </p>
          <Figures of={reason} />
        </>
      )}
      {of.reclaims.map((one) => (
        <p key={one.node} class="text">
          <NodeLink node={one.node} /> was called back at {clock(one.at_s)}, due {clock(one.due_s)}
          {one.because !== null && `: ${one.because.sentence}`}
        </p>
      ))}
      <Changes of={of} row={row} />
      {!ended(of.state) && <Forecast id={of.job} state={of.state} />}
      {of.reasons.length > 1 && <Before reasons={of.reasons} />}
    </Card>
  );
}

function Figures({ of }: { of: Reason }) {
  if (of.figures.length === 0) return null;
  return (
    <dl class="facts">
      {of.figures.map((one) => (
        <div key={one.name}>
          <dt>{one.label}</dt>
          <dd>
            {one.text}
            {one.age_s >= 1 && <small class="quiet"> {duration(one.age_s)} old</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** What would have to be other than it is. */
function Changes({ of, row }: { of: WhyDocument; row: JobRow | null }) {
  const reason = of.because;
  const needs = of.state === "queued" ? (reason?.needs ?? []) : [];
  const rivals = reason?.lost_to ?? [];
  const held = row?.hold ?? null;
  if (needs.length === 0 && rivals.length === 0 && held === null) return null;
  const tryIt = href({ view: "what-if", query: { job: of.job } });
  return (
    <>
      <h3>What would change it</h3>
      <ul class="changes">
        {held !== null && <li>It is released: {held.by} holds it{held.reason === "" ? "" : `, since ${held.reason}`}.</li>}
        {needs.map((one) => (
          <li key={one.name}>
            <span>
              {capital(one.text)}
              <span class="meter" aria-hidden="true">
                <span style={{ width: `${Math.min(100, (100 * one.have) / Math.max(one.want, 1e-9))}%` }} />
              </span>
            </span>
            <a href={tryIt}>try it</a>
          </li>
        ))}
        {rivals.length > 0 && (
          <li>
            <span>
              What is ahead of it ends or gives way:{" "}
              {rivals.map((one, place) => (
                <span key={one}>
                  {place > 0 && ", "}
                  {reason?.rule === "loans.reclaim" ? <LenderLink lender={one} /> : <JobLink job={one} />}
                </span>
              ))}
            </span>
          </li>
        )}
        {of.wait_end != null && <li class="text">{of.wait_end.text}.</li>}
      </ul>
    </>
  );
}

function Before({ reasons }: { reasons: readonly Reason[] }) {
  return (
    <details>
      <summary>The {count(reasons.length)} newest reasons</summary>
      <ol class="reasons">
        {[...reasons].reverse().map((one) => (
          <li key={`${one.at_s} ${one.rule}`}>
            <time>{clock(one.at_s)}</time> <span class="text">{one.sentence}</span>
          </li>
        ))}
      </ol>
    </details>
  );
}

interface Range {
  least_s: number | null;
  most_s: number | null;
  none: number;
}
interface Foretold {
  runs: number;
  hours: number;
  starts: Range | null;
  ends: Range | null;
}
const RUNS = 20;
const HOURS = 12;
const AGAIN_S = 0.7;

/** When it would start and end: a range over simulated runs, never a bare time. */
function Forecast({ id, state }: { id: string; state: string }) {
  const { cell, entry } = route.value;
  const url = address("/api/v1/jobs/{job}/forecast", { job: id, runs: RUNS, hours: HOURS, cell, entry });
  const [wantedFor, setWantedFor] = useState<string | null>(null);
  const [done, setDone] = useState(0);
  const [found, setFound] = useState<Foretold | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    if (wantedFor === null) return;
    const look = async (signal: AbortSignal): Promise<number | null> => {
      try {
        const answer = await asked(wantedFor, { signal });
        if (!answer.ok) throw await problemOf(answer);
        const told = (await answer.json()) as Foretold & { done?: number };
        if (answer.status === 202) {
          setDone(told.done ?? 0);
          return AGAIN_S;
        }
        setFound(told);
      } catch (error) {
        if (!signal.aborted) setProblem(problemFrom(error));
      }
      return null;
    };
    setFound(null);
    setProblem(null);
    setDone(0);
    return repeated(look, 0).end;
  }, [wantedFor]);
  const moved = wantedFor !== null && wantedFor !== url;
  return (
    <div class="forecast" aria-live="polite">
      {problem !== null && <ProblemNote of={problem} />}
      {found !== null && (
        <p>
          {found.starts !== null && <>It {state === "queued" ? "starts" : "starts again"} {between(found.starts, found)}. </>}
          {found.ends !== null && <>It ends {between(found.ends, found)}.</>}
          {found.starts === null && found.ends === null && "It has ended."}
        </p>
      )}
      {wantedFor !== null && found === null && problem === null ? (
        <p class="quiet" role="status">
          Simulating {RUNS} runs… {Math.floor(done * 100)}%
        </p>
      ) : (
        (found === null || moved) && (
          <button type="button" onClick={() => setWantedFor(url)}>
            When would it {state === "queued" ? "start" : "end"}? Simulate {RUNS} runs
          </button>
        )
      )}
    </div>
  );
}

function between(range: Range, of: Foretold): string {
  const runs = of.runs - range.none;
  if (range.least_s === null || range.most_s === null) return `in none of ${of.runs} runs of ${figure(of.hours)} h`;
  const same = clock(range.least_s, false) === clock(range.most_s, false);
  const when = same
    ? `at about ${clock(range.least_s, false)}`
    : `between ${clock(range.least_s, false)} and ${clock(range.most_s, false)}`;
  return `${when} in ${runs} of ${of.runs} runs`;
}
