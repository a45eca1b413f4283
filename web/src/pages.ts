/** Rows of a list over pages of the gateway; all pages are of one state, so that none tears. */
import { useCallback, useRef, useState } from "preact/hooks";
import { type Answer, type Params, type Path, type Problem, type Schemas, address, problemFrom, read } from "./api.ts";
import { useListReading } from "./reading.ts";
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

interface Got<Row> {
  question: string;
  rows: readonly Row[];
  total: number;
  next: string | null;
  now_s: number | null;
  entry: number | null;
}

/** Jobs may be asked for in part: who does looks at no more than those fields. */
type Page<P extends Path> = P extends "/api/v1/jobs" ? Schemas["JobsPage"] : Answer<P>;
type Listed<P extends Path> = {
  [F in keyof Page<P>]: Page<P>[F] extends readonly object[] ? F : never;
}[keyof Page<P>] &
  string;
type RowOf<P extends Path, F> = F extends keyof Page<P>
  ? Page<P>[F] extends readonly (infer Row)[]
    ? Row
    : never
  : never;

/** Read a list, such as usePages("/api/v1/jobs", "jobs", { state: "queued" }). */
export function usePages<P extends Path, F extends Listed<P>>(
  path: P,
  field: F,
  params: Params = {},
): Rows<RowOf<P, F>> {
  type Row = RowOf<P, F>;
  const { cell, entry } = route.value;
  const question = address(path, { cell, entry, ...params });
  const [got, setGot] = useState<Got<Row> | null>(null);
  const wanted = useRef(0);
  const busy = useRef(false);
  const current = useRef(got);
  current.current = got;
  const fresh = got === null || got.question !== question;
  // A list that was read far is not read again by itself: its rows would jump while one reads.
  const follows = fresh || (got?.rows.length ?? 0) <= NEXT;

  const begin = async (signal: AbortSignal): Promise<void> => {
    const had = current.current;
    const known = had?.question === question ? had.rows.length : 0;
    const limit = Math.min(NEXT, Math.max(FIRST, known));
    const page = (await read(address(path, { cell, entry, ...params, limit }), signal)) as PageOf &
      Record<string, unknown>;
    const rows = page[field] as Row[];
    setGot({
      question, rows, total: page.total ?? rows.length, next: page.next,
      now_s: page.now_s, entry: page.entry,
    });
  };
  const { problem, setProblem, loading, newest, again } = useListReading(question, got !== null, follows, begin);

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
      setProblem(problemFrom(error));
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
    again,
  };
}
