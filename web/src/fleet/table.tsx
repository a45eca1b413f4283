/** The fleet as a table: what the picture shows, in words. */
import { useMemo } from "preact/hooks";
import { clock, count } from "../format.ts";
import { Name } from "../parts.tsx";
import { href } from "../route.ts";
import { type Column, LongTable } from "../table.tsx";
import { type Fleet, layOut } from "./layout.ts";
import { holders, stateWords } from "./words.ts";

export function FleetTable({ fleet, open }: { fleet: Fleet; open: (node: string | null) => void }) {
  const layout = useMemo(() => layOut(fleet, 800, 600, 1), [fleet]);
  const rows = useMemo(() => fleet.nodes.name.map((_, node) => node), [fleet]);
  const columns = useMemo<readonly Column<number>[]>(
    () => [
      {
        name: "node",
        title: "node",
        width: "18%",
        cell: (node) => {
          const name = fleet.nodes.name[node] ?? "";
          return (
            <a href={href({ query: { node: name } })}>
              <Name of={name} />
            </a>
          );
        },
      },
      {
        name: "pool",
        title: "pool",
        width: "14%",
        cell: (node) => <Name of={fleet.pools[fleet.nodes.pool[node] ?? 0]?.pool ?? ""} />,
      },
      {
        name: "state",
        title: "state",
        width: "20%",
        cell: (node) => stateWords(fleet, node, (at) => clock(at, false)),
      },
      { name: "gpus", title: "GPUs", number: true, width: "5rem", cell: (node) => count(fleet.nodes.gpus[node]) },
      {
        name: "busy",
        title: "busy",
        number: true,
        width: "6rem",
        cell: (node) => {
          const used = fleet.nodes.used[node];
          return used == null ? <span class="nil">–</span> : `${Math.round(used * 100)} %`;
        },
      },
      {
        name: "jobs",
        title: "jobs on it",
        cell: (node) => {
          const held = holders(fleet, layout, node);
          if (!held.length) return <span class="nil">none</span>;
          return held.map((one) => (
            <span key={one.job} class="holder">
              <Name of={fleet.jobs[one.job]?.job ?? "?"} /> ×{one.gpus}{" "}
            </span>
          ));
        },
      },
    ],
    [fleet],
  );
  return (
    <LongTable
      label="Nodes"
      columns={columns}
      rows={rows}
      total={rows.length}
      id={(node) => fleet.nodes.name[node] ?? String(node)}
      open={(node) => open(fleet.nodes.name[node] ?? null)}
    />
  );
}
