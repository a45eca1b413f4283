/** What a job reports while it trains: a curve for each figure, such as its loss. */
import { Chart } from "../chart.tsx";
import { useData } from "../data.ts";
import { figure } from "../format.ts";
import { showTime } from "../moments.ts";
import { Card } from "../parts.tsx";

export function Curves({ id }: { id: string }) {
  const { data, problem } = useData("/api/v1/jobs/{job}/curves", { job: id }, { apartMs: 2000, calm: true });
  const curves = Object.entries(data?.curves ?? {}).filter(([, points]) => points.length > 0);
  return (
    <Card title="What it reports">
      {curves.length === 0 ? (
        <p class="quiet">
          {problem !== null && problem.status !== 404
            ? problem.message
            : "Nothing yet. A worker that reports a loss or an accuracy with its progress has its curve here."}
        </p>
      ) : (
        curves.map(([name, points]) => <Curve key={name} name={name} points={points} />)
      )}
    </Card>
  );
}

function Curve({ name, points }: { name: string; points: readonly (readonly [number, number, number])[] }) {
  const last = points[points.length - 1];
  const lowest = Math.min(...points.map((one) => one[2]));
  return (
    <>
      <div class="panel-title">
        <h3>
          <bdi>{name}</bdi>
        </h3>
        <span class="quiet small">
          {last === undefined ? "" : `${figure(Number(last[2].toPrecision(4)))} at step ${figure(last[1])}`}
        </span>
      </div>
      <Chart
        x={points.map((one) => one[0])}
        ys={[points.map((one) => one[2])]}
        lines={[{ label: name, stroke: "--accent", width: 1.75 }]}
        height={130}
        times
        label={`${name} over time, ${points.length} points: from ${points[0]?.[2]} to ${last?.[2]}, lowest ${lowest}`}
        onPick={(at_s) => showTime(at_s, false)}
      />
    </>
  );
}
