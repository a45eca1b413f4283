/** Small parts that all views are made of. Names of strangers are text, kept apart by <bdi>. */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import type { Data } from "./data.ts";
import type { Problem } from "./api.ts";
import { moment } from "./format.ts";
import { href } from "./route.ts";

/** A name that somebody else chose: it cannot turn or overflow what stands beside it. */
export function Name({ of, wide }: { of: string; wide?: boolean }) {
  return (
    <bdi class={wide ? "name wide" : "name"} title={of}>
      {of}
    </bdi>
  );
}

export function JobLink({ job }: { job: string }) {
  return (
    <a href={href({ view: "jobs", id: job })} class="name-link">
      <Name of={job} />
    </a>
  );
}

/** An owner that lends, as a link to what was decided of it. */
export function LenderLink({ lender }: { lender: string }) {
  return (
    <a href={href({ view: "decisions", query: { subject: lender } })} class="name-link">
      <Name of={lender} />
    </a>
  );
}

export function NodeLink({ node }: { node: string }) {
  return (
    <a href={href({ view: "fleet", query: { node } })} class="name-link">
      <Name of={node} />
    </a>
  );
}

/** An entry of the journal, as a link to that moment of the view one is in. */
export function EntryLink({ entry }: { entry: number }) {
  return (
    <a href={href({ entry })} class="entry" title={`Show all as it was after entry ${entry}`}>
      →{entry}
    </a>
  );
}

/** A moment, as a link to what was decided then. */
export function DecisionLink({ entry, at_s, title }: { entry: number; at_s: number; title?: string }) {
  return (
    <a class="entry" href={href({ view: "decisions", id: String(entry), entry })} title={title}>
      {moment(at_s)} →{entry}
    </a>
  );
}

/** A part of a view under a heading. */
export function Card(props: {
  title: ComponentChildren;
  aside?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  const id = useId();
  return (
    <section class={`card ${props.class ?? ""}`} aria-labelledby={id}>
      <header class="card-head">
        <h2 id={id}>{props.title}</h2>
        {props.aside !== undefined && <div class="card-aside">{props.aside}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** A part of a form. */
export function Part({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <fieldset>
      <legend>{title}</legend>
      <div class="filters">{children}</div>
    </fieldset>
  );
}

/** The state of a job, node or loan: a shape and a word, never a colour alone. */
export function State({ of }: { of: string }) {
  return <span class={`state state-${of}`}>{of.replace(/_/g, " ")}</span>;
}

export interface Figure {
  label: string;
  value: string;
  /** Said below it in small. */
  note?: string;
  tone?: "bad" | "good" | "quiet";
}

/** A strip of numbers. */
export function Figures({ of }: { of: readonly Figure[] }) {
  return (
    <dl class="figures">
      {of.map((one) => (
        <div key={one.label} class={one.tone ?? ""}>
          <dt>{one.label}</dt>
          <dd>
            {one.value}
            {one.note !== undefined && <small>{one.note}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** A small table, which scrolls where it is too wide; `#` before a title: a column of numbers. */
export function Table(props: {
  label: string;
  head: readonly (ComponentChildren | false)[];
  class?: string;
  children: ComponentChildren;
}) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
      <table class={props.class}>
        <thead>
          <tr>
            {props.head.filter((one) => one !== false).map((one, at) =>
              typeof one === "string" && one.startsWith("#") ? (
                <th key={at} scope="col" class="number">{one.slice(1)}</th>
              ) : (
                <th key={at} scope="col">{one}</th>
              ),
            )}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

/** A verb's reason, in the words of who asked. */
export function Because({ of }: { of: string }) {
  return of === "" ? null : (
    <>
      : <bdi class="text">{of}</bdi>
    </>
  );
}

interface Deed {
  by: string;
  since_s: number | null;
  until_s?: number | null;
  reason: string;
}

/** Who asked for what holds, since when and why. */
export function By({ of }: { of: Deed }) {
  return (
    <>
      by <Name of={of.by} /> since {moment(of.since_s)}
      {of.until_s != null && <> until {moment(of.until_s)}</>}
      <Because of={of.reason} />
    </>
  );
}

/** What there is to do where there is nothing yet. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children !== undefined && <p>{children}</p>}
    </div>
  );
}

export function ProblemNote({ of }: { of: Problem }) {
  return (
    <p class="problem" role="alert">
      {of.message}
    </p>
  );
}

/** Draw data as soon as there is some; say what is wrong, and keep what is old drawn meanwhile. */
export function Loaded<T>(props: {
  of: Data<T>;
  children: (data: T) => ComponentChildren;
}) {
  const { data, problem, old } = props.of;
  // While the gateway is away the bar above says how old what is drawn is.
  const told = problem !== null && (data === null || problem.status !== 0);
  return (
    <div class={old ? "loaded was" : "loaded"}>
      {told && <ProblemNote of={problem} />}
      {data === null && problem === null && <Waiting />}
      {data !== null && props.children(data)}
    </div>
  );
}

export function Waiting() {
  return (
    <p class="waiting" role="status">
      Reading…
    </p>
  );
}

/** A bar of a share, 0 to 1, with its text beside it. */
export function Share({ of, label }: { of: number; label: string }) {
  const whole = Math.max(0, Math.min(1, of));
  return (
    <span class="share">
      <span class="share-bar" aria-hidden="true">
        <span style={{ width: `${whole * 100}%` }} />
      </span>
      {label}
    </span>
  );
}
