"""What several policies share: curves, loans, forecasts, placement, sharing out."""
