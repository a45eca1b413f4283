/** The way to the form, for who may submit jobs; where nobody can, it says why. */
import { useId } from "preact/hooks";
import { head } from "../live.ts";
import { may } from "../me.ts";
import { href } from "../route.ts";

export function SubmitLink() {
  const id = useId();
  const closed = head.value?.closed ?? null;
  if (!may("job.submit")) return null;
  if (closed === null) {
    return (
      <a class="button" href={href({ view: "submit" })}>
        Submit a job
      </a>
    );
  }
  return (
    <>
      <small id={id}>Nothing can be asked: {closed}.</small>
      <button type="button" disabled aria-describedby={id}>
        Submit a job
      </button>
    </>
  );
}
