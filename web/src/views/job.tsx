/** One job: what it does, where it was, why, what would change that, and its whole story. */
import { useEffect } from "preact/hooks";
import { Problem, type Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { clock, count, day, duration, figure, moment, percent, plural } from "../format.ts";
import { head } from "../live.ts";
import { may } from "../me.ts";
import { closer } from "../moments.ts";
import { Card, Empty, type Figure, Figures, Name, ProblemNote, State, Waiting } from "../parts.tsx";
import { href, isPast, route } from "../route.ts";
import type { JobRow } from "../states.ts";
import { Curves } from "./job_curves.tsx";
import { Life } from "./job_life.tsx";
import { Output } from "./job_output.tsx";
import { Spec } from "./job_spec.tsx";
import { Story } from "./job_story.tsx";
import { JOB_VERBS, askJobs, askNumber } from "./job_verbs.ts";
import { Why } from "./job_why.tsx";

export function Job({ id }: { id: string }) {
  const { cell } = route.value;
  const row = useData("/api/v1/jobs/{job}", { job: id });
  const why = useData("/api/v1/jobs/{job}/why", { job: id });
  // Of the whole log, so that one sees in the past what came of it, and can go there.
  const newest = { timeless: true, again: head.value?.entry } as const;
  const story = useData("/api/v1/jobs/{job}/story", { job: id, cell }, newest).data;
  useEffect(() => {
    if (story === null) return;
    const entries = [...new Set(story.events.map((one) => one.entry))];
    closer.value = { what: `event of ${id}`, entries };
    return () => {
      closer.value = null;
    };
  }, [story, id]);
  const problem = why.problem;
  if (problem !== null && why.old) return <NotThen id={id} problem={problem} />;
  if (why.data === null) return problem === null ? <Waiting /> : <NotThen id={id} problem={problem} />;
  return (
    <div class={why.old ? "stack was" : "stack"}>
      {problem !== null && <ProblemNote of={problem} />}
      <Head id={id} why={why.data} row={row.problem === null ? (row.data?.job ?? null) : null} />
      <Life id={id} why={why.data} />
      <div class="columns">
        <div class="stack">
          <Why of={why.data} row={row.data?.job ?? null} />
          <Story of={story} why={why.data} now_s={isPast.value ? why.data.now_s : null} />
        </div>
        <div class="stack">
          <Curves id={id} />
          <Output id={id} why={why.data} row={row.data?.job ?? null} />
          <Spec of={why.data.spec} curve={why.data.curve} />
        </div>
      </div>
    </div>
  );
}

function NotThen({ id, problem }: { id: string; problem: Problem }) {
  return (
    <Card title={<Name of={id} wide />}>
      {problem.status === 404 && isPast.value ? (
        <Empty title="This job was not there then.">
          <a href={href({ entry: null })}>Show it as it is now</a>
        </Empty>
      ) : (
        <ProblemNote of={problem} />
      )}
    </Card>
  );
}

function Head(props: { id: string; why: Schemas["WhyDocument"]; row: JobRow | null }) {
  const { id, why, row } = props;
  const spec = why.spec as Record<string, unknown>;
  const tenant = typeof spec["tenant"] === "string" ? spec["tenant"] : (row?.tenant ?? "");
  return (
    <section class="card job-head" aria-label={`Job ${id}`}>
      <div class="job-title">
        <h1>
          <Name of={id} wide />
        </h1>
        <span class="job-state">
          <State of={why.state} /> <span class="quiet">for {duration(why.now_s - why.since_s)}</span>
        </span>
        <span class="quiet">
          {tenant !== "" && (
            <a href={href({ view: "jobs", query: { tenant, state: "all" } })}>
              <Name of={tenant} />
            </a>
          )}{" "}
          · <Name of={String(spec["model"] ?? row?.model ?? "")} /> · {sizes(spec)}
        </span>
        {row !== null && <Verbs row={row} />}
      </div>
      <Figures of={figures(why, row)} />
    </section>
  );
}

function sizes(spec: Readonly<Record<string, unknown>>): string {
  const [least, most] = [Number(spec["gpus_min"] ?? 0), Number(spec["gpus_max"] ?? 0)];
  return least === most ? plural(least, "GPU") : `${count(least)} to ${count(most)} GPUs`;
}

function figures(why: Schemas["WhyDocument"], row: JobRow | null): Figure[] {
  const found: Figure[] = [
    { label: why.pool === null ? "GPUs" : `GPUs of ${why.pool}`, value: why.gpus > 0 ? count(why.gpus) : "–" },
  ];
  if (row === null) return found;
  const late = row.slack_s !== null && row.slack_s < 0;
  found.push({
    label: "done", value: percent(row.progress),
    note: row.total_steps === null
      ? `${count(row.step)} steps ${row.end_s === null ? "by its last report" : "in all"}`
      : `of ${count(row.total_steps)} steps`,
  });
  if (row.end_s !== null) found.push({ label: "ended", value: clock(row.end_s, false), note: day(row.end_s) });
  else {
    found.push({ label: row.left_s === null ? "still needs" : "left at this speed", value: duration(row.left_s ?? row.needs_s) });
    if (row.deadline_s !== null) {
      found.push({
        label: `${late ? "late for" : "before"} ${moment(row.deadline_s)}`,
        value: duration(Math.abs(row.slack_s ?? 0)), tone: late ? "bad" : "good",
      });
    }
  }
  found.push({ label: row.state === "queued" ? "has waited" : "waited at first", value: duration(row.waited_s) });
  found.push({
    label: "moved · made way", value: `${count(row.migrations)} · ${count(row.preemptions)}`,
    ...(row.failures > 0 ? { note: `${count(row.failures)} failures` } : {}),
  });
  if (row.priority !== 0) found.push({ label: "priority", value: figure(row.priority) });
  return found;
}

function Verbs({ row }: { row: JobRow }) {
  const offered = JOB_VERBS.filter((one) => may(one.verb, row.tenant) && one.fits(row));
  if (offered.length === 0) return null;
  return (
    <div class="row verbs" role="group" aria-label="Ask for">
      {offered.map((one) => (
        <button
          key={one.verb}
          type="button"
          class={one.danger ? "danger" : ""}
          onClick={() => (one.number ? askNumber(one, row) : askJobs(one, [row]))}
        >
          {one.title}
        </button>
      ))}
    </div>
  );
}
