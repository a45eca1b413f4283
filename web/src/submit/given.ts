/** The form's fields as text, which the gateway makes a job of, as `tidegate submit` does. */
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

export function tooLong(): Wrong {
  return new Wrong("file", `This is longer than the ${LONGEST.toLocaleString("en")} letters that a job's file may have.`);
}

/**
 * Have the gateway read form and file, and make the job that they ask for. Throws Wrong, or what
 * the gateway says of a field.
 *
 * @param tenant Whose it is, where that is not to be chosen.
 * @param now_s The log's own time, from which a deadline counts.
 */
export async function specOf(given: Given, tenant: string | null, now_s: number): Promise<Fields> {
  if (given.file.length > LONGEST) throw tooLong();
  const said: Fields = {
    job: text(given.job), tenant: tenant ?? text(given.tenant), model: text(given.model),
    gpus_min: number(given.least), gpus_max: number(given.most),
    total_steps: number(given.steps), samples_per_step: number(given.batch), rates: text(given.rates),
    deadline: text(given.deadline), priority: number(given.priority),
    edge_allowed: given.edge === "no" ? false : undefined,
    command: words(given.command), workdir: text(given.workdir),
  };
  const form = Object.fromEntries(Object.entries(said).filter(([, value]) => value !== undefined));
  try {
    const body = { text: given.file, form };
    const made: Schemas["JobFileAnswer"] = await send("/api/v1/job-file", { method: "POST", body });
    const { fields, deadline_after_s } = made;
    return deadline_after_s === null ? fields : { ...fields, deadline_s: now_s + deadline_after_s };
  } catch (error) {
    throw error instanceof Problem && error.parameter === "text" ? new Wrong("file", error.message) : error;
  }
}

function text(said: string): string | undefined {
  return said.trim() === "" ? undefined : said.trim();
}

/** A number, or what stands there in its place: the gateway says what is wrong with it. */
function number(said: string): number | string | undefined {
  const found = Number(said);
  return Number.isFinite(found) && said.trim() !== "" ? found : text(said);
}

function words(said: string): string[] | undefined {
  const found = said.split("\n").map((line) => line.replace(/\r$/, "")).filter((line) => line !== "");
  return found.length === 0 ? undefined : found;
}
