/** The policy in force, who set it, what is paused; another policy, with a preview. */
import { useState } from "preact/hooks";
import type { Schemas } from "../api.ts";
import { capital } from "../format.ts";
import { may } from "../me.ts";
import { By, Card } from "../parts.tsx";
import { href } from "../route.ts";
import { AskButton, ask } from "../verbs.tsx";
import { PolicyField } from "./policy-field.tsx";

type Rules = Schemas["RulesAnswer"];

export function PolicyCard({ of }: { of: Rules }) {
  const { policy, pauses } = of;
  const [line, setLine] = useState("");
  const [recall, setRecall] = useState(false);
  const sets = may("policy.set");
  return (
    <Card title="Policy in force">
      <p class="policy-line">
        <code><bdi class="text">{policy.policy}</bdi></code>{" "}
        <span class="quiet">
          {policy.set_by === null ? (
            "as configured"
          ) : (
            <>
              set <By of={{ ...policy, by: policy.set_by }} />; the configuration says <code><bdi class="text">{policy.configured}</bdi></code>
            </>
          )}
        </span>
      </p>
      <Pauses of={pauses} />
      {sets && (
        <form
          class="filters policy-form"
          onSubmit={(event) => {
            event.preventDefault();
            ask({
              title: "Set this policy",
              about: "The scheduler decides by it from the next entry on, and after restarts too.",
              requests: [{ name: line, args: { verb: "policy.set", line: line.trim(), recall } }],
              done: () => setLine(""),
            });
          }}
        >
          <PolicyField value={line} onInput={setLine} label="another policy, with options if wanted" />
          <label class="check">
            <input type="checkbox" checked={recall} onChange={(event) => setRecall(event.currentTarget.checked)} />
            call loans back first
          </label>
          <a class="button" href={href({ view: "what-if", query: { policy: line.trim() } })}>
            Try it first
          </a>
          <button type="submit" disabled={line.trim() === ""}>
            Set…
          </button>
          {policy.set_by !== null && (
            <AskButton
              label="Clear"
              of={{
                title: "Go back to the configured policy",
                about: `The configuration says ${policy.configured}.`,
                requests: [{ name: policy.configured, args: { verb: "policy.clear" } }],
              }}
            />
          )}
        </form>
      )}
    </Card>
  );
}

function Pauses({ of }: { of: Rules["pauses"] }) {
  const rows = Object.entries(of);
  if (!rows.length) return <p class="quiet">Nothing is paused.</p>;
  return (
    <ul class="standing">
      {rows.map(([what, pause]) => (
        <li key={what}>
          {what === "all" ? "Starts and loans" : capital(what)} are paused <By of={pause} />
        </li>
      ))}
    </ul>
  );
}
