/** What a worker of a job writes, as its agent sends it while somebody reads. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, problemFrom, type Schemas, wallS } from "../api.ts";
import { count, plural } from "../format.ts";
import { may } from "../me.ts";
import { Card } from "../parts.tsx";
import { repeated } from "../repeated.ts";
import { route } from "../route.ts";
import { type JobRow, ended } from "../states.ts";
import { post } from "../verbs.tsx";

/** So many bytes from the end are asked for at first, and so many at most are kept drawn. */
const BEFORE = 16 * 1024;
const KEPT_CHARS = 200_000;
const LOOK_S = 1;
/** A gateway that is away is asked again so often. */
const AWAY_S = 3;
/** A reader asks again so often; what it asks for ends after a minute. */
const ASK_MS = 40_000;
const ENDS: Readonly<Record<string, string>> = {
  complete: "That is all that it wrote.",
  expired: "The time asked for is over.",
  missing: "The agent has no such log: nothing was written, or it is kept no longer.",
  busy: "The agent reads for as many as it may; try again in a minute.",
};
/** Escapes of terminals say nothing here. */
const ANSI = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b[@-Z\\-_]/g;

export function Output(props: { id: string; why: Schemas["WhyDocument"]; row: JobRow | null }) {
  const { id, why, row } = props;
  const [follows, setFollows] = useState(false);
  const allowed = may("job.logs", row?.tenant);
  if (why.output === null && !allowed) return null;
  const simulated = why.spec["program"] == null;
  const begun = !simulated && row !== null && row.first_start_s !== null;
  return (
    <Card
      title="What it writes"
      aside={
        allowed && begun ? (
          <button type="button" aria-pressed={follows} onClick={() => setFollows(!follows)}>
            {follows ? "Stop" : ended(why.state) ? "Read its end" : "Follow"}
          </button>
        ) : undefined
      }
    >
      {why.output !== null && (
        <p class="quiet small text">
          The files are in <code>{why.output.folder}</code> below <code>agent.workers.folder</code> of{" "}
          {why.output.agents.join(", ")}.
        </p>
      )}
      {why.checkpoint != null && (
        <p class="text">
          Its newest checkpoint, of step {count(why.checkpoint.step)} and {count(why.checkpoint.size_mib)} MiB, is in{" "}
          <code>{why.checkpoint.uri}</code>.
        </p>
      )}
      {why.outputs !== null && (
        <p class="text">
          {why.outputs.files === 0 ? "No outputs were kept." : <Outputs of={why.outputs} />}
          {why.outputs.left_out !== "" && ` Not kept: ${why.outputs.left_out}.`}
        </p>
      )}
      {!begun && <p class="quiet">{simulated ? "Its workers are simulated, and write nothing." : "It has not started yet."}</p>}
      {begun && allowed && !follows && (
        <p class="quiet">The end of what its first worker writes, as its agent sends it while you read.</p>
      )}
      {follows && <Tail id={id} until_s={() => aWhile(why.now_s)} />}
    </Card>
  );
}

function Outputs({ of }: { of: Schemas["Kept"] }) {
  return (
    <>
      Its outputs, {plural(of.files, "file")} of {count(of.size_mib)} MiB together, are at <code>{of.uri}</code>.
    </>
  );
}

/** Nearly a minute from now, which is the most: by the gateway's clock, unless the log's time is another. */
function aWhile(now_s: number): number {
  const wall_s = wallS();
  return 55 + (Math.abs(wall_s - now_s) < 86_400 ? wall_s : now_s);
}

function Tail({ id, until_s }: { id: string; until_s: () => number }) {
  const [text, setText] = useState("");
  const [note, setNote] = useState("Asking its agent…");
  const place = useRef<HTMLPreElement>(null);
  const until = useRef(until_s);
  until.current = until_s;
  useEffect(() => {
    const { cell } = route.value;
    const reader = `web-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    const decoder = new TextDecoder();
    let after: number | null = null;
    let askedAt = -ASK_MS;
    let from = -BEFORE;
    let lost = false;
    const request = async (): Promise<void> => {
      const now = performance.now();
      await post(
        { verb: "job.logs", job: id, rank: 0, reader, from_byte: from, max_bytes: 1 << 20, follow: true, until_s: until.current() },
        "",
      );
      askedAt = now;
    };
    const look = async (): Promise<number | null> => {
      let over = false;
      try {
        if (after === null) {
          after = (await get("/api/v1/jobs/{job}/output", { job: id, reader, cell })).next;
          setNote("Asked; nothing came yet.");
        }
        if (performance.now() - askedAt > ASK_MS) await request();
        const found = await get("/api/v1/jobs/{job}/output", { job: id, reader, after, cell });
        after = found.next;
        if (lost) setNote("");
        lost = false;
        for (const piece of found.pieces) {
          const bytes = Uint8Array.from(atob(piece.content ?? ""), (one) => one.charCodeAt(0));
          from = (piece.offset ?? 0) + bytes.length;
          const more = decoder.decode(bytes, { stream: true }).replace(ANSI, "");
          setText((was) => (was + more).slice(-KEPT_CHARS));
          setNote(piece.end ? (ENDS[piece.end] ?? "") : "");
          if (piece.end === "complete" || piece.end === "missing") over = true;
        }
      } catch (error) {
        const { status, retryAfter, message } = problemFrom(error);
        // Asked too often, as by several tabs, or the gateway is away: both pass.
        if (status === 429) return retryAfter ?? LOOK_S;
        setNote(message);
        lost = true;
        if (status === 0 || status === 503) return retryAfter ?? AWAY_S;
        over = true;
      }
      return over ? null : LOOK_S;
    };
    return repeated(look, 0).end;
  }, [id]);
  useEffect(() => {
    const element = place.current;
    if (element !== null) element.scrollTop = element.scrollHeight;
  }, [text]);
  return (
    <>
      <pre class="output" ref={place} tabIndex={0} aria-label="Output">
        {text}
      </pre>
      <p class="quiet small text" role="status">
        {note}
      </p>
    </>
  );
}
