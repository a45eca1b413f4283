/** One node: what is on it, whose it is, who closed it and why, and what can be asked of it. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { clock, duration, moment, percent } from "../format.ts";
import { may } from "../me.ts";
import { Because, By, Empty, JobLink, Loaded, Name, State } from "../parts.tsx";
import { href, isPast } from "../route.ts";
import { AskButton } from "../verbs.tsx";

type NodeRow = Schemas["NodeRow"];

export function NodePanel({ node, close }: { node: string; close: () => void }) {
  const found = useData("/api/v1/nodes", { text: node.slice(0, 256), limit: 100 });
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), []);
  return (
    <aside
      class="card node-panel"
      aria-labelledby="node-title"
      onKeyDown={(event) => {
        if (event.key === "Escape") close();
      }}
    >
      <header class="card-head">
        <h2 id="node-title" ref={heading} tabIndex={-1}>
          <Name of={node} wide />
        </h2>
        <button type="button" class="plain" onClick={close} aria-label="Close the node">
          ✕
        </button>
      </header>
      <Loaded of={found}>
        {(page) => {
          const row = page.nodes.find((one) => one.node === node);
          if (row === undefined) {
            return <Empty title="There is no such node at this moment." />;
          }
          return <Row of={row} now_s={page.now_s} />;
        }}
      </Loaded>
    </aside>
  );
}

function Row({ of, now_s }: { of: NodeRow; now_s: number }) {
  return (
    <div class="stack">
      <Standing of={of} now_s={now_s} />
      <Gpus of={of} />
      <dl class="pairs">
        <Pair label="contact">
          <State of={of.state} />
        </Pair>
        <Pair label="pool">
          <Name of={of.pool} /> · {of.kind}
        </Pair>
        <Pair label="GPUs">
          {of.gpu_count} × <Name of={of.gpu_type} />
          {of.gpu_memory_mib ? ` · ${Math.round(of.gpu_memory_mib / 1024)} GiB each` : ""}
        </Pair>
        <Pair label="busy">{of.gpu_utilisation === null ? "not measured" : percent(of.gpu_utilisation)}</Pair>
        {of.gpu_memory_used != null && <Pair label="memory in use">{percent(of.gpu_memory_used)}</Pair>}
        <Pair label="agent">
          <Name of={of.agent} wide />
        </Pair>
        {of.lease_end_s !== null && <Pair label="lease ends">{clock(of.lease_end_s)}</Pair>}
      </dl>
      <p>
        <a href={href({ view: "decisions", query: { subject: of.node } })}>Decisions about it</a>
      </p>
      <Verbs of={of} now_s={now_s} />
    </div>
  );
}

function Pair({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** What somebody decided about the node, with name and reason. */
function Standing({ of, now_s }: { of: NodeRow; now_s: number }) {
  if (of.loan === null && of.drain === null && of.cordon === null && of.freeze === null) return null;
  return (
    <ul class="standing">
      {of.loan !== null && (
        <li>
          On loan, {(of.loan_state ?? "lent").replace(/_/g, " ")}.{" "}
          {of.due_s === null
            ? "Its owner has not called it back."
            : `Its owner expects it at ${clock(of.due_s, false)}, ${relative(of.due_s - now_s)}.`}
        </li>
      )}
      {of.drain !== null && (
        <li>
          Drained by <Name of={of.drain.by} />, to be empty by {moment(of.drain.by_s)}
          {of.drain.force ? "; what is left then is stopped" : ""}.
        </li>
      )}
      {of.cordon !== null && (
        <li>
          Cordoned <By of={of.cordon} />.
        </li>
      )}
      {of.freeze !== null && (
        <li>
          Not lent, by <Name of={of.freeze.by} />
          {of.freeze.until_s === null ? "" : ` until ${moment(of.freeze.until_s)}`}
          <Because of={of.freeze.reason} />.
        </li>
      )}
    </ul>
  );
}

function relative(in_s: number): string {
  return in_s >= 0 ? `in ${duration(in_s)}` : `${duration(-in_s)} ago`;
}

function Gpus({ of }: { of: NodeRow }) {
  return (
    <ol class="gpus" aria-label="GPUs">
      {of.holders.map((holder, gpu) => {
        const claim = of.claims[gpu] ?? null;
        return (
          <li key={gpu} class={holder === null ? "free" : "held"}>
            <span class="quiet">{gpu}</span>
            {holder === null ? (
              <span class="nil">{of.kind !== "training" && of.loan === null ? "its owner's" : "free"}</span>
            ) : (
              <JobLink job={holder} />
            )}
            {claim !== null && claim !== holder && (
              <small>
                kept for <JobLink job={claim} />
              </small>
            )}
          </li>
        );
      })}
    </ol>
  );
}

const MINUTES = [5, 15, 30, 60, 120];

function Verbs({ of, now_s }: { of: NodeRow; now_s: number }) {
  const [minutes, setMinutes] = useState(30);
  const [force, setForce] = useState(false);
  const { node } = of;
  const closed = of.cordon !== null || of.drain !== null;
  const jobs = new Set(of.holders.filter((one) => one !== null)).size;
  if (!may("node.cordon") && !isPast.value) return null;
  const tried = { verb: "node.drain", node, by_s: minutes * 60, force };
  return (
    <section class="node-verbs" aria-label="What can be asked of it">
      {may("node.cordon") && (
        <div class="row">
          {closed ? (
            <AskButton
              label="Uncordon"
              of={{
                title: "Uncordon this node",
                about: "It takes work again; a drain of it is called off.",
                requests: [{ name: node, args: { verb: "node.uncordon", node } }],
              }}
            />
          ) : (
            <AskButton
              label="Cordon"
              of={{
                title: "Cordon this node",
                about: "No new work on it; what runs there goes on.",
                requests: [{ name: node, args: { verb: "node.cordon", node } }],
              }}
            />
          )}
        </div>
      )}
      {of.drain === null && (
        <div class="row">
          <label class="row">
            empty within
            <select value={minutes} onChange={(event) => setMinutes(Number(event.currentTarget.value))}>
              {MINUTES.map((one) => (
                <option key={one} value={one}>
                  {duration(one * 60)}
                </option>
              ))}
            </select>
          </label>
          <label class="row">
            <input
              type="checkbox"
              checked={force}
              onChange={(event) => setForce(event.currentTarget.checked)}
            />
            stop what is left then
          </label>
          <a class="button" href={href({ view: "what-if", query: { request: JSON.stringify(tried) } })}>
            Preview
          </a>
          {may("node.drain") && (
            <AskButton
              label="Drain…"
              of={{
                title: "Drain this node",
                about:
                  `${jobs === 1 ? "The one job" : `The ${jobs} jobs`} on it save their work and leave ` +
                  `within ${duration(minutes * 60)}; then the node stays cordoned.`,
                danger: true,
                requests: [
                  { name: node, args: { verb: "node.drain", node, by_s: now_s + minutes * 60, force } },
                ],
              }}
            />
          )}
        </div>
      )}
    </section>
  );
}
