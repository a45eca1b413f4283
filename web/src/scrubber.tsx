export function Scrubber() {
  return <footer class="scrubber" aria-label="Moment of the log" />;
}
