/** What was submitted, and the speeds that were learned of it. */
import type { Schemas } from "../api.ts";
import { count, duration, figure, moment } from "../format.ts";
import { Card } from "../parts.tsx";

const WORDS: Readonly<Record<string, string>> = {
  gpus_min: "GPUs at least", gpus_max: "GPUs at most", total_steps: "steps", samples_per_step: "samples of a step",
  deadline_s: "deadline", memory_mib: "GPU memory, MiB", checkpoint_mib: "checkpoint, MiB",
  checkpoint_cost_s: "a save takes", start_cost_s: "a start takes", edge_allowed: "may run at the edge",
};

function said(name: string, value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    if (name === "deadline_s") return moment(value);
    return name.endsWith("_s") ? duration(value) : figure(value);
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function Spec({ of, curve }: { of: Schemas["WhyDocument"]["spec"]; curve: Schemas["WhyDocument"]["curve"] }) {
  const fields = Object.entries(of).filter(([name]) => name !== "rates" && name !== "program");
  const program = of["program"];
  const points = curve?.points ?? [];
  return (
    <Card title="As it was submitted">
      <dl class="facts">
        {fields.map(([name, value]) => (
          <div key={name}>
            <dt>{WORDS[name] ?? name.replace(/_/g, " ")}</dt>
            <dd class="text">{said(name, value)}</dd>
          </div>
        ))}
      </dl>
      {program !== null && program !== undefined && (
        <details>
          <summary>Its program</summary>
          <pre class="program" tabIndex={0}>
            {JSON.stringify(program, null, 2)}
          </pre>
        </details>
      )}
      {points.length > 0 && (
        <table>
          <caption>
            Its speed by size {curve?.pool ? `in ${curve.pool}` : "on GPUs of speed 1"}, as far as it is known
          </caption>
          <thead>
            <tr>
              <th scope="col" class="number">
                GPUs
              </th>
              <th scope="col" class="number">
                samples a second
              </th>
              <th scope="col">from</th>
            </tr>
          </thead>
          <tbody>
            {points.map((one) => (
              <tr key={one.gpus}>
                <td class="number">{count(one.gpus)}</td>
                <td class="number">{figure(one.samples_per_s)}</td>
                <td class="quiet">{one.measured ? `measured ${duration(one.age_s)} ago` : "guessed"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Card>
  );
}
