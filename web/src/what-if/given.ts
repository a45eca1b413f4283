/** The form's fields as text, and the branch that they ask for. */
import type { Asked, Change } from "./branches.ts";

export interface Given {
  entry: string;
  policy: string;
  settings: string;
  add: Readonly<Record<string, string>>;
  lose: string;
  demand: string;
  like: string;
  count: string;
  /** Verbs as JSON, one a line. */
  requests: string;
  hours: string;
  runs: string;
}

const EMPTY: Given = {
  entry: "", policy: "", settings: "", add: {}, lose: "", demand: "1", like: "", count: "1",
  requests: "", hours: "6", runs: "1",
};

/** A field that cannot be used, and what to write instead. */
export class Wrong extends Error {
  constructor(
    readonly field: keyof Given,
    text: string,
  ) {
    super(text);
  }
}

/** What an address asks for: a verb to try, a policy, or a whole change. */
export function givenOf(query: Readonly<Record<string, string>>, entry: number | null): Given {
  const at = query["at"] ?? (entry === null ? "" : String(entry));
  const found: Given = { ...EMPTY, entry: at };
  if (query["change"] !== undefined) return { ...found, ...ofChange(query["change"]) };
  return {
    ...found,
    policy: query["policy"] ?? "",
    requests: query["request"] ?? "",
    hours: query["hours"] ?? found.hours,
    runs: query["runs"] ?? found.runs,
    like: query["like"] ?? "",
  };
}

function ofChange(text: string): Partial<Given> {
  let asked: Asked;
  try {
    asked = JSON.parse(text) as Asked;
  } catch {
    return {};
  }
  const change = asked.change ?? {};
  const [job] = change.jobs ?? [];
  return {
    ...(asked.entry == null ? {} : { entry: String(asked.entry) }),
    hours: String(asked.hours ?? EMPTY.hours),
    runs: String(asked.runs ?? EMPTY.runs),
    policy: change.policy ?? "",
    settings: Object.entries(change.settings ?? {}).map(([name, of]) => `${name}=${of}`).join(", "),
    add: Object.fromEntries(Object.entries(change.add_nodes ?? {}).map(([pool, n]) => [pool, String(n)])),
    lose: (change.lose ?? []).join(", "),
    demand: String(change.demand ?? 1),
    like: job?.like ?? "",
    count: String(job?.count ?? 1),
    requests: (change.requests ?? []).map((one) => JSON.stringify(one)).join("\n"),
  };
}

function number(given: Given, field: "demand" | "hours" | "runs" | "count", from: number, to: number): number {
  const found = Number(given[field].trim());
  if (given[field].trim() === "" || !Number.isFinite(found) || found < from || found > to) {
    throw new Wrong(field, `Write a number from ${from} to ${to}.`);
  }
  return found;
}

function listed(text: string): string[] {
  return text.split(/[\s,]+/).filter((one) => one !== "");
}

function settingsOf(given: Given): Record<string, number> {
  const found: Record<string, number> = {};
  for (const one of listed(given.settings)) {
    const [name = "", of = ""] = one.split("=");
    if (name === "" || of === "" || !Number.isFinite(Number(of))) {
      throw new Wrong("settings", `“${one}” is not NAME=NUMBER, as in cycle_s=30.`);
    }
    found[name] = Number(of);
  }
  return found;
}

function requestsOf(given: Given): Record<string, unknown>[] {
  return given.requests
    .split("\n")
    .filter((line) => line.trim() !== "")
    .map((line) => {
      try {
        const found: unknown = JSON.parse(line);
        if (found !== null && typeof found === "object" && "verb" in found) {
          return found as Record<string, unknown>;
        }
      } catch {
        // Said below.
      }
      throw new Wrong("requests", `“${line.slice(0, 60)}” is no verb, as {"verb": "job.hold", "job": "job-0042"}.`);
    });
}

/** Make what the gateway is asked for; what is left as it is, is left out. Throws Wrong. */
export function askedOf(given: Given): Asked {
  const entry = given.entry.trim();
  if (entry !== "" && !/^[0-9]{1,15}$/.test(entry)) {
    throw new Wrong("entry", "Write the number of an entry, or leave it empty for the newest.");
  }
  const change: Change = {};
  if (given.policy.trim() !== "") change.policy = given.policy.trim();
  const settings = settingsOf(given);
  if (Object.keys(settings).length) change.settings = settings;
  const add: Record<string, number> = {};
  for (const [pool, text] of Object.entries(given.add)) {
    const nodes = Number(text);
    if (text.trim() === "" || nodes === 0) continue;
    if (!Number.isInteger(nodes) || nodes < 0 || nodes > 1000) throw new Wrong("add", "Write whole numbers up to 1000.");
    add[pool] = nodes;
  }
  if (Object.keys(add).length) change.add_nodes = add;
  const lose = listed(given.lose);
  if (lose.length) change.lose = lose;
  const demand = number(given, "demand", 0, 100);
  if (demand !== 1) change.demand = demand;
  if (given.like.trim() !== "") {
    change.jobs = [{ like: given.like.trim(), count: number(given, "count", 1, 1000) }];
  }
  const requests = requestsOf(given);
  if (requests.length) change.requests = requests;
  return {
    entry: entry === "" ? null : Number(entry),
    hours: number(given, "hours", 0.1, 168),
    runs: number(given, "runs", 1, 20),
    change,
  };
}
