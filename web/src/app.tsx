/** The shell around every view: navigation, cell, who you are, and the moment below. */
import type { ComponentChildren } from "preact";
import { useEffect, useErrorBoundary, useRef } from "preact/hooks";
import { asked } from "./api.ts";
import { shortened } from "./bidi.ts";
import { useData } from "./data.ts";
import { clock, day } from "./format.ts";
import { Help } from "./help.tsx";
import { Icon } from "./icons.tsx";
import icon from "./icon.svg";
import { head } from "./live.ts";
import { me } from "./me.ts";
import { happened, shown, timeOf } from "./moments.ts";
import { helping, searching } from "./overlays.ts";
import { Empty, Name } from "./parts.tsx";
import { go, href, isPast, route } from "./route.ts";
import { Scrubber } from "./scrubber.tsx";
import { Search } from "./search.tsx";
import { Connection } from "./standing.tsx";
import { scheme, switchTheme } from "./theme.ts";
import { Confirm } from "./verbs.tsx";
import { VIEWS, nearestView, viewOf } from "./views/index.ts";

export function App() {
  const { view: path, id } = route.value;
  const view = viewOf(path);
  useEffect(() => {
    document.title = `${id ?? view?.title ?? "Nothing here"} · Tidegate`;
  }, [view, id]);
  return (
    <div class={isPast.value ? "shell past" : "shell"}>
      <a class="skip" href="#main">
        Skip to the view
      </a>
      <Top />
      <Past />
      <main id="main" tabIndex={-1}>
        {view === undefined ? (
          <>
            <h1>Nothing here</h1>
            <Empty title={`There is no view “${shortened(path)}”.`}>
              <Nearest to={path} id={id} />
            </Empty>
          </>
        ) : (
          <Safe key={`${path}/${id ?? ""}`}>
            {id !== null && view.One !== undefined ? (
              <view.One id={id} />
            ) : (
              <>
                <h1 class="hidden">{view.title}</h1>
                <view.List />
              </>
            )}
          </Safe>
        )}
      </main>
      <Scrubber />
      <Confirm />
      <Help />
      <Search />
    </div>
  );
}

/** The view that was meant, as far as its name tells. */
function Nearest({ to, id }: { to: string; id: string | null }) {
  const near = nearestView(to);
  if (near === undefined) return <a href={href({ view: "tide" })}>Go to the tide</a>;
  return (
    <>
      The nearest is <a href={href({ view: near.path, id: near.One === undefined ? null : id })}>{near.title}</a>
    </>
  );
}

/** A view that fails leaves the shell, and the others, as they are. */
function Safe({ children }: { children: ComponentChildren }) {
  const [error, reset] = useErrorBoundary((failed: unknown) => console.error(failed));
  if (error === undefined) return <>{children}</>;
  return (
    <Empty title="This view failed, which is a bug.">
      <span class="text">{String(error)}</span> <button onClick={reset}>Try again</button>
    </Empty>
  );
}

function Top() {
  const role = me.value?.role ?? "viewer";
  const views = VIEWS.filter((one) => one.within === undefined && (one.roles?.includes(role) ?? true));
  const dark = scheme.value === "dark";
  const links = useRef<HTMLElement>(null);
  const { view } = route.value;
  const here = viewOf(view)?.within ?? view;
  // On a narrow screen the navigation scrolls: the view one is in stays in sight.
  useEffect(() => {
    const bar = links.current;
    const here = bar?.querySelector<HTMLElement>("[aria-current]");
    if (bar && here) bar.scrollLeft = here.offsetLeft - bar.offsetLeft - (bar.clientWidth - here.clientWidth) / 2;
  }, [view]);
  return (
    <header class="top">
      <a class="brand" href={href({ view: "tide" })}>
        <img src={icon} alt="" />
        Tidegate
      </a>
      <nav aria-label="Views" ref={links}>
        {views.map((one) => (
          <a
            key={one.path}
            href={href({ view: one.path })}
            aria-current={one.path === here ? (here === view ? "page" : "true") : undefined}
          >
            {one.title}
          </a>
        ))}
      </nav>
      <div class="top-aside">
        <CellPicker />
        <Connection />
        <Who />
        <span class="buttons">
          <button type="button" class="plain" aria-label="Search (/)" title="Search (/)" onClick={() => (searching.value = true)}>
            <Icon of="search" />
          </button>
          <button
            type="button"
            class="plain"
            aria-label={dark ? "Light colours" : "Dark colours"}
            title={dark ? "Light colours" : "Dark colours"}
            onClick={switchTheme}
          >
            <Icon of={dark ? "sun" : "moon"} />
          </button>
          <button type="button" class="plain" aria-label="Keys (?)" title="Keys (?)" onClick={() => (helping.value = true)}>
            <Icon of="help" />
          </button>
        </span>
      </div>
    </header>
  );
}

/** Which cell, where the log has more than one. */
function CellPicker() {
  const cells = useData("/api/v1/cells", {}, { timeless: true, again: head.value?.cell, calm: true }).data?.cells ?? [];
  if (cells.length < 2) return null;
  const current = route.value.cell ?? head.value?.cell ?? "";
  return (
    <select
      aria-label="Cell"
      value={current}
      onChange={(event) => go({ cell: event.currentTarget.value, entry: null, vs: null })}
    >
      {cells.map((one) => (
        <option key={one.cell} value={one.cell}>
          {one.cell}
        </option>
      ))}
    </select>
  );
}

function Who() {
  const who = me.value;
  if (who === null) return null;
  async function signOut(): Promise<void> {
    await asked("/logout", { method: "POST" });
    location.assign("/");
  }
  return (
    <span class="who" title={who.verbs.length === 0 ? "You can look, and change nothing" : `You may: ${who.verbs.join(", ")}`}>
      <Name of={who.name} /> · {who.role}
      {who.tenant !== null && (
        <>
          {" "}
          of <Name of={who.tenant} />
        </>
      )}
      {who.signs_out && (
        <button type="button" class="plain" onClick={() => void signOut()}>
          Sign out
        </button>
      )}
    </span>
  );
}

/** Says that what is shown is past, and what happened at that entry. */
function Past() {
  const at = shown.value;
  if (!isPast.value || at === null) return null;
  const what = happened(at);
  return (
    <section class="banner" aria-label="A past moment">
      <strong>
        As it was on {day(timeOf(at))} at {clock(timeOf(at))}
      </strong>
      {what !== "" && <span class="text">{what}</span>}
      <a href={href({ entry: null })}>Go to now</a>
    </section>
  );
}
