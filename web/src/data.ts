/** Data of a view: read for the moment of the address, and again when the cell has something new. */
import { useEffect, useRef, useState } from "preact/hooks";
import { type Answer, type Params, type Path, Problem, address, read } from "./api.ts";
import { head } from "./live.ts";
import { route } from "./route.ts";

export interface Data<T> {
  /** The newest answer; kept while another is on its way. */
  data: T | null;
  problem: Problem | null;
  loading: boolean;
  /** When it was read, by this browser's clock, in ms. */
  readAt: number | null;
  /** Whether the answer is of another question than the one asked now. */
  old: boolean;
}

/** So long the moment has to be the same for what is `calm`. */
const CALM_MS = 300;
/** A gateway that is away is asked again so often. */
const AWAY_S = 3;

interface Options {
  /** Paths whose answers do not depend on the moment. */
  timeless?: boolean;
  /** Read again so often at most, in ms; views refetch twice a second at most. */
  apartMs?: number;
  /** Asked only once the moment has been the same for a while: what stands beside, or costs much. */
  calm?: boolean;
  /** Not asked at all. */
  off?: boolean;
  /** Read again when this changes, beside new entries. */
  again?: unknown;
}

/** Read a path of the API; cell and entry are those of the address. */
export function useData<P extends Path>(
  path: P,
  params: Params = {},
  options: Options = {},
): Data<Answer<P>> {
  return useRead<Answer<P>>(path, params, options);
}

/** As useData, of a path that the OpenAPI document may not have yet. */
export function useRead<T>(path: string, params: Params = {}, options: Options = {}): Data<T> {
  const { cell, entry } = route.value;
  const moment = options.timeless ? {} : { cell, entry };
  const url = options.off ? null : address(path, { ...moment, ...params });
  const live = options.timeless ? null : entry === null ? head.value : null;
  const [state, setState] = useState<Data<T> & { url: string | null }>({
    url: null, data: null, problem: null, loading: true, readAt: null, old: false,
  });
  const lastAt = useRef(0);
  const apart = options.apartMs ?? 500;
  useEffect(() => {
    if (url === null) return;
    const abort = new AbortController();
    let ended = false;
    const begin = (): void => {
      lastAt.current = performance.now();
      read(url, abort.signal).then(
        (data) => {
          if (ended) return;
          setState({
            url, data: data as T, problem: null, loading: false, readAt: Date.now(), old: false,
          });
        },
        (error: unknown) => {
          if (ended || (error instanceof DOMException && error.name === "AbortError")) return;
          const problem = error instanceof Problem ? error : new Problem(0, String(error));
          // Asked too often, as by several tabs: that passes, and is nothing to tell.
          const passes = problem.status === 429;
          if (!passes) setState((was) => ({ ...was, url, problem, loading: false, old: was.url !== url }));
          const away = problem.status === 0;
          if (passes || away || problem.retryAfter !== null) {
            timer = setTimeout(begin, (problem.retryAfter ?? (away ? AWAY_S : 1)) * 1000);
          }
        },
      );
    };
    const again = state.url === url;
    const wait = again
      ? lastAt.current + apart - performance.now()
      : options.calm && state.url !== null && entry !== null
        ? CALM_MS
        : 0;
    let timer = setTimeout(begin, Math.max(0, wait));
    return () => {
      ended = true;
      clearTimeout(timer);
      abort.abort();
    };
  }, [url, live, options.again]);
  const asking = state.url !== url;
  return { ...state, loading: state.loading || asking, old: state.data !== null && asking };
}
