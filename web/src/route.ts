/** The address is the state: its path names the view, its query the moment and the filters. */
import { computed, signal } from "@preact/signals";

export interface Route {
  view: string;
  /** What the view is about, such as a job. */
  id: string | null;
  cell: string | null;
  /** The entry whose state is shown; null: the newest. */
  entry: number | null;
  /** The entry that it is compared with. */
  vs: number | null;
  /** What else the view keeps in the address. */
  query: Readonly<Record<string, string>>;
}

/** What may be changed of a route; a query of undefined or "" leaves the address. */
export interface Change {
  view?: string;
  id?: string | null;
  cell?: string | null;
  entry?: number | null;
  vs?: number | null;
  query?: Readonly<Record<string, string | undefined>>;
}

const OURS = ["cell", "entry", "vs"];

function whole(text: string | null): number | null {
  return text !== null && /^[0-9]{1,15}$/.test(text) ? Number(text) : null;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function parse(path: string, search: string): Route {
  const [view = "", ...rest] = path.replace(/^\/+|\/+$/g, "").split("/");
  const given = new URLSearchParams(search);
  const query: Record<string, string> = {};
  for (const [name, value] of given) if (!OURS.includes(name)) query[name] = value;
  return {
    view: view === "" ? "tide" : decoded(view),
    id: rest.length > 0 ? decoded(rest.join("/")) : null,
    cell: given.get("cell"),
    entry: whole(given.get("entry")),
    vs: whole(given.get("vs")),
    query,
  };
}

function written(to: Route): string {
  const query = new URLSearchParams();
  if (to.cell !== null) query.set("cell", to.cell);
  if (to.entry !== null) query.set("entry", String(to.entry));
  if (to.vs !== null) query.set("vs", String(to.vs));
  for (const [name, value] of Object.entries(to.query)) query.set(name, value);
  const path = to.view === "tide" ? "/" : `/${encodeURIComponent(to.view)}`;
  const id = to.id === null ? "" : `/${encodeURIComponent(to.id)}`;
  const text = query.toString();
  return (id === "" ? path : path + id) + (text === "" ? "" : `?${text}`);
}

export const route = signal<Route>(parse(location.pathname, location.search));

/** Whether a past moment is shown. */
export const isPast = computed(() => route.value.entry !== null);

/** The route after a change. Another view keeps the moment, and loses the filters. */
export function changed(change: Change): Route {
  const now = route.value;
  const moves = "view" in change || "id" in change;
  const query: Record<string, string> = moves ? {} : { ...now.query };
  for (const [name, value] of Object.entries(change.query ?? {})) {
    if (value === undefined || value === "") delete query[name];
    else query[name] = value;
  }
  return {
    view: change.view ?? now.view,
    id: change.id !== undefined ? change.id : change.view !== undefined ? null : now.id,
    cell: change.cell !== undefined ? change.cell : now.cell,
    entry: change.entry !== undefined ? change.entry : now.entry,
    vs: change.vs !== undefined ? change.vs : now.vs,
    query,
  };
}

/** The address after a change, for links. */
export function href(change: Change): string {
  return written(changed(change));
}

/** Go there. `replace`: the browser's "back" does not lead to where one was, as while scrubbing. */
export function go(change: Change, replace = false): void {
  const to = changed(change);
  const address = written(to);
  if (address !== location.pathname + location.search) {
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  }
  const moved = to.view !== route.value.view || to.id !== route.value.id;
  route.value = to;
  if (moved) scrollTo(0, 0);
}

/** Follow links of our own without loading the page again. */
export function followLinks(): void {
  addEventListener("popstate", () => {
    route.value = parse(location.pathname, location.search);
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (link === null || link.target !== "" || link.hasAttribute("download")) return;
    const to = new URL(link.href, location.href);
    if (to.origin !== location.origin || /^\/(api|login|logout)\b/.test(to.pathname)) return;
    if (to.pathname === location.pathname && to.search === location.search && to.hash) return;
    event.preventDefault();
    const next = parse(to.pathname, to.search);
    history.pushState(null, "", to.pathname + to.search);
    const moved = next.view !== route.value.view || next.id !== route.value.id;
    route.value = next;
    if (moved) {
      scrollTo(0, 0);
      document.querySelector<HTMLElement>("main")?.focus();
    }
  });
}
