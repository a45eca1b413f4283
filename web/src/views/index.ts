/** Every view of the console, in the order of the navigation. */
import type { ComponentType } from "preact";
import { Compare } from "./compare.tsx";
import { Decisions } from "./decisions.tsx";
import { Entry } from "./entry.tsx";
import { Fleet } from "./fleet.tsx";
import { Job } from "./job.tsx";
import { Jobs } from "./jobs.tsx";
import { Loans } from "./loans.tsx";
import { Submit } from "./submit.tsx";
import { Tenants } from "./tenants.tsx";
import { Health } from "./health.tsx";
import { DeadLetters } from "./dead-letters.tsx";
import { Audit } from "./audit.tsx";
import { OneBranch, WhatIf } from "./what-if.tsx";
import { Tide } from "./tide.tsx";

export interface View {
  /** The first part of its address. */
  path: string;
  title: string;
  List: ComponentType;
  /** What is shown at path/ID; without it, List is shown there too. */
  One?: ComponentType<{ id: string }>;
  /** Roles that may open it; without it, everybody. */
  roles?: readonly string[];
  /** The path of the view that leads to it; the navigation has that one alone. */
  within?: string;
}

const OPERATORS = ["operator", "admin"];

export const VIEWS: readonly View[] = [
  { path: "tide", title: "Tide", List: Tide },
  { path: "fleet", title: "Fleet", List: Fleet },
  { path: "jobs", title: "Jobs", List: Jobs, One: Job },
  { path: "submit", title: "Submit a job", List: Submit, within: "jobs" },
  { path: "loans", title: "Loans", List: Loans },
  { path: "decisions", title: "Decisions", List: Decisions, One: Entry },
  { path: "what-if", title: "What-if", List: WhatIf, One: OneBranch },
  { path: "compare", title: "Compare", List: Compare },
  { path: "tenants", title: "Tenants", List: Tenants },
  { path: "health", title: "Health", List: Health },
  { path: "dead-letters", title: "Dead letters", List: DeadLetters, roles: OPERATORS },
  { path: "audit", title: "Audit", List: Audit },
];

export function viewOf(path: string): View | undefined {
  return VIEWS.find((one) => one.path === path);
}

/** The view whose name is nearest to one that there is not; none, if none is near. */
export function nearestView(path: string): View | undefined {
  const wanted = path.toLowerCase();
  const far = (view: View): number =>
    edits(wanted, view.path);
  const [nearest] = VIEWS.map((view) => ({ view, far: far(view) })).sort((one, other) => one.far - other.far);
  return nearest !== undefined && nearest.far <= Math.max(2, wanted.length / 3) ? nearest.view : undefined;
}

/** How many letters must be put in, left out or changed to make one word the other. */
function edits(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (let at = 1; at <= one.length; at += 1) {
    const next = [at];
    for (let to = 1; to <= other.length; to += 1) {
      const same = one[at - 1] === other[to - 1] ? 0 : 1;
      next.push(Math.min((next[to - 1] ?? 0) + 1, (row[to] ?? 0) + 1, (row[to - 1] ?? 0) + same));
    }
    row = next;
  }
  return row[other.length] ?? 0;
}
