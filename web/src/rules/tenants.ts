/** What tenants use, summed up from their jobs, beside what they may have. */
import type { Schemas } from "../api.ts";

export interface TenantRow {
  tenant: string;
  held: number;
  holding: number;
  waiting: number;
  quota: Schemas["QuotaRow"] | null;
}

interface JobPart {
  tenant: string;
  state: string;
  gpus: number;
}

/** Sum jobs up by tenant; a quota's own figures go before, as the scheduler counts by them. */
export function tenantsOf(
  jobs: readonly JobPart[],
  quotas: readonly Schemas["QuotaRow"][],
): TenantRow[] {
  const found = new Map<string, TenantRow>();
  const of = (tenant: string): TenantRow => {
    let row = found.get(tenant);
    if (row === undefined) {
      row = { tenant, held: 0, holding: 0, waiting: 0, quota: null };
      found.set(tenant, row);
    }
    return row;
  };
  for (const job of jobs) {
    const row = of(job.tenant);
    if (job.state === "queued") row.waiting++;
    else {
      row.holding++;
      row.held += job.gpus;
    }
  }
  for (const quota of quotas) {
    const row = of(quota.tenant);
    row.quota = quota;
    row.held = quota.gpus_held;
    row.holding = quota.jobs_holding;
  }
  return [...found.values()].sort((one, other) => other.held - one.held || (one.tenant < other.tenant ? -1 : 1));
}
