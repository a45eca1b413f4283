/** One branch: how far it is; then the method's error, the tides, the table, what differs first. */
import { clock, count, duration, moment, percent } from "../format.ts";
import { showTime } from "../moments.ts";
import { Card, Empty, Name, ProblemNote } from "../parts.tsx";
import { go, href, route } from "../route.ts";
import { type Branch, type Deed, type Result, cellOf, end, isOpen, logOf, useBranch } from "./branches.ts";
import { OutcomeTable } from "./outcome-table.tsx";
import { PreviewCard } from "./preview.tsx";
import { Tides } from "./tides.tsx";
import { changeInWords, errorInWords, warnings } from "./words.ts";

export function BranchPage({ id }: { id: string }) {
  const { data, problem, again } = useBranch(id);
  if (problem?.status === 404) {
    return (
      <Empty title="There is no such branch.">
        Branches end with the gateway. <a href={href({ view: "what-if" })}>Try another night</a>
      </Empty>
    );
  }
  return (
    <div class="stack">
      {data === null && <h1>What if</h1>}
      {problem !== null && <ProblemNote of={problem} />}
      {data !== null && <Head of={data} again={again} />}
      {data !== null && <Progress of={data} />}
      {data?.result != null && <Found of={data.result} branch={data.branch} />}
    </div>
  );
}

function Head({ of, again }: { of: Branch; again: () => void }) {
  const parts = changeInWords(of.asked.change);
  return (
    <header class="entry-head">
      <div>
        <h1>
          What if: <bdi class="text">{parts.length ? parts.join(" · ") : "nothing is changed"}</bdi>
        </h1>
        <p class="quiet">
          From entry{" "}
          {of.asked.entry === null ? (
            "the newest"
          ) : (
            <a href={href({ view: "decisions", id: String(of.asked.entry), entry: of.asked.entry })}>
              {of.asked.entry}
            </a>
          )}
          {of.result !== null && `, ${moment(of.result.at_s)}`}, {of.asked.hours} h,{" "}
          {of.asked.runs === 1 ? "one run" : `${of.asked.runs} runs`} · asked by <Name of={of.asked_by} />
        </p>
      </div>
      <div class="row">
        {of.state === "done" && (
          <>
            <a class="button" href={href({ view: "tide", cell: cellOf(of.branch), entry: null })}>
              Look into it
            </a>
            <a class="button" href={logOf(of.branch)} download>
              Save as a log
            </a>
          </>
        )}
        <a
          class="button"
          href={href({ view: "what-if", id: null, query: { change: JSON.stringify(of.asked), job: route.value.query["job"] } })}
        >
          Change it…
        </a>
        <button
          type="button"
          onClick={() => {
            const then = isOpen(of) ? again : () => go({ view: "what-if", id: null });
            void end(of.branch).then(then, again);
          }}
        >
          {isOpen(of) ? "End it" : "Forget it"}
        </button>
      </div>
    </header>
  );
}

function Progress({ of }: { of: Branch }) {
  if (of.state === "done") return null;
  if (of.state === "failed") return <p class="problem" role="alert">{of.problem ?? "It failed."}</p>;
  if (of.state === "ended") return <p class="quiet">It was ended before it was done.</p>;
  return (
    <p class="card" role="status">
      {of.state === "waiting" ? "It waits for another branch of yours. " : "The engine decides it… "}
      <progress value={of.done} max={1} aria-label="How far the branch is" /> {percent(of.done)}
    </p>
  );
}

function Found({ of, branch }: { of: Result; branch: string }) {
  const told = warnings(of);
  const job = route.value.query["job"];
  return (
    <div class="stack">
      <MethodError of={of} />
      {told.length > 0 && (
        <ul class="warnings" aria-label="Do not overlook">
          {told.map((one) => (
            <li key={one}>{one}</li>
          ))}
        </ul>
      )}
      {job !== undefined && of.branch !== null && <OfJob of={of} job={job} branch={branch} />}
      {of.previews.map((one, at) => (
        <PreviewCard key={at} of={one} />
      ))}
      <Card title="The tide, in GPUs" aside={<span>one cursor over all</span>}>
        <Tides of={of} />
      </Card>
      <Card title="What came of it">
        <OutcomeTable of={of} />
      </Card>
      <Differs of={of} branch={branch} />
      <Limits />
    </div>
  );
}

