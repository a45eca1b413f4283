/** The file of a job, as docs/jobs.md has it, in JSON: short ways of saying things spelled out. */
import type { Schemas } from "../api.ts";
import { shortened } from "../bidi.ts";
import { Wrong } from "./wrong.ts";

export type Fields = Record<string, unknown>;

/** What the gateway takes no more than, in letters; a page stands still over a text that is much longer. */
export const LONGEST = 500_000;

/** Parts of the program that may be said outside it. */
const AS_THEY_ARE = ["workdir", "code", "code_sha256", "outputs"] as const;
const SHORT = ["sizes", "command", "environment", ...AS_THEY_ARE] as const;

/** What the gateway would pass over in silence if it were misspelt. */
const KNOWN: Readonly<Record<keyof Schemas["JobSubmitted"], true>> = {
  job: true, tenant: true, model: true, gpus_min: true, gpus_max: true, gpus: true,
  total_steps: true, samples_per_step: true, rates: true, deadline_s: true, memory_mib: true,
  checkpoint_mib: true, checkpoint_cost_s: true, start_cost_s: true, priority: true,
  edge_allowed: true, program: true,
};
const OF_PROGRAM: Readonly<Record<keyof Schemas["Program"], true>> = {
  argv: true, env: true, secrets: true, workdir: true, workers: true, saves: true, resize: true,
  image: true, code: true, code_sha256: true, outputs: true,
};

function wrong(text: string): Wrong {
  return new Wrong("file", text);
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Read what a file says, under full names; `deadline` stays as it is written. Throws Wrong. */
export function readJobFile(text: string): Fields {
  if (text.trim() === "") return {};
  if (text.length > LONGEST) throw tooLong();
  let said: unknown;
  try {
    said = JSON.parse(text, finite);
  } catch (error) {
    if (error instanceof Wrong) throw error;
    const yaml = /^\s*[A-Za-z_]+\s*:/m.test(text) && !text.trimStart().startsWith("{");
    throw wrong(
      yaml
        ? "This looks like YAML, and the page reads JSON alone. `tidegate submit job.yaml` takes it."
        : `This is no JSON: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
  const twice = repeated(text);
  if (twice !== undefined) throw wrong(`${shortened(twice)} is said twice; leave out one of the two.`);
  if (!isObject(said)) throw wrong('This holds no fields of a job, such as {"command": ["python3", "train.py"]}.');
  const names = { ...KNOWN, deadline: true, ...Object.fromEntries(SHORT.map((name) => [name, true])) };
  const program = said["program"] ?? {};
  if (!isObject(program)) throw wrong("program: must have fields, such as argv.");
  const inner = Object.keys(program);
  const unknown = [
    ...Object.keys(said).filter((name) => !Object.hasOwn(names, name)),
    ...inner.filter((name) => !Object.hasOwn(OF_PROGRAM, name)).map((name) => `program.${name}`),
  ];
  if (unknown[0] !== undefined) throw wrong(`“${shortened(unknown[0])}” is no field of a job; docs/jobs.md lists them.`);
  const fields: Fields = Object.fromEntries(
    Object.entries(said).filter(([name]) => !(SHORT as readonly string[]).includes(name)),
  );
  if ("sizes" in said) {
    once(said, "sizes", "gpus_min", "gpus_max");
    [fields["gpus_min"], fields["gpus_max"]] = sizesOf(said["sizes"]);
  }
  if ("deadline" in said) once(said, "deadline", "deadline_s");
  const short = programOf(said);
  if (Object.keys(short).length > 0) {
    const both = Object.keys(short).find((name) => Object.hasOwn(program, name));
    if (both !== undefined) throw wrong(`program.${both}: is said twice; leave out one of the two.`);
    fields["program"] = { ...program, ...short };
  }
  return fields;
}

export function tooLong(): Wrong {
  return wrong(`This is longer than the ${LONGEST.toLocaleString("en")} letters that a job's file may have.`);
}

/** Refuse a number that JSON can write and no program can hold: sent on, it would be null. */
function finite(name: string, value: unknown): unknown {
  if (typeof value === "number" && !Number.isFinite(value)) throw wrong(`${name}: is too large a number.`);
  return value;
}

/** Find a name that an object of a JSON text has twice, of which the parser keeps the last alone. */
function repeated(text: string): string | undefined {
  const inside: (Set<string> | null)[] = [];
  for (const [token, colon] of text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?|[{}[\]]/g)) {
    if (token === "{" || token === "[") inside.push(token === "{" ? new Set() : null);
    else if (token === "}" || token === "]") inside.pop();
    else if (colon !== undefined) {
      const name = JSON.parse(token.slice(0, -colon.length)) as string;
      const names = inside.at(-1);
      if (names?.has(name)) return name;
      names?.add(name);
    }
  }
  return undefined;
}

function once(said: Fields, short: string, ...full: string[]): void {
  const other = full.find((one) => one in said);
  if (other !== undefined) throw wrong(`${other}: is said by ${short}, too; leave out one of the two.`);
}

function sizesOf(said: unknown): [number, number] {
  const found = /^(\d{1,6})(?:\.\.(\d{1,6}))?$/.exec(String(said));
  if (found === null) throw wrong(`sizes: “${String(said)}” is no size; write 4, or "1..8" for any size from 1 to 8.`);
  const low = Number(found[1]);
  return [low, found[2] === undefined ? low : Number(found[2])];
}

function programOf(said: Fields): Fields {
  const program: Fields = {};
  if ("command" in said) {
    const { command } = said;
    if (typeof command !== "string" && !(Array.isArray(command) && command.length > 0)) {
      throw wrong("command: must be a list of words, or one line for the shell.");
    }
    const words: unknown[] = typeof command === "string" ? ["sh", "-c", command] : command;
    program["argv"] = words.map((word, n) => textOf(`command[${n}]`, word));
  }
  for (const name of AS_THEY_ARE) if (name in said) program[name] = said[name];
  if ("environment" in said) {
    if (!isObject(said["environment"])) throw wrong('environment: must have variables, such as {"LEVEL": "debug"}.');
    const [env, secrets]: [Fields, Fields] = [{}, {}];
    for (const [name, value] of Object.entries(said["environment"])) {
      if (isObject(value)) {
        if (Object.keys(value).join() !== "secret" || typeof value["secret"] !== "string") {
          throw wrong(`environment.${name}: must be a text, or {"secret": "NAME"}.`);
        }
        secrets[name] = value["secret"];
      } else env[name] = textOf(`environment.${name}`, value);
    }
    if (Object.keys(env).length > 0) program["env"] = env;
    if (Object.keys(secrets).length > 0) program["secrets"] = secrets;
  }
  return program;
}

function textOf(where: string, value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value === "number") return String(value);
  throw wrong(`${where}: is ${JSON.stringify(value)}, and must be a text; put quotes around it.`);
}
