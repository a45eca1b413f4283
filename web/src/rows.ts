/**
 * Rows of a very long list, read where one looks: a part is asked for by its place, so that whoever
 * goes to the end waits for one part, and those left far behind are let go of. All parts are of one
 * state, so that none tears.
 */
import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { type Params, type Problem, address, problemFrom, read } from "./api.ts";
import { useListReading } from "./reading.ts";
import { route } from "./route.ts";

interface PartOf {
  entry: number | null;
  now_s: number;
  total: number;
}

export interface LongRows<Row> {
  /** The row of a number; undefined: it is not here. */
  at: (number: number) => Row | undefined;
  /** All that are here, in their order. */
  rows: readonly Row[];
  total: number;
  /** The moment that the rows are of. */
  now_s: number | null;
  loading: boolean;
  problem: Problem | null;
  /** Have the rows from one number to before another, and those that come next. */
  see: (first: number, last: number) => void;
  /** Whether the cell has gone on since; beyond the first part rows wait for `again`. */
  newer: boolean;
  again: () => void;
}

/** Rows of a part; a screen has some forty. */
export const PART = 200;
/** So many parts are held at most. */
const HELD = 20;
const RETRY_MS = 1000;

interface Got<Row> {
  question: string;
  entry: number | null;
  now_s: number;
  total: number;
  parts: ReadonlyMap<number, readonly Row[]>;
}

/** The parts that rows are in, nearest to the middle first, with one more on either side. */
export function partsOf(first: number, last: number, total: number): number[] {
  const end = Math.ceil(total / PART);
  const from = Math.floor(first / PART);
  const to = Math.floor(Math.max(first, last - 1) / PART);
  const middle = (first + last) / 2 / PART - 0.5;
  const found: number[] = [];
  for (let part = Math.max(0, from - 1); part <= to + 1 && part < end; part++) found.push(part);
  return found.sort((one, other) => Math.abs(one - middle) - Math.abs(other - middle));
}

/** Read a list, such as useRows<JobRow>("/api/v1/jobs", "jobs", { state: "queued" }). */
export function useRows<Row>(path: string, field: string, params: Params): LongRows<Row> {
  const { cell, entry } = route.value;
  const question = address(path, { cell, entry, ...params });
  const [got, setGot] = useState<Got<Row> | null>(null);
  const current = useRef(got);
  const wanted = useRef<readonly [number, number]>([0, 0]);
  const busy = useRef(false);
  const fresh = got === null || got.question !== question;
  // A list that was read further is not read again by itself: its rows would jump while one reads.
  const follows = fresh || got.parts.size <= 1;

  function set(now: Got<Row>): void {
    current.current = now;
    setGot(now);
  }
  const ask = async (from: Params, signal?: AbortSignal): Promise<[PartOf, Row[]]> => {
    const part = (await read(address(path, { cell, ...params, ...from, limit: PART }), signal)) as PartOf &
      Record<string, unknown>;
    return [part, part[field] as Row[]];
  };

  const begin = async (signal: AbortSignal): Promise<void> => {
    const [part, rows] = await ask({ entry }, signal);
    const { now_s, total } = part;
    set({ question, entry: part.entry, now_s, total, parts: new Map([[0, rows]]) });
    void readOn();
  };
  const { problem, setProblem, loading, newest, again } = useListReading(question, got !== null, follows, begin);

  /** Read what is wanted and not here; what was wanted before, and is not any more, is left. */
  async function readOn(): Promise<void> {
    if (busy.current) return;
    busy.current = true;
    try {
      for (;;) {
        const had = current.current;
        if (had === null || had.entry === null) break;
        // At its top a list follows the cell: nothing is read ahead there.
        if (wanted.current[1] <= PART / 2) break;
        const needed = partsOf(...wanted.current, had.total).find((part) => !had.parts.has(part));
        if (needed === undefined) break;
        let rows: Row[];
        try {
          [, rows] = await ask({ entry: had.entry, skip: needed * PART });
        } catch (error) {
          const told = problemFrom(error);
          if (told.status !== 429) throw told;
          await new Promise((go) => setTimeout(go, (told.retryAfter ?? 0) * 1000 || RETRY_MS));
          continue;
        }
        const now = current.current;
        if (now === null || now.question !== had.question || now.entry !== had.entry) continue;
        set({ ...now, parts: held(now.parts, needed, rows, wanted.current) });
      }
    } catch (error) {
      setProblem(problemFrom(error));
    } finally {
      busy.current = false;
    }
  }

  const doing = useRef(readOn);
  doing.current = readOn;
  const see = useCallback((first: number, last: number): void => {
    wanted.current = [first, last];
    void doing.current();
  }, []);
  const parts = got?.parts;
  const at = useCallback(
    (number: number) => parts?.get(Math.floor(number / PART))?.[number % PART],
    [parts],
  );
  const rows = useMemo(
    () => [...(parts ?? [])].sort(([one], [other]) => one - other).flatMap(([, some]) => some),
    [parts],
  );
  return {
    at, rows, see, problem,
    total: got?.total ?? 0,
    now_s: got?.now_s ?? null,
    loading: loading || fresh,
    newer: !follows && newest !== null && got?.entry !== newest,
    again,
  };
}

/** The parts with one more; too many are held by letting go of the farthest. */
function held<Row>(
  parts: ReadonlyMap<number, readonly Row[]>,
  part: number,
  rows: readonly Row[],
  [first, last]: readonly [number, number],
): ReadonlyMap<number, readonly Row[]> {
  const found = new Map(parts).set(part, rows);
  const middle = (first + last) / 2 / PART - 0.5;
  while (found.size > HELD) {
    const farthest = [...found.keys()].reduce((one, other) =>
      Math.abs(other - middle) > Math.abs(one - middle) ? other : one,
    );
    found.delete(farthest);
  }
  return found;
}
