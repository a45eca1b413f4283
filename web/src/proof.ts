/** The proof of the log: read again while it goes on, and now and then when it is over. */
import { useEffect, useState } from "preact/hooks";
import type { Schemas } from "./api.ts";
import { type Data, useData } from "./data.ts";
import { route } from "./route.ts";

const GOING_MS = 2000;
const OVER_MS = 15_000;

export function useProof(): Data<Schemas["VerifiedAnswer"]> {
  const [look, setLook] = useState(0);
  const found = useData("/api/v1/verified", { cell: route.value.cell }, { timeless: true, again: look, calm: true });
  const goes = found.data === null || found.data.state === "none" || found.data.state === "running";
  useEffect(() => {
    const timer = setInterval(() => setLook((was) => was + 1), goes ? GOING_MS : OVER_MS);
    return () => clearInterval(timer);
  }, [goes]);
  return found;
}
