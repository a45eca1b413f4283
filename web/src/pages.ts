/** Rows of a list over pages of the gateway; all pages are of one state, so that none tears. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type Params, Problem, address, read } from "./api.ts";
import { head } from "./live.ts";
import { route } from "./route.ts";

interface PageOf {
  entry: number | null;
  now_s: number;
  total?: number;
  next: string | null;
}

export interface Rows<Row> {
  rows: readonly Row[];
  /** Rows of all pages, as the gateway counts them, or as far as they are known. */
  total: number;
  /** Whether more pages follow. */
  more: boolean;
  /** The moment that the rows are of. */
  now_s: number | null;
  entry: number | null;
  loading: boolean;
  problem: Problem | null;
  /** Read on until so many rows are there. */
  reach: (count: number) => void;
  /** Whether the cell has gone on since; beyond the first page rows wait for `again`. */
  newer: boolean;
  again: () => void;
}

const FIRST = 200;
const NEXT = 1000;
const APART_MS = 1000;

interface Got<Row> {
  question: string;
  rows: readonly Row[];
  total: number;
  next: string | null;
  now_s: number | null;
  entry: number | null;
}

/** Read a list, such as usePages<JobRow>("/api/v1/jobs", "jobs", { state: "queued" }). */
export function usePages<Row>(path: string, field: string, params: Params = {}): Rows<Row> {
  const { cell, entry } = route.value;
  const question = address(path, { cell, entry, ...params });
  const [got, setGot] = useState<Got<Row> | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [loading, setLoading] = useState(true);
  const [asked, setAsked] = useState(0);
  const wanted = useRef(0);
  const busy = useRef(false);
  const current = useRef(got);
  current.current = got;
  const lastAt = useRef(0);
  const newest = entry === null ? (head.value?.entry ?? null) : null;
  const fresh = got === null || got.question !== question;
  // A list that was read far is not read again by itself: its rows would jump while one reads.
  const follows = fresh || (got?.rows.length ?? 0) <= NEXT;

  useEffect(() => {
    const abort = new AbortController();
    let later: ReturnType<typeof setTimeout> | undefined;
    const wait = fresh ? 0 : Math.max(0, lastAt.current + APART_MS - performance.now());
    const timer = setTimeout(() => {
      lastAt.current = performance.now();
      const had = fresh ? 0 : (current.current?.rows.length ?? 0);
      const limit = Math.min(NEXT, Math.max(FIRST, had));
      setLoading(true);
      read(address(path, { cell, entry, ...params, limit }), abort.signal).then(
        (found) => {
          const page = found as PageOf & Record<string, unknown>;
          const rows = page[field] as Row[];
          setGot({
            question, rows, total: page.total ?? rows.length, next: page.next,
            now_s: page.now_s, entry: page.entry,
          });
          setProblem(null);
          setLoading(false);
        },
        (error: unknown) => {
          if (error instanceof DOMException && error.name === "AbortError") return;
          if (error instanceof Problem && error.status === 429) {
            later = setTimeout(() => setAsked((was) => was + 1), (error.retryAfter ?? 1) * 1000);
            return;
          }
          setProblem(error instanceof Problem ? error : new Problem(0, String(error)));
          setLoading(false);
        },
      );
    }, wait);
    return () => {
      clearTimeout(timer);
      clearTimeout(later);
      abort.abort();
    };
  }, [question, asked, follows ? newest : null]);

  const readOn = useCallback(async (): Promise<void> => {
    if (busy.current) return;
    busy.current = true;
    try {
      for (;;) {
        const had: Got<Row> | null = current.current;
        if (had === null || had.next === null || had.rows.length >= wanted.current) break;
        const url = address(had.question.split("?")[0] ?? path, {
          ...Object.fromEntries(new URLSearchParams(had.question.split("?")[1] ?? "")),
          limit: NEXT,
          cursor: had.next,
        });
        const page = (await read(url)) as PageOf & Record<string, unknown>;
        if (current.current !== had) continue;
        const rows = [...had.rows, ...(page[field] as Row[])];
        const now: Got<Row> = {
          ...had, rows, next: page.next, total: Math.max(page.total ?? 0, rows.length),
        };
        current.current = now;
        setGot(now);
      }
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, String(error)));
    } finally {
      busy.current = false;
    }
  }, [path, field]);

  const reach = useCallback((count: number): void => {
    wanted.current = count;
    void readOn();
  }, [readOn]);

  return {
    rows: got?.rows ?? [],
    total: got?.total ?? 0,
    more: got?.next != null,
    now_s: got?.now_s ?? null,
    entry: got?.entry ?? null,
    loading: loading || fresh,
    problem,
    reach,
    newer: !follows && newest !== null && got !== null && got.entry !== newest,
    again: () => setAsked((was) => was + 1),
  };
}
