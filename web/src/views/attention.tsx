/** What needs somebody: each with a link to where it is seen to. */
import type { ComponentChildren } from "preact";
import type { Schemas } from "../api.ts";
import { useData } from "../data.ts";
import { clock, count, duration, plural } from "../format.ts";
import { me } from "../me.ts";
import { Card, JobLink, Name, NodeLink } from "../parts.tsx";
import { href } from "../route.ts";
import { LIVING } from "../states.ts";

interface Need {
  key: string;
  urgent: boolean;
  what: ComponentChildren;
}
const SHOWN = 5;

export function Attention({ overview }: { overview: Schemas["Overview"] | null }) {
  const rules = useData("/api/v1/rules", {}, { apartMs: 2000, calm: true }).data;
  const loans = useData("/api/v1/loans", {}, { apartMs: 1000, calm: true }).data;
  const late = useData(
    "/api/v1/jobs",
    { state: LIVING.join(), sort: "slack", limit: 50, fields: "job,slack_s,state" },
    { apartMs: 2000, calm: true },
  ).data;
  const operates = ["operator", "admin"].includes(me.value?.role ?? "");
  const letters = useData("/api/v1/dead-letters", { limit: 100 }, { off: !operates, apartMs: 10_000, calm: true }).data;
  if (overview === null) return null;
  const now_s = overview.now_s;
  const needs: Need[] = [];

  for (const [what, pause] of Object.entries(rules?.pauses ?? {})) {
    needs.push({
      key: `pause ${what}`, urgent: true,
      what: (
        <>
          {what} are paused by <Name of={String(pause.by)} />
          {typeof pause.until_s === "number" && <> until {clock(pause.until_s, false)}</>}
        </>
      ),
    });
  }
  for (const [whom, freeze] of Object.entries(rules?.freezes ?? {})) {
    needs.push({
      key: `freeze ${whom}`, urgent: false,
      what: (
        <>
          <Frozen whom={whom} isPool={overview.pools.some((one) => one.pool === whom)} />: frozen by <Name of={String(freeze.by)} />
        </>
      ),
    });
  }
  for (const [state, n] of Object.entries(overview.nodes)) {
    if (state === "alive" || state === "removed") continue;
    needs.push({
      key: `nodes ${state}`, urgent: true,
      what: (
        <a href={href({ view: "fleet", query: { state } })}>
          {plural(n, "node")} {state}
        </a>
      ),
    });
  }
  const overdue = loans?.loans.filter((one) => one.due_s !== null && one.due_s < now_s) ?? [];
  for (const one of overdue.slice(0, SHOWN)) {
    needs.push({
      key: `due ${one.node}`, urgent: true,
      what: (
        <>
          <NodeLink node={one.node} /> should be back with its owner since {clock(one.due_s, false)}
        </>
      ),
    });
  }
  const behind = ((late?.jobs ?? []) as readonly Record<string, unknown>[]).filter(
    (one) => typeof one["slack_s"] === "number" && one["slack_s"] < 0,
  );
  if (behind.length > 0) {
    needs.push({
      key: "behind", urgent: true,
      what: (
        <>
          <a href={href({ view: "jobs", query: { sort: "slack" } })}>
            {behind.length >= 50 ? "50 or more jobs" : plural(behind.length, "job")} will miss{" "}
            {behind.length === 1 ? "its deadline" : "their deadlines"}
          </a>
          :{" "}
          {behind.slice(0, SHOWN).map((one, place) => (
            <span key={String(one["job"])}>
              {place > 0 && ", "}
              <JobLink job={String(one["job"])} /> by {duration(-(one["slack_s"] as number))}
            </span>
          ))}
        </>
      ),
    });
  }
  const failed = overview.jobs["failed"] ?? 0;
  if (failed > 0) {
    needs.push({
      key: "failed", urgent: false,
      what: <a href={href({ view: "jobs", query: { state: "failed" } })}>{plural(failed, "job")} failed for good</a>,
    });
  }
  const idle = loans?.loans.filter((one) => one.gpus_used === 0) ?? [];
  if (idle.length > 0) {
    const gpus = idle.reduce((sum, one) => sum + one.gpus, 0);
    needs.push({
      key: "idle", urgent: false,
      what: (
        <a href={href({ view: "loans" })}>
          {plural(idle.length, "node")} lent that no job uses: {plural(gpus, "GPU")}
        </a>
      ),
    });
  }
  const dead = letters?.letters.length ?? 0;
  if (dead > 0) {
    needs.push({
      key: "dead", urgent: false,
      what: <a href={href({ view: "dead-letters" })}>{dead >= 100 ? "100 or more dead letters" : plural(dead, "dead letter")}</a>,
    });
  }
  needs.sort((a, b) => Number(b.urgent) - Number(a.urgent));
  return (
    <Card title="Needs you" aside={needs.length > 0 ? <span>{count(needs.length)}</span> : undefined}>
      {needs.length === 0 ? (
        <p class="quiet">Nothing: every node is in contact, no deadline is lost, nothing is overdue.</p>
      ) : (
        <ul class="needs">
          {needs.map((one) => (
            <li key={one.key} class={one.urgent ? "urgent" : ""}>
              <span>{one.what}</span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

/** Who lends nothing new: every lender, a pool, or a node. */
function Frozen({ whom, isPool }: { whom: string; isPool: boolean }) {
  if (whom === "") return <>no lender lends</>;
  if (!isPool) return <><NodeLink node={whom} /> lends nothing new</>;
  return (
    <>
      <a href={href({ view: "loans" })} class="name-link"><Name of={whom} /></a> lends nothing new
    </>
  );
}
