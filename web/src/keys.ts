/** Keys that work in every view, unless one types or a dialog is open. */
import { step, stepMatter } from "./moments.ts";
import { go } from "./route.ts";
import { compare, live, play } from "./scrubber.tsx";
import { helping, searching } from "./overlays.ts";

/** After `g`: the view of a letter. */
export const GO: Readonly<Record<string, string>> = {
  t: "tide", f: "fleet", j: "jobs", l: "loans", d: "decisions", w: "what-if",
  n: "tenants", h: "health", x: "dead-letters", a: "audit",
};

const ACTS: Readonly<Record<string, () => void>> = {
  ",": () => step(-1),
  ".": () => step(1),
  "[": () => stepMatter(-1),
  "]": () => stepMatter(1),
  " ": play,
  l: live,
  c: compare,
  "/": () => (searching.value = true),
  "?": () => (helping.value = true),
};

function types(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.closest("dialog") !== null) return true;
  if (target instanceof HTMLInputElement) return !["range", "checkbox", "radio"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

/** Space presses what has the focus, if that can be pressed. */
function presses(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest("button, a, summary, input:not([type=range])") !== null;
}

export function listenToKeys(): void {
  let going = false;
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
    if (types(event.target)) return;
    if (going) {
      going = false;
      const view = GO[event.key];
      if (view !== undefined) {
        event.preventDefault();
        go({ view });
        document.querySelector<HTMLElement>("main")?.focus();
        return;
      }
    }
    if (event.key === "g") {
      going = true;
      return;
    }
    if (event.key === " " && presses(event.target)) return;
    const act = ACTS[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  });
}