function MethodError({ of }: { of: Result }) {
  const parts = errorInWords(of);
  const until = Math.min(of.recorded_until_s, of.until_s);
  return (
    <section class="card method-error" aria-label="How far the method is off">
      {of.recorded === null ? (
        <p>
          <strong>The log ends here:</strong> nothing says how far the control is from what will be.
          Owners need {of.owners_need}.
        </p>
      ) : (
        <>
          <p>
            <strong>How far the method is off here.</strong> Until {clock(until, false)}, the control,
            in which nothing is changed, had {parts.join("; ")}.
          </p>
          <p class="quiet">
            A difference between branch and control that is smaller says nothing. Owners need: {of.owners_need}.
          </p>
        </>
      )}
    </section>
  );
}

/** What the two sides did with the job that it was tried for. */
function OfJob({ of, job, branch }: { of: Result; job: string; branch: string }) {
  const deeds = of.deeds.filter((deed) => deed.subject === job);
  return (
    <Card
      title={
        <>
          What became of <Name of={job} />
        </>
      }
    >
      {deeds.length ? (
        <ol class="deeds">
          {deeds.map((deed, at) => (
            <Row key={at} of={deed} branch={branch} />
          ))}
        </ol>
      ) : (
        <p>Nothing differs for it among the first {count(of.deeds.length)} that differ.</p>
      )}
    </Card>
  );
}

function Differs({ of, branch }: { of: Result; branch: string }) {
  const first = of.first_difference;
  if (of.branch === null) return null;
  if (first === null) {
    return (
      <Card title="First decision that differs">
        <p>None does: the change made no difference in {duration(of.until_s - of.at_s)}.</p>
      </Card>
    );
  }
  return (
    <Card title="First decision that differs">
      <ol class="deeds">
        <Row of={first} branch={branch} />
      </ol>
      {of.deeds.length > 1 && (
        <details class="rest">
          <summary>
            {of.deeds.length >= 200 ? "The first 200 that differ" : `All ${count(of.deeds.length)} that differ`}
          </summary>
          <ol class="deeds">
            {of.deeds.map((deed, at) => (
              <Row key={at} of={deed} branch={branch} />
            ))}
          </ol>
        </details>
      )}
    </Card>
  );
}

/** What the branch alone did is an entry of the branch; of the control there is only the time. */
function Row({ of, branch }: { of: Deed; branch: string }) {
  const { entry } = of;
  const cell = cellOf(branch);
  return (
    <li>
      {of.only_in === "branch" ? (
        <a class="entry" href={href({ view: "decisions", id: String(entry), cell, entry })}>
          {clock(of.at_s)} →{entry}
        </a>
      ) : (
        <button
          type="button"
          class="plain entry"
          title="Show all as it was at that time"
          onClick={() => {
            showTime(of.at_s);
            go({ view: "fleet" });
          }}
        >
          {clock(of.at_s)}
        </button>
      )}
      <span class="tag">only in the {of.only_in}</span>
      <span>
        <Name of={of.subject} /> {of.kind} <bdi class="text">{of.what}</bdi>
      </span>
    </li>
  );
}

function Limits() {
  return (
    <details class="card raw">
      <summary>What this does not tell</summary>
      <ul class="limits">
        <li>Agents are ideal on both sides: they pay nothing for the saves that real ones make every so often.</li>
        <li>A node that died in the log dies in the branch too, even where it would run something else.</li>
        <li>A job that its tenant cancelled or resized because of what happened is so in the branch, too.</li>
        <li>After the end of the log no job comes, and nothing fails.</li>
        <li>
          All of it is in the documentation, “Try another night”; <code>tidegate branch --help</code> does the
          same in a terminal.
        </li>
      </ul>
    </details>
  );
}
