/** How far what is shown can be relied on: the connection, its age, and whether replay agrees. */
import { useEffect, useState } from "preact/hooks";
import { capital, count, duration } from "./format.ts";
import { connection, head, heardAt, nobodyLeads, signedOut } from "./live.ts";
import { useProof } from "./proof.ts";
import { isPast } from "./route.ts";

/** Live, past, ended, or how old the data is that is still drawn. */
export function Connection() {
  const state = connection.value;
  const old = useNow(state !== "live");
  if (signedOut.value) {
    return (
      <a class="dot offline" href="/" target="_self">
        signed out: sign in again
      </a>
    );
  }
  if (head.value?.problem) {
    return (
      <span class="dot offline" title={head.value.problem}>
        log unreadable
      </span>
    );
  }
  if (state === "offline") {
    return (
      <span class="dot offline" role="status" title="The gateway does not answer; it is tried again">
        offline, data is {duration((old - heardAt.value) / 1000)} old
      </span>
    );
  }
  if (state === "connecting") return <span class="dot connecting">connecting</span>;
  if (isPast.value) return <span class="dot past">past</span>;
  const nobody = nobodyLeads.value;
  if (nobody === null) return <span class="dot live">live</span>;
  return (
    <span class="dot ended" role="status" title={capital(nobody)}>
      ended<span class="hidden">: {capital(nobody)}</span>
    </span>
  );
}

/** The time by this browser's clock, each second while that is needed. */
function useNow(on: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!on) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [on]);
  return now;
}

/** Whether deciding every entry anew, in the background, gave the same. */
export function Verified() {
  const { data, problem } = useProof();
  if (data === null || problem !== null || data.state === "none") return null;
  if (data.state === "failed") {
    return (
      <span class="badge bad" title={data.problem ?? "The health view says more"}>
        not proven
      </span>
    );
  }
  if (data.state === "differs") {
    return (
      <span class="badge bad" title={`Deciding this log anew gave something else: ${data.first_difference ?? ""}`}>
        differs on replay
      </span>
    );
  }
  if (data.state === "running") {
    const done = data.of > 0 ? Math.floor((100 * data.entries) / data.of) : 0;
    return (
      <span class="badge" title="Every decision is being made anew, to compare">
        replaying {done}%
      </span>
    );
  }
  return (
    <span class="badge" title={`${count(data.entries)} decisions, made anew, are the same`}>
      identical on replay
    </span>
  );
}
