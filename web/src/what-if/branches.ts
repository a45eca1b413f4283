/** Branches as the gateway has them: asked for, followed, ended. */
import { useEffect, useState } from "preact/hooks";
import { type Problem, type Schemas, problemFrom, read, send } from "../api.ts";
import { repeated } from "../repeated.ts";

/** What is done otherwise than in the control; what is absent stays as it is. */
export type Change = Partial<Omit<Schemas["ChangeBody"], "requests">> & {
  /** Verbs as somebody wrote them: which they may be, the gateway says. */
  requests?: Record<string, unknown>[];
};

export interface Asked {
  entry: number | null;
  hours: number;
  runs: number;
  change: Change;
}

export type Branch = Schemas["BranchAnswer"];
export type Result = Schemas["BranchResult"];
/** What came of a stretch of time: GPU hours, hours and counts. */
export type Outcome = Schemas["Outcome"];
export type Part = keyof Outcome;
export type Ranges = Readonly<Record<string, readonly [number, number] | null>>;
export type TideRow = Schemas["TideRow"];
export type Deed = Schemas["DeedRow"];

const API = "/api/v1/branches";

/** Ask for a branch of a cell. Throws a Problem that names what is wrong. */
export function begin(cell: string | null, wanted: Asked): Promise<Branch> {
  return send(API, { method: "POST", cell, body: wanted });
}

/** End a branch that waits or runs; forget one that is over. */
export function end(branch: string): Promise<Branch> {
  return send(`${API}/${encodeURIComponent(branch)}`, { method: "DELETE" });
}

/** Where a branch can be downloaded as a log that replays. */
export function logOf(branch: string): string {
  return `${API}/${encodeURIComponent(branch)}/log`;
}

/** By which name a branch that is done is one more cell to look at. */
export function cellOf(branch: string): string {
  return `branch-${branch}`;
}

const AGAIN_S = 0.7;

export interface Followed<T> {
  data: T | null;
  problem: Problem | null;
  /** Read once more, as after something was ended. */
  again: () => void;
}

function useFollowed<T>(url: string, goesOn: (data: T) => boolean): Followed<T> {
  const [data, setData] = useState<T | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const look = async (signal: AbortSignal): Promise<number | null> => {
      try {
        const found = (await read(url, signal)) as T;
        setData(found);
        setProblem(null);
        return goesOn(found) ? AGAIN_S : null;
      } catch (error) {
        if (signal.aborted) return null;
        const told = problemFrom(error);
        setProblem(told);
        return told.status === 404 ? null : 5 * AGAIN_S;
      }
    };
    return repeated(look, 0).end;
  }, [url, round]);
  return { data, problem, again: () => setRound((was) => was + 1) };
}

/** Whether it waits or runs. */
export const isOpen = (one: Branch): boolean => one.state === "waiting" || one.state === "running";

/** Follow a branch until it is over. */
export function useBranch(branch: string): Followed<Branch> {
  return useFollowed<Branch>(`${API}/${encodeURIComponent(branch)}`, isOpen);
}

/** Follow the list of branches while one of them goes on. */
export function useBranches(): Followed<{ branches: Branch[] }> {
  return useFollowed<{ branches: Branch[] }>(API, (found) => found.branches.some(isOpen));
}
