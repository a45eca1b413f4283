/** Tenants and quotas: use against what each may have; the policy in force, and what is paused. */
import { useEffect, useState } from "preact/hooks";
import { useData } from "../data.ts";
import { count } from "../format.ts";
import { may } from "../me.ts";
import { usePages } from "../pages.ts";
import { By, Card, Empty, Loaded, Name, ProblemNote, Share, Table } from "../parts.tsx";
import { href } from "../route.ts";
import { PolicyCard } from "../rules/policy.tsx";
import { QuotaForm, clearQuota } from "../rules/quota-form.tsx";
import { type TenantRow, tenantsOf } from "../rules/tenants.ts";
import "../rules/rules.css";

/** Jobs that wait or hold GPUs; what has ended holds nothing. */
const GOES_ON = "queued,starting,running,scaling,checkpointing,stopping,migrating";
/** So many jobs at most are summed up. */
const MOST = 20_000;

export function Tenants() {
  const rules = useData("/api/v1/rules");
  const jobs = usePages("/api/v1/jobs", "jobs", {
    state: GOES_ON,
    fields: "tenant,state,gpus",
  });
  useEffect(() => {
    if (jobs.more && jobs.rows.length < MOST) jobs.reach(Math.min(jobs.total, MOST));
  }, [jobs.rows.length, jobs.more]);
  return (
    <div class="stack">
      {jobs.problem !== null && <ProblemNote of={jobs.problem} />}
      <Loaded of={rules}>
        {(found) => (
          <div class="stack">
            <PolicyCard of={found} />
            <Quotas rows={tenantsOf(jobs.rows, found.quotas)} partly={jobs.more} />
          </div>
        )}
      </Loaded>
    </div>
  );
}

function Quotas({ rows, partly }: { rows: readonly TenantRow[]; partly: boolean }) {
  const [edited, setEdited] = useState<string | null>(null);
  const sets = may("quota.set");
  return (
    <Card
      title="Tenants"
      aside={
        sets ? (
          <button type="button" onClick={() => setEdited("")}>
            Set a quota…
          </button>
        ) : undefined
      }
    >
      {edited !== null && (
        <QuotaForm key={edited} of={rows.find((row) => row.tenant === edited) ?? null} close={() => setEdited(null)} />
      )}
      {partly && <p class="quiet">Counted over the first {count(MOST)} jobs.</p>}
      {!rows.length ? (
        <Empty title="No tenant has a job or a quota at this moment.">
          <code>tidegate quota set vision 16</code> gives one, <code>tidegate submit --help</code> a job.
        </Empty>
      ) : (
        <Table
          label="Table of tenants"
          head={["tenant", "GPUs held", "#jobs with GPUs", "#waiting", "#guaranteed", "quota", sets && "ask"]}
        >
          {rows.map((row) => (
            <Tenant key={row.tenant} of={row} edit={sets ? () => setEdited(row.tenant) : null} />
          ))}
        </Table>
      )}
    </Card>
  );
}

function Tenant({ of, edit }: { of: TenantRow; edit: (() => void) | null }) {
  const { quota } = of;
  const all = quota?.gpus ?? null;
  return (
    <tr>
      <th scope="row">
        <a href={href({ view: "jobs", query: { tenant: of.tenant } })}>
          <Name of={of.tenant} />
        </a>
      </th>
      <td>
        {all === null ? (
          count(of.held)
        ) : (
          <Share of={of.held / Math.max(1, all)} label={`${count(of.held)} of ${count(all)}`} />
        )}
      </td>
      <td class="number">
        {count(of.holding)}
        {quota?.jobs != null && <span class="quiet"> of {count(quota.jobs)}</span>}
      </td>
      <td class={of.waiting ? "number" : "number nil"}>{count(of.waiting)}</td>
      <td class={quota?.guaranteed ? "number" : "number nil"}>{count(quota?.guaranteed ?? 0)}</td>
      <td>
        {quota === null ? (
          <span class="nil">none</span>
        ) : quota.set_by === null ? (
          "by the configuration"
        ) : (
          <By of={{ ...quota, by: quota.set_by }} />
        )}
      </td>
      {edit !== null && (
        <td>
          <div class="row">
            <button type="button" onClick={edit}>
              {quota === null ? "Set…" : "Change…"}
            </button>
            {quota?.set_by != null && (
              <button type="button" onClick={() => clearQuota(of.tenant)}>
                Clear
              </button>
            )}
          </div>
        </td>
      )}
    </tr>
  );
}
