/** Data of a view: read for the moment of the address, and again when the cell has something new. */
import { useEffect, useState } from "preact/hooks";
import { type Answer, type Params, type Path, type Problem, address, read } from "./api.ts";
import { head } from "./live.ts";
import { useReading } from "./reading.ts";
import { route } from "./route.ts";

export interface Data<T> {
  /** The newest answer; kept while another is on its way. */
  data: T | null;
  problem: Problem | null;
  loading: boolean;
  /** Whether the answer is of another question than the one asked now. */
  old: boolean;
}

/** Views are read twice a second at most. */
const APART_MS = 500;
/** So long the moment has to be the same for what is `calm`. */
const CALM_MS = 300;
/** And so long on arrival. */
const ARRIVED_MS = 100;

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
  const { cell, entry } = route.value;
  const moment = options.timeless ? {} : { cell, entry };
  const url = options.off ? null : address(path, { ...moment, ...params });
  const live = options.timeless ? null : entry === null ? head.value : null;
  const [state, setState] = useState<Data<Answer<P>> & { url: string | null }>({
    url: null, data: null, problem: null, loading: true, old: false,
  });
  const work = async (signal: AbortSignal): Promise<void> => {
    const data = (await read(url ?? "", signal)) as Answer<P>;
    setState({ url, data, problem: null, loading: false, old: false });
  };
  const failed = (problem: Problem): void =>
    setState((was) => ({ ...was, url, problem, loading: false, old: was.url !== url }));
  // On arrival, too: what one came for is asked first, and a gateway answers one after the other.
  const firstMs = options.calm ? (state.url === null ? ARRIVED_MS : CALM_MS) : 0;
  const reader = useReading([url], url === null ? null : work, failed, options.apartMs ?? APART_MS, firstMs);
  useEffect(() => reader.current?.poke(), [live, options.again]);
  const asking = state.url !== url;
  return { ...state, loading: state.loading || asking, old: state.data !== null && asking };
}
