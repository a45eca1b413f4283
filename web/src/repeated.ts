/** Something that is done again when there is reason to: one at a time, and not too often. */

export interface Repeated {
  /** There is reason to do it again; what is under way is not cut off by that. */
  poke: () => void;
  /** Never again; what is under way is given up. */
  end: () => void;
}

/**
 * Do `work` after `firstMs`, and again `apartMs` after it began if it was poked meanwhile.
 * `work` gives the seconds after which it wants to be done again by itself, or null.
 */
export function repeated(
  work: (signal: AbortSignal) => Promise<number | null>,
  apartMs: number,
  firstMs = 0,
): Repeated {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let busy = false;
  let poked = false;
  let begunAt = 0;

  function later(ms: number): void {
    clearTimeout(timer);
    timer = setTimeout(() => void begin(), Math.max(0, ms));
  }
  async function begin(): Promise<void> {
    timer = undefined;
    busy = true;
    poked = false;
    begunAt = performance.now();
    const again_s = await work(abort.signal);
    busy = false;
    if (abort.signal.aborted) return;
    if (again_s !== null) later(again_s * 1000);
    else if (poked) later(begunAt + apartMs - performance.now());
  }
  later(firstMs);
  return {
    poke: () => {
      if (busy) poked = true;
      else if (timer === undefined) later(begunAt + apartMs - performance.now());
    },
    end: () => {
      clearTimeout(timer);
      abort.abort();
    },
  };
}
