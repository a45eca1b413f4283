/** Agents: who is in contact, how long a message of theirs takes, what they have not answered. */
import type { Schemas } from "../api.ts";
import { duration, moment, plural } from "../format.ts";
import { Filters } from "../journal-list.tsx";
import { usePages } from "../pages.ts";
import { Card, Empty, Name, NodeLink, ProblemNote, State, Waiting } from "../parts.tsx";
import { route } from "../route.ts";
import { type Column, LongTable } from "../table.tsx";

type AgentRow = Schemas["AgentRow"];

/** From when on a delay is worth a look, in seconds. */
const SLOW_S = 5;

function columns(now_s: number): readonly Column<AgentRow>[] {
  return [
    { name: "agent", title: "agent", width: "16%", cell: (row) => <Name of={row.agent} /> },
    { name: "state", title: "contact", width: "9%", cell: (row) => <State of={row.state} /> },
    { name: "pools", title: "pools", width: "13%", cell: (row) => <Name of={row.pools.join(", ")} /> },
    {
      name: "nodes",
      title: "nodes",
      width: "12%",
      cell: (row) =>
        row.nodes.length === 1 ? <NodeLink node={row.nodes[0] as string} /> : plural(row.nodes.length, "node"),
    },
    {
      name: "since",
      title: "since",
      width: "18%",
      cell: (row) =>
        row.silent_since_s !== null ? (
          <span class="bad-text">silent for {duration(now_s - row.silent_since_s)}</span>
        ) : (
          <>
            {moment(row.born_s)} <span class="quiet">start {row.boot}</span>
          </>
        ),
    },
    {
      name: "heard",
      title: "last heard",
      width: "11%",
      cell: (row) =>
        row.heard_s === null ? <span class="nil">–</span> : `${duration(now_s - row.heard_s)} ago`,
    },
    {
      name: "delay",
      title: "way and clock",
      number: true,
      width: "10%",
      cell: (row) => <Delay of={row.delay_s} />,
    },
    {
      name: "commands",
      title: "unanswered",
      number: true,
      width: "9%",
      cell: (row) => (row.commands ? plural(row.commands, "command") : <span class="nil">0</span>),
    },
  ];
}

function Delay({ of }: { of: number | null }) {
  if (of === null) return <span class="nil">–</span>;
  const text = Math.abs(of) < 1 ? `${Math.round(of * 1000)} ms` : duration(of);
  return Math.abs(of) > SLOW_S ? <span class="bad-text">{text}</span> : <>{text}</>;
}

export function Agents() {
  const text = route.value.query["agent"];
  const found = usePages("/api/v1/agents", "agents", { text });
  const refused = found.rows.flatMap((row) => row.refusals ?? []);
  return (
    <Card title="Agents" aside={<Filters of={[{ name: "agent", label: "agent" }]} />}>
      {found.problem !== null && <ProblemNote of={found.problem} />}
      {refused.map((one) => (
        <p key={`${one.agent} ${one.kind} ${one.subject} ${one.at_s}`} class="bad-text text">
          {one.text}
        </p>
      ))}
      {!found.loading && !found.rows.length ? (
        <Empty title={text === undefined ? "No agent was born yet." : "No agent has that in its name."}>
          <code>tidegate edge-agent --help</code> says how to start one.
        </Empty>
      ) : found.now_s === null && found.problem === null ? (
        <Waiting />
      ) : (
        <LongTable
          label="Agents"
          columns={columns(found.now_s ?? 0)}
          rows={found.rows}
          total={found.total}
          id={(row) => row.agent}
          reach={found.reach}
        />
      )}
    </Card>
  );
}
