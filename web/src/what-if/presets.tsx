/** What may be tried for one job: ways in which it might start sooner, each a change of the form. */
import { useData } from "../data.ts";
import { plural } from "../format.ts";
import { JobLink } from "../parts.tsx";
import type { Given } from "./given.ts";

interface Preset {
  said: string;
  change: Partial<Given>;
}

const HIGHEST = 1000;

interface Shown {
  job: string;
  entry: string;
  /** Pools of training nodes. */
  pools: readonly string[];
  choose: (change: Partial<Given>) => void;
}

export function Presets({ job, entry, pools, choose }: Shown) {
  const found = useData("/api/v1/jobs/{job}", { job, entry: entry === "" ? null : Number(entry) });
  const row = found.data?.job;
  const verb = (args: Record<string, unknown>): Partial<Given> => ({
    requests: JSON.stringify({ ...args, job }),
  });
  const presets: Preset[] = pools.flatMap((pool) => [
    { said: `one node more in ${pool}`, change: { add: { [pool]: "1" } } },
    { said: `two nodes more in ${pool}`, change: { add: { [pool]: "2" } } },
  ]);
  if (row?.state === "queued" || row === undefined) {
    presets.push({ said: "the highest priority", change: verb({ verb: "job.priority", priority: HIGHEST }) });
  }
  if (row != null && row.gpus_max > row.gpus_min) {
    presets.push({
      said: `its smallest size, ${plural(row.gpus_min, "GPU")}`,
      change: verb({ verb: "job.scale", gpus: row.gpus_min }),
    });
  }
  if (row?.hold != null) {
    presets.push({ said: "release it", change: verb({ verb: "job.release" }) });
  }
  return (
    <div class="presets" role="group" aria-label="Try for this job">
      <span>
        Try for <JobLink job={job} />:
      </span>
      {presets.map((one) => (
        <button type="button" key={one.said} onClick={() => choose({ add: {}, requests: "", ...one.change })}>
          <bdi>{one.said}</bdi>
        </button>
      ))}
    </div>
  );
}
