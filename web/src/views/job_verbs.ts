/** What people may ask of jobs, in words. */
import { plural } from "../format.ts";
import { type JobRow, ended } from "../states.ts";
import { ask } from "../verbs.tsx";

export interface JobVerb {
  verb: string;
  title: string;
  /** What follows from it. */
  about: string;
  danger?: boolean;
  /** A number that goes with it. */
  number?: { field: string; label: string; of: (row: JobRow) => number; least: number; most: (row: JobRow) => number };
  /** Whether it is offered for many at once. */
  bulk: boolean;
  /** Whether it makes sense for a job. */
  fits: (row: JobRow) => boolean;
}

export const JOB_VERBS: readonly JobVerb[] = [
  {
    verb: "job.hold", title: "Hold", bulk: true,
    about: "A job that waits is not started; one that runs saves its work, leaves its GPUs and waits. Until it is released.",
    fits: (row) => !ended(row.state) && row.hold === null,
  },
  {
    verb: "job.release", title: "Release", bulk: true,
    about: "The policy decides on it again: whether it starts, and how large.",
    fits: (row) => row.hold !== null || row.set_size !== null,
  },
  {
    verb: "job.requeue", title: "Requeue", bulk: true,
    about: "It saves its work, leaves its GPUs, and waits in the queue like others.",
    fits: (row) => row.gpus > 0 && !ended(row.state),
  },
  {
    verb: "job.priority", title: "Priority", bulk: false,
    about: "What the policy prefers it by, among jobs that are alike otherwise; 0 is usual.",
    number: { field: "priority", label: "Priority, −1000 to 1000", of: (row) => row.priority, least: -1000, most: () => 1000 },
    fits: (row) => !ended(row.state),
  },
  {
    verb: "job.scale", title: "Size", bulk: false,
    about: "It runs on so many GPUs, and on no other number, until it is released.",
    number: {
      field: "gpus", label: "GPUs", of: (row) => row.gpus || row.gpus_min,
      least: 1, most: (row) => row.gpus_max,
    },
    fits: (row) => !ended(row.state) && row.gpus_max > row.gpus_min,
  },
  {
    verb: "job.cancel", title: "Cancel", bulk: true, danger: true,
    about: "It is taken back for good. If it runs, its workers are stopped.",
    fits: (row) => !ended(row.state),
  },
];

/** Ask one verb of some jobs, after a confirmation. */
export function askJobs(verb: JobVerb, rows: readonly JobRow[], done?: () => void): void {
  ask({
    title: rows.length === 1 ? `${verb.title} ${rows[0]?.job}` : `${verb.title} ${plural(rows.length, "job")}`,
    about: verb.about,
    requests: rows.map((row) => ({ name: row.job, args: { verb: verb.verb, job: row.job } })),
    ...(verb.danger ? { danger: true } : {}),
    ...(done ? { done } : {}),
  });
}

/** Ask a verb that goes with a number of one job. */
export function askNumber(verb: JobVerb, row: JobRow): void {
  const { number } = verb;
  if (number === undefined) return;
  ask({
    title: `${verb.title} of ${row.job}`,
    about: verb.about,
    requests: [{ name: row.job, args: { verb: verb.verb, job: row.job, [number.field]: number.of(row) } }],
    number: {
      field: number.field, label: number.label, value: number.of(row),
      least: number.least, most: number.most(row),
    },
  });
}
