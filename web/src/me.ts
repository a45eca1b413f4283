/** Who uses the console, and what they may ask for. */
import { effect, signal } from "@preact/signals";
import { type Schemas, get } from "./api.ts";
import { connection } from "./live.ts";
import { isPast } from "./route.ts";

export const me = signal<Schemas["Me"] | null>(null);

/** Learn who it is; again after each interruption, when they may have signed in anew. */
export function learnWho(): void {
  effect(() => {
    if (connection.value === "offline") return;
    get("/api/v1/me").then(
      (found) => {
        me.value = found;
      },
      () => undefined,
    );
  });
}

/** Whether they may ask for a verb, of a tenant's job; what is past cannot be changed. */
export function may(verb: string, tenant?: string | null): boolean {
  const who = me.value;
  if (who === null || isPast.value || !who.verbs.includes(verb)) return false;
  return who.role !== "tenant" || tenant === undefined || tenant === who.tenant;
}
