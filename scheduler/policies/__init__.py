"""The pure policies: numpy in, a plan with its reasons out.

- `interface`: what a policy sees and gives; `checked`: what of a plan is believed; `registry`: all
  of them by name; `catalogue`: a line on each; `spec`: their options from text;
- `tide`: the default;
- `literature`: the others, one file a paper or a classic;
- `parts`: pure modules that several policies are made of: curves, loans and forecasts, sharing
  out, placement, reasons.
"""
