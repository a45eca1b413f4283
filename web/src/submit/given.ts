/** The form's fields as text, and the job that they ask for. */
import { Problem, type Schemas, send } from "../api.ts";
import { Wrong } from "./wrong.ts";

type Fields = Record<string, unknown>;

export interface Given {
  job: string;
  tenant: string;
  model: string;
  least: string;
  most: string;
  steps: string;
  batch: string;
  rates: string;
  deadline: string;
  priority: string;
  /** "": as the file says, else edge servers may run it; "no": they may not. */
  edge: string;
  /** A word of the command a line. */
  command: string;
  workdir: string;
  /** A job's file, for all that is not said above. */
  file: string;
}

export const EMPTY: Given = {
  job: "", tenant: "", model: "", least: "", most: "", steps: "", batch: "", rates: "",
  deadline: "", priority: "", edge: "", command: "", workdir: "", file: "",
};
/** What the gateway takes no more than, in letters; a page stands still over a text that is much longer. */
export const LONGEST = 500_000;
/** What a job without a model is called by; it has no kin to learn from. */
export const NO_MODEL = "unnamed";
const GPUS_MOST = 65_536;
const TEN_YEARS_S = 315_360_000;

/** Make up the name of a job. */
export function newName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(4));
  return `job-${Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("")}`;
}

export function tooLong(): Wrong {
  return new Wrong("file", `This is longer than the ${LONGEST.toLocaleString("en")} letters that a job's file may have.`);
}

/** Have the gateway read a job's file, as `tidegate submit` would. Throws Wrong. */
export async function fileOf(text: string): Promise<Schemas["JobFileAnswer"]> {
  if (text.trim() === "") return { fields: {}, deadline_after_s: null };
  if (text.length > LONGEST) throw tooLong();
  try {
    return await send("/api/v1/job-file", { method: "POST", body: { text } });
  } catch (error) {
    throw error instanceof Problem && error.parameter === "text" ? new Wrong("file", error.message) : error;
  }
}

/**
 * Make the job that is asked for; where form and file say different things, the form counts. Throws
 * Wrong.
 *
 * @param file What its file says.
 * @param name What it is called if nobody says so.
 * @param tenant Whose it is, where that is not to be chosen.
 * @param now_s The log's own time, from which a deadline counts.
 */
export function specOf(
  given: Given,
  file: Schemas["JobFileAnswer"],
  name: string,
  tenant: string | null,
  now_s: number,
): Fields {
  const spec: Fields = { job: name, model: NO_MODEL, samples_per_step: 1, ...file.fields };
  const own: Fields = {
    job: text(given.job), tenant: tenant ?? text(given.tenant), model: text(given.model),
    gpus_min: number(given, "least"), gpus_max: number(given, "most"),
    total_steps: number(given, "steps"), samples_per_step: number(given, "batch"),
    priority: number(given, "priority"), rates: given.rates.trim() === "" ? undefined : ratesOf(given.rates),
    edge_allowed: given.edge === "no" ? false : undefined,
  };
  for (const [field, value] of Object.entries(own)) if (value !== undefined) spec[field] = value;
  const program = programOf(given, file.fields["program"]);
  if (program !== undefined) spec["program"] = program;
  const deadline = text(given.deadline);
  const after_s = deadline === undefined ? file.deadline_after_s : secondsOf(deadline);
  if (after_s !== null) spec["deadline_s"] = now_s + after_s;
  return completed(spec);
}

/** Add sizes and speeds that need not be said: a command is as fast as it has GPUs. */
function completed(spec: Fields): Fields {
  const rates = spec["rates"];
  const points = Array.isArray(rates) ? (rates as { gpus?: unknown }[]) : [];
  if (rates === undefined && spec["program"] === undefined) {
    throw new Wrong("rates", "Say how fast it is, such as 1=300, 4=1000; or give a command, whose speed is measured.");
  }
  spec["gpus_min"] ??= points[0]?.gpus ?? 1;
  const least = spec["gpus_min"];
  const last = points.at(-1)?.gpus;
  spec["gpus_max"] ??= typeof least === "number" && typeof last === "number" ? Math.max(least, last) : least;
  const most = spec["gpus_max"];
  if (rates === undefined && typeof most === "number" && most >= 1 && most <= GPUS_MOST) {
    const sizes: number[] = [];
    for (let size = 1; size < most; size *= 2) sizes.push(size);
    spec["rates"] = [...sizes, most].map((gpus) => ({ gpus, samples_per_s: gpus }));
  }
  return spec;
}

function text(said: string): string | undefined {
  return said.trim() === "" ? undefined : said.trim();
}

function number(given: Given, field: "least" | "most" | "steps" | "batch" | "priority"): number | undefined {
  const said = given[field].trim().replace("−", "-");
  if (said === "") return undefined;
  const found = Number(said);
  if (!Number.isFinite(found)) throw new Wrong(field, "Write a number, in digits.");
  return found;
}

function ratesOf(said: string): { gpus: number; samples_per_s: number }[] {
  const points = said.split(/[\s,]+/).filter((one) => one !== "").map((one) => {
    const found = /^(\d{1,6})=(\d*\.?\d+(?:e[+-]?\d+)?)$/i.exec(one);
    if (found === null) throw new Wrong("rates", `“${one}” is no speed; write GPUs=samples a second, as in 1=300, 4=1000.`);
    return { gpus: Number(found[1]), samples_per_s: Number(found[2]) };
  });
  return points.sort((a, b) => a.gpus - b.gpus);
}

function programOf(given: Given, inFile: unknown): unknown {
  const argv = given.command.split("\n").map((line) => line.replace(/\r$/, "")).filter((line) => line !== "");
  const workdir = text(given.workdir);
  if (argv.length === 0 && workdir === undefined) return inFile;
  if (argv.length === 0 && inFile === undefined) {
    throw new Wrong("command", "Say what its workers run; a folder alone is nothing to start.");
  }
  return {
    ...(inFile as Fields | undefined),
    ...(argv.length > 0 ? { argv } : {}),
    ...(workdir === undefined ? {} : { workdir }),
  };
}

const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Read a length of time, as the command line does: `90m`, `2h`, `1h30m`. */
function secondsOf(said: string): number {
  const parts = said.trim().toLowerCase().match(/^(?:\d+(?:\.\d+)?[smhd])*(?:\d+(?:\.\d+)?)?$/);
  let total_s = 0;
  for (const [, length = "", unit = "s"] of said.toLowerCase().matchAll(/(\d+(?:\.\d+)?)([smhd])?/g)) {
    total_s += Number(length) * (UNITS[unit] ?? 1);
  }
  if (parts === null || total_s <= 0 || total_s > TEN_YEARS_S) {
    throw new Wrong("deadline", `“${said}” is no length of time from now; write 90m, 2h or 1h30m.`);
  }
  return total_s;
}
