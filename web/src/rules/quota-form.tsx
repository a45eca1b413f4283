/** What a tenant may have: the form before the question. */
import { isolated } from "../bidi.ts";
import { ask } from "../verbs.tsx";
import type { TenantRow } from "./tenants.ts";

/** Ask that what the configuration says of a tenant holds again. */
export function clearQuota(tenant: string): void {
  ask({
    title: "Clear this quota",
    about: "What the configuration says of this tenant holds again.",
    requests: [{ name: tenant, args: { verb: "quota.clear", tenant } }],
  });
}

function whole(text: FormDataEntryValue | null): number | null {
  return text === null || String(text).trim() === "" ? null : Number(text);
}

export function QuotaForm({ of, close }: { of: TenantRow | null; close: () => void }) {
  const quota = of?.quota ?? null;
  return (
    <form
      class="filters quota-form"
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        const tenant = String(given.get("tenant") ?? "").trim();
        const jobs = whole(given.get("jobs"));
        const args = {
          verb: "quota.set",
          tenant,
          gpus: whole(given.get("gpus")) ?? 0,
          guaranteed: whole(given.get("guaranteed")) ?? 0,
          ...(jobs === null ? {} : { jobs }),
        };
        ask({
          title: "Set this quota",
          about: `${isolated(tenant)} may hold ${args.gpus} GPUs. What runs goes on; more is not started.`,
          requests: [{ name: tenant, args }],
          done: close,
        });
      }}
    >
      <label>
        tenant
        <input type="text" name="tenant" required defaultValue={of?.tenant ?? ""} />
      </label>
      <label>
        GPUs at once
        <input type="number" name="gpus" min="0" step="1" required defaultValue={quota?.gpus ?? ""} />
      </label>
      <label>
        of them guaranteed
        <input type="number" name="guaranteed" min="0" step="1" defaultValue={quota?.guaranteed ?? ""} />
      </label>
      <label>
        jobs at once
        <input type="number" name="jobs" min="1" step="1" placeholder="any" defaultValue={quota?.jobs ?? ""} />
      </label>
      <button type="submit" class="primary">
        Set…
      </button>
      <button type="button" onClick={close}>
        Leave it
      </button>
    </form>
  );
}
