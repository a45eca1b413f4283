/** Small pictures of buttons; each button says in words what it does. */
const PATHS = {
  first: "M4 3v10M13 3 6 8l7 5z",
  back: "M11 3 5 8l6 5z",
  play: "M4 3l9 5-9 5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  forward: "M5 3l6 5-6 5z",
  last: "M12 3v10M3 3l7 5-7 5z",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6 13 13M13 3l-1.4 1.4M4.4 11.6 3 13",
  moon: "M13.5 10A6 6 0 0 1 6 2.5 6 6 0 1 0 13.5 10z",
  help: "M5.5 6a2.5 2.5 0 1 1 3.4 2.3c-.6.3-.9.7-.9 1.4v.3M8 12.6v.1",
} as const;
const STROKED = new Set(["search", "sun", "help"]);

export function Icon({ of }: { of: keyof typeof PATHS }) {
  const stroked = STROKED.has(of);
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path
        d={PATHS[of]}
        fill={stroked ? "none" : "currentColor"}
        stroke="currentColor"
        stroke-width={stroked ? 1.6 : 1}
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}
