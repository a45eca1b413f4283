/** What the gateway answers: typed by its OpenAPI document, kept by ETag, errors in words. */
import { signal as signalOf } from "@preact/signals";
import { origin } from "./format.ts";
import type { components, paths } from "./openapi.d.ts";

export type Schemas = components["schemas"];
export type Params = Readonly<Record<string, string | number | null | undefined>>;
type Reads = { [P in keyof paths]: paths[P] extends { get: object } ? P : never }[keyof paths];
/** A path that can be read, as the OpenAPI document has it. */
export type Path = Reads;
/** What a path answers. */
export type Answer<P extends Path> = paths[P] extends {
  get: { responses: { 200: { content: { "application/json": infer A } } } };
}
  ? A
  : never;

/** An error that the gateway told; its text says what to do next. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
    readonly parameter: string | null = null,
    readonly retryAfter: number | null = null,
  ) {
    super(detail);
  }
}

/** What went wrong, as a Problem. */
export function problemFrom(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, String(error));
}

interface Kept {
  tag: string;
  data: unknown;
  /** Of the answer as it came. */
  bytes: number;
}
/** The moment of the newest answer about a state. */
export const lastFrame = signalOf<{ entry: number; now_s: number } | null>(null);

function noteFrame(data: unknown): void {
  const { entry, now_s, origin_s } = data as { entry?: unknown; now_s?: unknown; origin_s?: unknown };
  if (typeof origin_s === "number") origin.value = origin_s;
  if (typeof entry !== "number" || typeof now_s !== "number") return;
  const was = lastFrame.peek();
  if (was?.entry !== entry) lastFrame.value = { entry, now_s };
}

const KEPT_MOST = 400;
/** Also so many bytes of answers, since what is made of them takes some times that. */
const KEPT_BYTES = 16 * 1024 * 1024;
const kept = new Map<string, Kept>();
let keptBytes = 0;

function forget(url: string): void {
  keptBytes -= kept.get(url)?.bytes ?? 0;
  kept.delete(url);
}

/** Keep an answer to compare with the next one; what was kept longest goes first. */
function keep(url: string, one: Kept): void {
  forget(url);
  kept.set(url, one);
  keptBytes += one.bytes;
  for (const oldest of kept.keys()) {
    if (kept.size <= KEPT_MOST && keptBytes <= KEPT_BYTES) break;
    forget(oldest);
  }
}

/** Fill the path's {names} from params; the rest goes into the query. */
export function address(path: string, params: Params): string {
  const query = new URLSearchParams();
  const used = new Set<string>();
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    used.add(name);
    return encodeURIComponent(String(params[name]));
  });
  for (const [name, value] of Object.entries(params)) {
    if (!used.has(name) && value !== null && value !== undefined && value !== "") {
      query.set(name, String(value));
    }
  }
  const text = query.toString();
  return text === "" ? filled : `${filled}?${text}`;
}

interface Flight {
  answer: Promise<unknown>;
  users: number;
  abort: AbortController;
}
const flights = new Map<string, Flight>();

/**
 * Read an address. What has not changed is given as the very same object; who asks for what is
 * asked for already shares the answer. Throws a Problem; its text is for people.
 */
export async function read(url: string, signal?: AbortSignal): Promise<unknown> {
  let flight = flights.get(url);
  if (flight === undefined) {
    const abort = new AbortController();
    const begun: Flight = { answer: fetched(url, abort.signal), users: 0, abort };
    flight = begun;
    flights.set(url, begun);
    const over = (): void => {
      if (flights.get(url) === begun) flights.delete(url);
    };
    begun.answer.then(over, over);
  }
  const joined = flight;
  joined.users += 1;
  signal?.addEventListener("abort", () => {
    joined.users -= 1;
    // Nobody waits for it any more: its connection is free for what is asked next.
    if (joined.users === 0) {
      if (flights.get(url) === joined) flights.delete(url);
      joined.abort.abort();
    }
  });
  const data = await joined.answer;
  if (signal?.aborted) throw new DOMException("not wanted any more", "AbortError");
  return data;
}

async function fetched(url: string, signal: AbortSignal): Promise<unknown> {
  await turn(signal);
  const known = kept.get(url);
  const headers: Record<string, string> = { Accept: "application/json" };
  if (known !== undefined) headers["If-None-Match"] = known.tag;
  const answer = await asked(url, { headers, signal });
  if (answer.status === 304 && known !== undefined) {
    noteFrame(known.data);
    return known.data;
  }
  if (!answer.ok) throw await problemOf(answer);
  const data: unknown = await answer.json();
  if (typeof data === "object" && data !== null) noteFrame(data);
  const tag = answer.headers.get("ETag");
  if (tag !== null) keep(url, { tag, data, bytes: Number(answer.headers.get("Content-Length")) });
  return data;
}

/** How far this machine's clock is ahead of the gateway's, as its newest answer says. */
let offMs = 0;

/** What time the gateway has, to a second or so. */
export function wallS(): number {
  return (Date.now() - offMs) / 1000;
}

/** Somewhat less than the gateway allows one subject, so that it need not refuse. */
const PER_S = 16;
const BURST = 40;
let free = BURST;
let freeAt = performance.now();

/** Wait until one more may be asked for; while one scrubs, what is asked for in vain goes first. */
async function turn(signal: AbortSignal): Promise<void> {
  for (;;) {
    const now = performance.now();
    free = Math.min(BURST, free + ((now - freeAt) / 1000) * PER_S);
    freeAt = now;
    if (free >= 1) {
      free -= 1;
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000 / PER_S));
    if (signal.aborted) throw new DOMException("not wanted any more", "AbortError");
  }
}

/** Read a path of the API, such as get("/api/v1/jobs/{job}", { job: "job-1" }). */
export async function get<P extends Path>(
  path: P,
  params: Params = {},
  signal?: AbortSignal,
): Promise<Answer<P>> {
  return (await read(address(path, params), signal)) as Answer<P>;
}

export async function asked(url: string, init: RequestInit): Promise<Response> {
  try {
    const answer = await fetch(url, { credentials: "same-origin", ...init });
    const said = Date.parse(answer.headers.get("Date") ?? "");
    if (!Number.isNaN(said)) offMs = Date.now() - said;
    return answer;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "The gateway does not answer. Is `tidegate serve` still running?");
  }
}

/** Ask for what changes something, of a cell if it matters which; throws a Problem. */
export async function send<A>(
  path: string,
  init: { method: "POST" | "DELETE"; cell?: string | null; body?: unknown; headers?: Record<string, string> },
): Promise<A> {
  const answer = await asked(address(path, { cell: init.cell }), {
    method: init.method,
    // The gateway takes it from no other page: those cannot send this header.
    headers: { "Content-Type": "application/json", "X-Tidegate": "console", ...init.headers },
    ...(init.body === undefined ? {} : { body: JSON.stringify(init.body) }),
  });
  if (!answer.ok) throw await problemOf(answer);
  return (await answer.json()) as A;
}

export async function problemOf(answer: Response): Promise<Problem> {
  const after = Number(answer.headers.get("Retry-After"));
  const retry = Number.isFinite(after) && after > 0 ? after : null;
  try {
    const told = (await answer.json()) as Partial<Schemas["ProblemDocument"]>;
    const text = told.detail ?? told.title ?? `The gateway answered ${answer.status}.`;
    return new Problem(answer.status, text, told.parameter ?? null, retry);
  } catch {
    return new Problem(answer.status, `The gateway answered ${answer.status}.`, null, retry);
  }
}
