/** What is new: the stream of the gateway, which says the number of each cell's newest entry. */
import { computed, effect, signal } from "@preact/signals";
import { get } from "./api.ts";
import { route } from "./route.ts";

export interface Head {
  cell: string;
  entry: number | null;
  now_s: number | null;
  problem: string | null;
  /** Why nobody decides here now, and what to do; null: a scheduler leads. */
  nobody_leads: string | null;
  /** Why nothing can be asked here, whoever asks; null: it can. */
  closed: string | null;
}

/** The newest entry that the stream told of; null before it did. */
export const head = signal<Head | null>(null);
/** Why nobody decides in the cell, so that its newest entry is the last; null while that is not so, or not known. */
export const nobodyLeads = computed(() => head.value?.nobody_leads ?? null);
export const connection = signal<"connecting" | "live" | "offline">("connecting");
/** When the stream said something last, by this browser's clock, in ms. */
export const heardAt = signal(Date.now());
/** Set when the gateway no longer knows who asks. */
export const signedOut = signal(false);

const AGAIN_MS = 3000;
let source: EventSource | null = null;
let again: ReturnType<typeof setTimeout> | undefined;

function open(cell: string | null): void {
  source?.close();
  clearTimeout(again);
  const query = cell === null ? "" : `?cell=${encodeURIComponent(cell)}`;
  const stream = new EventSource(`/api/v1/stream${query}`);
  source = stream;
  stream.addEventListener("open", () => {
    connection.value = "live";
    heardAt.value = Date.now();
  });
  stream.addEventListener("head", (event) => {
    head.value = JSON.parse((event as MessageEvent<string>).data) as Head;
    heardAt.value = Date.now();
    connection.value = "live";
    signedOut.value = false;
  });
  stream.addEventListener("end", () => {
    signedOut.value = true;
    stream.close();
  });
  stream.addEventListener("error", () => {
    connection.value = "offline";
    // A browser gives up on a refusal: then we ask why, and try again.
    if (stream.readyState !== EventSource.CLOSED) return;
    again = setTimeout(() => {
      get("/api/v1/me").then(
        () => source === stream && open(cell),
        (error: { status?: number }) => {
          if (error.status === 401) signedOut.value = true;
          else if (source === stream) open(cell); // else another cell is followed since
        },
      );
    }, AGAIN_MS);
  });
}

/** Follow the cell that the address names. */
export function follow(): void {
  let current: string | null | undefined;
  effect(() => {
    const cell = route.value.cell;
    if (cell === current) return;
    current = cell;
    head.value = null;
    open(cell);
  });
}
