/** Entries of the journal in words. */
import { isolated } from "./bidi.ts";
import { clock, count, day, duration, figure } from "./format.ts";

/** "GangCheckpointing" as "gang checkpointing". */
export function words(kind: string): string {
  return kind.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase().replace(/\bgpu(s?)\b/g, "GPU$1");
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
  SubmittedAhead: "a job was submitted",
  JobCancelled: "a job was cancelled",
};

/** The name of a field, without the unit: that stands beside its value. */
export function fieldInWords(name: string): string {
  const said = FIELDS[name];
  if (said !== undefined) return said;
  const bare = name.replace(/_(gpu_s|per_s|s|mib|w|c)$/, "");
  return bare.replace(/_/g, " ").replace(/\bgpu(s?)\b/g, "GPU$1");
}

/** Fields whose names say too little by themselves; docs/glossary.md has the words. */
const FIELDS: Readonly<Record<string, string>> = {
  args: "what was asked for",
  allocation: "runs on",
  asked_s: "asked at",
  at_s: "at",
  backoff_until_s: "rests until",
  batch: "samples of a batch",
  bootid: "start of the agent",
  by: "by whom",
  by_s: "to be done by",
  checkpoint_cost_s: "time to save",
  checkpoint_mib: "size of a checkpoint",
  checkpoint_step: "saved at step",
  cost_s: "time it took",
  deadline_s: "deadline",
  due_s: "due back",
  edge_allowed: "may run at the edge",
  epoch: "epoch of the allocation",
  expires_s: "valid until",
  gpu_count: "GPUs of the node",
  gpu_memory_mib: "memory of a GPU",
  gpu_memory_used_mib: "memory in use, by GPU",
  gpu_power_w: "power, by GPU",
  gpu_temperature_c: "temperature, by GPU",
  gpu_type: "kind of GPU",
  gpu_utilisation: "use, by GPU",
  gpus_max: "GPUs at most",
  gpus_min: "GPUs at least",
  gpus_needed: "GPUs that the owner needs",
  gpus_serving: "GPUs that serve",
  gradient_noise: "noise of the gradient",
  held: "GPUs that jobs hold",
  keeps_claim: "keeps its claim",
  kv_cache_use: "use of the KV cache",
  last_heard_s: "heard last",
  latency_p99_s: "latency, 99th percentile",
  leader_epoch: "epoch of the leader",
  lease_end_s: "lease ends",
  line: "policy and its options",
  max_bytes: "bytes at most",
  memory_mib: "memory that each GPU must have",
  needs: "what would have to change",
  next_s: "next cycle",
  outcome: "how it ended",
  pass_s: "time of a pass over the queue",
  pinned: "pinned by the configuration",
  pool_kind: "kind of the pool",
  rates: "declared rates",
  request_rate_per_s: "requests",
  retriable: "may be tried again",
  said_s: "said at",
  samples_per_s: "samples",
  samples_per_step: "samples of a step",
  settings: "settings of the engine",
  shortfall_gpu_s: "GPUs that the owner missed",
  size_mib: "size",
  spec: "what was submitted",
  speed_factor: "speed of its GPUs",
  start_cost_s: "time to start",
  step_s: "time of a step",
  timed_out: "not answered in time",
  total_steps: "steps in all",
  transfer_mib_per_s: "transfer",
  until_s: "until",
  uri: "where",
  via: "asked by way of",
  wake_s: "looks again",
  window_s: "measured over",
};

const MOMENTS = new Set([
  "asked_s", "at_s", "backoff_until_s", "by_s", "deadline_s", "due_s", "expires_s", "last_heard_s", "lease_end_s",
  "next_s", "said_s", "since_s", "until_s", "wake_s",
]);
const UNITS: readonly (readonly [string, string])[] = [["_mib", " MiB"], ["_w", " W"], ["_c", " °C"]];

/** A value of a fact or an event, as far as it can be said in a line. */
export function valueInWords(name: string, value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (name.endsWith("_mib_per_s")) return `${figure(value)} MiB a second`;
    if (name.endsWith("_per_s")) return `${figure(value)} a second`;
    if (name.endsWith("_gpu_s")) return `${figure(value / 3600)} GPU h`;
    // Simulated time begins in 1970: there the name alone tells a moment from a length.
    if (name.endsWith("_s") && (value > 1e8 || MOMENTS.has(name))) return `${day(value)} ${clock(value)}`;
    if (name.endsWith("_s")) return duration(value);
    const unit = UNITS.find(([end]) => name.endsWith(end))?.[1] ?? "";
    return (Number.isInteger(value) ? count(value) : figure(value)) + unit;
  }
  if (typeof value === "string") return value === "" ? "–" : value;
  if (Array.isArray(value)) {
    // A list of figures has the unit of its field; names have none.
    const of = value.every((one) => typeof one === "number") ? name : "";
    return value.length ? value.map((one) => isolated(valueInWords(of, one))).join(", ") : "–";
  }
  const parts = Object.entries(value as Record<string, unknown>);
  if (!parts.length) return "–";
  return parts.map(([key, one]) => `${isolated(FIELDS[key] ?? key)}: ${isolated(valueInWords(key, one))}`).join("; ");
}
