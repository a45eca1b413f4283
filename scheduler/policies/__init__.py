"""The pure policies: one module per policy family, numpy in and out."""
