/** Asking the scheduler for something: say what, say why, confirm; then tell what came of it. */
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Problem, type Schemas, send } from "./api.ts";
import { plural } from "./format.ts";
import { nobodyLeads } from "./live.ts";
import { EntryLink, Name } from "./parts.tsx";
import { route } from "./route.ts";

/** What is asked for, as the body of POST /requests has it. */
export type Args = { verb: string } & Record<string, unknown>;

export interface Asking {
  /** What is confirmed, such as "Cancel 3 jobs". */
  title: string;
  /** What follows from it. */
  about: string;
  /** Each is a request of its own. */
  requests: readonly { name: string; args: Args }[];
  /** Whether the gateway was asked already what would come of it. */
  tried?: boolean;
  /** Whether it takes something away. */
  danger?: boolean;
  /** A number that is asked for, and goes into the arguments. */
  number?: { field: string; label: string; value: number; least: number; most: number };
  done?: () => void;
  /** Follows once all of it is done; then the dialog is closed. */
  then?: () => void;
}

interface Result {
  name: string;
  said: "asking" | "done" | "pending" | "refused";
  why?: string;
  entry?: number | null;
}

const open = signal<Asking | null>(null);

/** Open the dialog that confirms it. */
export function ask(asking: Asking): void {
  if (asking.requests.length > 0) open.value = asking;
}

/** A button that opens it. */
export function AskButton({ label, of, disabled }: { label: string; of: Asking; disabled?: boolean }) {
  return (
    <button type="button" class={of.danger ? "danger" : ""} disabled={disabled} onClick={() => ask(of)}>
      {label}
    </button>
  );
}

function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `web-${Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("")}`;
}

/** Send one request; asked again with the same key, it is done once. */
export function post(
  args: Args,
  reason: string,
  options: { key?: string; dryRun?: boolean } = {},
): Promise<Schemas["RequestAnswer"]> {
  return send("/api/v1/requests", {
    method: "POST",
    cell: route.value.cell,
    headers: {
      Prefer: "wait=5",
      ...(options.dryRun ? {} : { "Idempotency-Key": options.key ?? newKey() }),
    },
    body: { args, reason, ...(options.dryRun ? { dry_run: true } : {}) },
  });
}

const PREVIEWED = 20;

export function Confirm() {
  const asking = open.value;
  return asking === null ? null : <Dialog key={asking.title} of={asking} />;
}

function Dialog({ of }: { of: Asking }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [reason, setReason] = useState("");
  const [results, setResults] = useState<readonly Result[] | null>(null);
  const [refusals, setRefusals] = useState<ReadonlyMap<string, string>>(new Map());
  const [number, setNumber] = useState(of.number?.value ?? 0);
  const keys = useRef(of.requests.map(newKey));
  useLayoutEffect(() => {
    dialog.current?.showModal();
    let ended = false;
    void (async () => {
      for (const { name, args } of of.tried ? [] : of.requests.slice(0, PREVIEWED)) {
        try {
          await post(args, "", { dryRun: true });
        } catch (error) {
          if (ended) return;
          if (error instanceof Problem && error.status === 409) {
            const why = error.message;
            setRefusals((was) => new Map(was).set(name, why));
          }
        }
      }
    })();
    return () => {
      ended = true;
    };
  }, []);

  async function send(event: Event): Promise<void> {
    event.preventDefault();
    const found: Result[] = of.requests.map(({ name }) => ({ name, said: "asking" }));
    setResults([...found]);
    for (const [place, { name, args }] of of.requests.entries()) {
      try {
        const key = keys.current[place] ?? newKey();
        const given = of.number === undefined ? args : { ...args, [of.number.field]: number };
        const told = await post(given, reason.trim(), { key });
        const said = told.result === "pending" ? "pending" : "done";
        found[place] = { name, said, entry: told.entry };
      } catch (error) {
        found[place] = { name, said: "refused", why: (error as Error).message };
      }
      setResults([...found]);
    }
    of.done?.();
    if (of.then !== undefined && found.every((one) => one.said === "done")) {
      dialog.current?.close();
      of.then();
    }
  }

  const close = (): void => {
    open.value = null;
  };
  const nobody = nobodyLeads.value;
  const busy = results?.some((one) => one.said === "asking") ?? false;
  // Escape, too: nobody would be told which of them were refused. `closedby` is for Chromium, which
  // does not ask about a second Escape in a row.
  const stay = (event: Event): void => {
    if (busy) event.preventDefault();
  };
  return (
    <dialog
      ref={dialog}
      class="confirm"
      aria-labelledby="confirm-title"
      closedby={busy ? "none" : "closerequest"}
      onCancel={stay}
      onClose={close}
    >
      <form method="dialog" onSubmit={(event) => (results === null ? void send(event) : undefined)}>
        <h2 id="confirm-title">{of.title}</h2>
        <p class="quiet">{of.about}</p>
        {nobody !== null && results === null && (
          <p role="status">It will wait, as nobody decides here now: {nobody}.</p>
        )}
        <ul class="asked" aria-live="polite">
          {of.requests.map(({ name, args }, place) => (
            <li key={name}>
              <code>{args.verb}</code> <Name of={name} wide />
              <Said result={results?.[place]} refusal={refusals.get(name)} />
            </li>
          ))}
        </ul>
        {results === null && of.number !== undefined && (
          <label class="reason">
            {of.number.label}
            <input
              type="number"
              required
              min={of.number.least}
              max={of.number.most}
              value={number}
              onInput={(event) => setNumber(event.currentTarget.valueAsNumber)}
            />
          </label>
        )}
        {results === null ? (
          <label class="reason">
            Why? It is kept in the log beside your name.
            <input
              type="text"
              maxLength={200}
              value={reason}
              placeholder="such as: data is wrong"
              onInput={(event) => setReason(event.currentTarget.value)}
            />
          </label>
        ) : (
          <p role="status">{summary(results, nobody)}</p>
        )}
        <div class="row end">
          <button type="button" onClick={() => dialog.current?.close()} disabled={busy}>
            {results === null ? "Leave it" : "Close"}
          </button>
          {results === null && (
            <button type="submit" class={of.danger ? "danger" : "primary"}>
              {of.title}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}

function Said(props: { result: Result | undefined; refusal: string | undefined }) {
  const { result, refusal } = props;
  if (result === undefined) {
    return refusal === undefined ? null : <small class="bad">would be refused: {refusal}</small>;
  }
  if (result.said === "refused") return <small class="bad text">refused: {result.why}</small>;
  return (
    <small>
      {result.said === "asking" ? "asking…" : result.said === "pending" ? "sent; not yet taken" : "done"}{" "}
      {typeof result.entry === "number" && <EntryLink entry={result.entry} />}
    </small>
  );
}

function summary(results: readonly Result[], nobody: string | null): string {
  const number = (said: Result["said"]): number => results.filter((one) => one.said === said).length;
  const parts = [];
  if (number("done") > 0) parts.push(`${number("done")} done`);
  if (number("pending") > 0) {
    const why = nobody === null ? "which no scheduler has taken yet" : `which wait: ${nobody}`;
    parts.push(`${number("pending")} sent, ${why}`);
  }
  if (number("refused") > 0) parts.push(`${number("refused")} refused`);
  if (number("asking") > 0) parts.push(`asking for ${plural(number("asking"), "request")}…`);
  return parts.join(", ");
}
