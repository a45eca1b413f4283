"""Whether a job is asked for by a key that another one was submitted with before."""

from pydantic import ValidationError

from console.source import Before
from console.submission import FLAGS, PROGRAM_FLAGS
from schemas.events import JobSubmitted

#: A job is on the log so many seconds at most after its deadline was worked out here: its code is
#: stored meanwhile.
_WITHIN_S = 600.0


def asked_otherwise(
    before: Before, submission: JobSubmitted, deadline_after_s: float | None, *, own: bool
) -> str:
    """Name what differs from the job that was submitted with the same key before.

    It is empty if nothing does, or if it is not known what was asked for then.

    Args:
        before: What was asked for then.
        submission: What is asked for now.
        deadline_after_s: In which time from now it must be done.
        own: Whether it is of the tenant of who asks, whom this command does not know.
    """
    if before.args is None:
        return ""
    if before.args["verb"] != "job.submit":
        return f"the verb ({before.args['verb']})"
    try:  # a gateway of another release may not know of every field
        then = JobSubmitted.model_validate(before.args["spec"]).model_dump(mode="json")
    except ValidationError:  # or name them otherwise
        return ""
    now = submission.model_dump(mode="json")
    if own:
        now["tenant"] = then["tenant"]
    first_s = then["deadline_s"]
    if first_s is not None and deadline_after_s is not None:
        # It counts from when it was asked for, so it is another moment in each try.
        differs_s = first_s - before.asked_s - deadline_after_s
        now["deadline_s"] = first_s if abs(differs_s) <= _WITHIN_S else None
    found: list[str] = []
    for name, new in now.items():
        old = then[name]
        if new == old:
            continue
        if name == "program" and None not in (new, old) and new["argv"] == old["argv"]:
            parts = [part.removesuffix("_sha256") for part in new if new[part] != old[part]]
            found += [PROGRAM_FLAGS.get(part, f"program.{part}") for part in parts]
        else:
            found.append(FLAGS.get(name, name))
    return " and ".join(dict.fromkeys(found))
