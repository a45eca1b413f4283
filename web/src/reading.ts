/** Reading from the gateway, again when there is reason to, and after what went wrong. */
import { useEffect, useRef, useState } from "preact/hooks";
import { type Problem, problemFrom } from "./api.ts";
import { head } from "./live.ts";
import { type Repeated, repeated } from "./repeated.ts";
import { route } from "./route.ts";

/** A gateway that is away is asked again so often. */
const AWAY_S = 3;
/** Lists are read once a second at most. */
const APART_MS = 1000;

/** Do `work`, if there is any, at first, when `of` changes, and when what is given back is poked. */
export function useReading(
  of: readonly unknown[],
  work: ((signal: AbortSignal) => Promise<void>) | null,
  failed: (problem: Problem) => void,
  apartMs: number,
  firstMs = 0,
) {
  const reader = useRef<Repeated | null>(null);
  useEffect(() => {
    if (work === null) return;
    const attempt = async (signal: AbortSignal): Promise<number | null> => {
      try {
        await work(signal);
        return null;
      } catch (error) {
        if (signal.aborted) return null;
        const problem = problemFrom(error);
        // Asked too often, as by several tabs: that passes, and is nothing to tell.
        if (problem.status === 429) return problem.retryAfter ?? 1;
        failed(problem);
        return problem.retryAfter ?? (problem.status === 0 ? AWAY_S : null);
      }
    };
    const begun = repeated(attempt, apartMs, firstMs);
    reader.current = begun;
    return () => {
      begun.end();
      reader.current = null;
    };
  }, of);
  return reader;
}

/** Read a list from its begin; if it `follows` the cell, again with each new entry. */
export function useListReading(
  question: string,
  held: boolean,
  follows: boolean,
  work: (signal: AbortSignal) => Promise<void>,
) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [loading, setLoading] = useState(true);
  const [asked, setAsked] = useState(0);
  const newest = route.value.entry === null ? (head.value?.entry ?? null) : null;
  const begin = async (signal: AbortSignal): Promise<void> => {
    setLoading(true);
    await work(signal);
    ended(null);
  };
  const ended = (told: Problem | null): void => {
    setProblem(told);
    setLoading(false);
  };
  const reader = useReading([question, asked], begin, ended, APART_MS);
  useEffect(() => {
    if (follows) reader.current?.poke();
  }, [newest]);
  return {
    // While the gateway is away the rows stay; the bar above says how old they are.
    problem: held && problem?.status === 0 ? null : problem,
    setProblem, loading, newest,
    again: () => setAsked((was) => was + 1),
  };
}
