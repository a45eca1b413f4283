/** What if: another policy, other nodes, other demand, from any entry, beside a control. */
import { route } from "../route.ts";
import { Form } from "../what-if/form.tsx";
import { Branches } from "../what-if/list.tsx";
import { BranchPage } from "../what-if/result.tsx";
import "../journal.css";
import "../rules/rules.css";
import "../what-if/what-if.css";

export function WhatIf() {
  const { query, entry } = route.value;
  // Another preview is another form.
  const asked = [query["change"], query["request"], query["policy"], query["at"], query["job"], entry].join(" ");
  return (
    <div class="stack">
      <Form key={asked} />
      <Branches />
    </div>
  );
}

export function OneBranch({ id }: { id: string }) {
  return <BranchPage id={id} />;
}
