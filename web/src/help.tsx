import { useLayoutEffect, useRef } from "preact/hooks";
import { GO } from "./keys.ts";
import { helping } from "./overlays.ts";
import { VIEWS } from "./views/index.ts";

const KEYS: readonly (readonly [readonly string[], string])[] = [
  [[",", "."], "one decision back, one on"],
  [["[", "]"], "back, on to what matters: loans, reclaims, leaders, requests; on a job's page, its own events"],
  [["Space"], "play the log from here, or stop"],
  [["l"], "the live edge, or the end of a log that has ended"],
  [["c"], "compare with this moment, or end that"],
  [["/"], "search jobs, nodes, entries and moments"],
  [["?"], "these keys"],
  [["↑", "↓", "Enter", "x"], "in a list: move, open, choose"],
  [["Esc"], "close what is open"],
];

/** The keys, for who asks. */
export function Help() {
  return helping.value ? <Keys /> : null;
}

function Keys() {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby="keys-title" onClose={() => (helping.value = false)}>
      <h2 id="keys-title">Keys</h2>
      <dl class="keys">
        {KEYS.map(([keys, what]) => (
          <div key={what}>
            <dt>
              {keys.map((one) => (
                <kbd key={one}>{one}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
        {Object.entries(GO).map(([letter, path]) => (
          <div key={letter}>
            <dt>
              <kbd>g</kbd> <kbd>{letter}</kbd>
            </dt>
            <dd>{VIEWS.find((one) => one.path === path)?.title}</dd>
          </div>
        ))}
      </dl>
      <div class="row end">
        <button type="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
    </dialog>
  );
}
