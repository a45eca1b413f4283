/** What is wrong with a job that is to be submitted, and in which field of the form. */
import { Problem } from "../api.ts";
import { capital } from "../format.ts";
import type { Given } from "./given.ts";

/** A field of the form. */
export type Field = keyof Given;

/** A field that cannot be used, and what to write instead; null: none of the form's. */
export class Wrong extends Error {
  constructor(
    readonly field: Field | null,
    text: string,
  ) {
    super(text);
  }
}

/** Fields of a submission, as the gateway names them, and where the form has them. */
const FIELDS: Readonly<Record<string, Field>> = {
  job: "job", tenant: "tenant", model: "model", gpus_min: "least", gpus_max: "most",
  total_steps: "steps", samples_per_step: "batch", rates: "rates", deadline_s: "deadline",
  priority: "priority", edge_allowed: "edge", "program.argv": "command", "program.workdir": "workdir",
  deadline: "deadline", command: "command", workdir: "workdir",
};

/** Find the field of the form that the gateway's words are about; the file, if that alone says it. */
export function wrongOf(error: unknown, given: Given): Wrong {
  if (error instanceof Wrong) return error;
  const text = error instanceof Error ? error.message : String(error);
  const parameter = error instanceof Problem ? (error.parameter ?? "") : "";
  const name = parameter.replace(/^form(\.|$)/, "").replace(/^args(\.|$)/, "").replace(/^spec(\.|$)/, "");
  const [first = "", second = ""] = name.split(/[.[]/);
  const field = FIELDS[first === "program" ? `${first}.${second}` : first];
  const after = text.startsWith(`${parameter}: `) ? text.slice(parameter.length + 2) : text;
  const inFile = given.file.trim() !== "";
  if (field !== undefined && (given[field] !== "" || !inFile)) return new Wrong(field, sentence(after));
  return new Wrong(inFile && name !== "" ? "file" : null, name === "" ? text : `${name}: ${after}`);
}

/** What the form calls fields that a sentence about another one names. */
const LABELS: Readonly<Record<string, string>> = { gpus_min: "“GPUs at least”", gpus_max: "“GPUs at most”" };

function sentence(text: string): string {
  const said = text.replace(/\bgpus_(?:min|max)\b/g, (name) => LABELS[name] ?? name);
  return `${capital(said)}${/[.?!]$/.test(said) ? "" : "."}`;
}
