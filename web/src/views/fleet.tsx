/** The fleet: every GPU of every node on one picture, and a panel for one of them. */
import { useMemo } from "preact/hooks";
import { useData } from "../data.ts";
import { schemeOf } from "../fleet/canvas.ts";
import { FleetLegend } from "../fleet/legend.tsx";
import { FleetMap } from "../fleet/map.tsx";
import { FleetTable } from "../fleet/table.tsx";
import type { Fleet as Columns } from "../fleet/layout.ts";
import { type Colouring, COLOURINGS, coloured } from "../fleet/looks.ts";
import { NodePanel } from "../fleet/node-panel.tsx";
import { sums } from "../fleet/words.ts";
import { count, percent } from "../format.ts";
import { Card, Empty, Figures, Loaded, Table, type Figure } from "../parts.tsx";
import { go, route } from "../route.ts";
import { scheme } from "../theme.ts";
import "../fleet/fleet.css";

function colouringOf(text: string | undefined): Colouring {
  return COLOURINGS.find((one) => one === text) ?? "job";
}

export function Fleet() {
  const fleet = useData("/api/v1/fleet", {}, { apartMs: 1000 });
  const { colour, node, table } = route.value.query;
  return (
    <Loaded of={fleet}>
      {(data) => (
        <Drawn
          fleet={data}
          colouring={colouringOf(colour)}
          opened={node ?? null}
          asTable={table !== undefined}
        />
      )}
    </Loaded>
  );
}

interface Shown {
  fleet: Columns;
  colouring: Colouring;
  opened: string | null;
  asTable: boolean;
}

function Drawn({ fleet, colouring, opened, asTable }: Shown) {
  const pools = useMemo(() => sums(fleet), [fleet]);
  const light = scheme.value;
  const inForce = useMemo(() => schemeOf(document.documentElement), [light]);
  const shown = useMemo(
    () => coloured(fleet, colouring, inForce.colours),
    [fleet, colouring, inForce],
  );
  if (!fleet.nodes.name.length) {
    return (
      <Empty title="No nodes yet.">
        Agents bring them: <code>tidegate edge-agent --help</code>, or a whole cell at once:{" "}
        <code>tidegate demo --log run.db</code>.
      </Empty>
    );
  }
  const open = (name: string | null) => go({ query: { node: name ?? undefined } }, opened !== null);
  return (
    <div class={opened === null ? "fleet" : "fleet with-panel"}>
      <div class="fleet-main">
        <FleetFigures of={pools} />
        <Card title="Every GPU" aside={<Choices colouring={colouring} asTable={asTable} />}>
          {asTable ? (
            <FleetTable fleet={fleet} open={open} />
          ) : (
            <>
              <FleetMap fleet={fleet} shown={shown} inForce={inForce} opened={opened} open={open} />
              <FleetLegend fleet={fleet} colouring={colouring} shown={shown} />
            </>
          )}
        </Card>
        <Pools of={pools} />
      </div>
      {opened !== null && <NodePanel key={opened} node={opened} close={() => open(null)} />}
    </div>
  );
}

function FleetFigures({ of }: { of: ReturnType<typeof sums> }) {
  const all = (part: (row: (typeof of)[number]) => number) =>
    of.reduce((sum, row) => sum + part(row), 0);
  const silent = all((row) => row.silent);
  const gpus = all((row) => row.gpus);
  const held = all((row) => row.held);
  const due = all((row) => row.due);
  const rows: Figure[] = [
    { label: "nodes", value: count(all((row) => row.nodes)) },
    { label: "GPUs", value: count(gpus) },
    { label: "held by jobs", value: count(held), note: gpus ? ` ${percent(held / gpus)}` : "" },
    { label: "nodes lent", value: count(all((row) => row.lent)), note: due ? ` ${count(due)} due back` : "" },
    { label: "draining", value: count(all((row) => row.draining)) },
    { label: "cordoned", value: count(all((row) => row.cordoned)) },
    { label: "silent", value: count(silent), tone: silent ? "bad" : "quiet" },
  ];
  return <Figures of={rows} />;
}

function Choices({ colouring, asTable }: { colouring: Colouring; asTable: boolean }) {
  return (
    <div class="fleet-choices">
      {!asTable && (
        <fieldset class="choice">
          <legend>Colour by</legend>
          {COLOURINGS.map((one) => (
            <label key={one}>
              <input
                type="radio"
                name="colour"
                checked={one === colouring}
                onChange={() => go({ query: { colour: one === "job" ? undefined : one } }, true)}
              />
              <span>{one}</span>
            </label>
          ))}
        </fieldset>
      )}
      <button
        type="button"
        aria-pressed={asTable}
        onClick={() => go({ query: { table: asTable ? undefined : "1" } }, true)}
      >
        As a table
      </button>
    </div>
  );
}

function Pools({ of }: { of: ReturnType<typeof sums> }) {
  return (
    <Card title="By pool">
      <Table
        label="Figures by pool"
        head={["pool", "kind", "#nodes", "#GPUs", "#held", "#lent", "#due back", "#draining", "#cordoned", "#silent"]}
      >
        {of.map((row) => (
          <tr key={row.pool}>
            <th scope="row"><bdi>{row.pool}</bdi></th>
            <td>{row.kind}</td>
            {[row.nodes, row.gpus, row.held, row.lent, row.due, row.draining, row.cordoned, row.silent].map(
              (value, at) => (
                <td class={value ? "number" : "number nil"} key={at}>{count(value)}</td>
              ),
            )}
          </tr>
        ))}
      </Table>
    </Card>
  );
}
