/** The shell around every view: navigation, cell, who you are, and the moment below. */
import { useEffect } from "preact/hooks";
import icon from "./icon.svg";
import { connection, head } from "./live.ts";
import { learnWho, me } from "./me.ts";
import { Empty, Name } from "./parts.tsx";
import { href, isPast, route } from "./route.ts";
import { Scrubber } from "./scrubber.tsx";
import { scheme, switchTheme } from "./theme.ts";
import { Confirm } from "./verbs.tsx";
import { VIEWS, viewOf } from "./views/index.ts";

export function App() {
  useEffect(learnWho, []);
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
      <main id="main" tabIndex={-1}>
        <h1 class={id === null ? "" : "hidden"}>{view?.title ?? "Nothing here"}</h1>
        {view === undefined ? (
          <Empty title={`There is no view “${path}”.`}>
            <a href={href({ view: "tide" })}>Go to the tide</a>
          </Empty>
        ) : id !== null && view.One !== undefined ? (
          <view.One key={id} id={id} />
        ) : (
          <view.List key={view.path} />
        )}
      </main>
      <Scrubber />
      <Confirm />
    </div>
  );
}

function Top() {
  const who = me.value;
  const role = who?.role ?? "viewer";
  const shown = VIEWS.filter((one) => one.roles === undefined || one.roles.includes(role));
  return (
    <header class="top">
      <a class="brand" href={href({ view: "tide" })}>
        <img src={icon} alt="" />
        Tidegate
      </a>
      <nav aria-label="Views">
        {shown.map((one) => (
          <a
            key={one.path}
            href={href({ view: one.path })}
            aria-current={one.path === route.value.view ? "page" : undefined}
          >
            {one.title}
          </a>
        ))}
      </nav>
      <div class="top-aside">
        <span>{head.value?.cell ?? route.value.cell ?? ""}</span>
        <span>{connection.value}</span>
        {who !== null && (
          <span class="who">
            <Name of={who.name} /> · {who.role}
          </span>
        )}
        <button type="button" onClick={switchTheme} aria-label="Light or dark">
          {scheme.value === "dark" ? "☀" : "☾"}
        </button>
      </div>
    </header>
  );
}
