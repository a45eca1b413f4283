/** Entries of the journal in words. */
import { isolated } from "./bidi.ts";
import { count, duration, figure } from "./format.ts";

/** "GangCheckpointing" as "gang checkpointing". */
export function words(kind: string): string {
  return kind.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase();
}

/** What was decided, most telling first: "reclaim started · gang checkpointing ×6". */
export function factsInWords(facts: Readonly<Record<string, number>>): string[] {
  return Object.entries(facts)
    .filter(([kind]) => !QUIET.has(kind))
    .sort((one, other) => rank(one[0]) - rank(other[0]))
    .map(([kind, times]) => (times > 1 ? `${words(kind)} ×${count(times)}` : words(kind)));
}

/** Facts that come with others, and say nothing that these do not. */
const QUIET = new Set(["CommandIssued", "CycleRan", "JobExplained"]);
const FIRST = ["Reclaim", "Loan", "Return", "Node", "Cell", "Quota", "Policy", "Job", "Gang"];

function rank(kind: string): number {
  const at = FIRST.findIndex((one) => kind.startsWith(one));
  return at < 0 ? FIRST.length : at;
}

/** What an entry reacts to, for who does not know the names of events. */
export function stimulusInWords(kind: string): string {
  return STIMULI[kind] ?? words(kind);
}

const STIMULI: Readonly<Record<string, string>> = {
  TimePassed: "time passed",
  Requested: "a request",
  InferenceLoad: "an owner's load",
  CommandAcknowledged: "a command was acknowledged",
  LeaderStarted: "a leader began",
  WorkerStarted: "a worker started",
  WorkerStopped: "a worker stopped",
  CheckpointCommitted: "a checkpoint was saved",
  JobProgressed: "a job went on",
  JobSubmitted: "a job was submitted",
  JobCancelled: "a job was cancelled",
};

/** The name of a field, without the unit: that stands beside its value. */
export function fieldInWords(name: string): string {
  return name.replace(/_(gpu_|per_)?s$/, "").replace(/_/g, " ").replace(/\bgpu(s?)\b/g, "GPU$1");
}

/** A value of a fact or an event, as far as it can be said in a line. */
export function valueInWords(name: string, value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (name.endsWith("_per_s")) return `${figure(value)} a second`;
    if (name.endsWith("_gpu_s")) return `${figure(value / 3600)} GPU h`;
    if (name.endsWith("_s") && value > 1e8) {
      return new Date(value * 1000).toISOString().slice(0, 19).replace("T", " ");
    }
    if (name.endsWith("_s")) return duration(value);
    return Number.isInteger(value) ? count(value) : figure(value);
  }
  if (typeof value === "string") return value === "" ? "–" : value;
  if (Array.isArray(value)) {
    return value.length ? value.map((one) => isolated(valueInWords("", one))).join(", ") : "–";
  }
  const parts = Object.entries(value as Record<string, unknown>);
  if (!parts.length) return "–";
  return parts.map(([key, one]) => `${isolated(key)}: ${isolated(valueInWords(key, one))}`).join("; ");
}
