"""How jobs really run: one module per published simulator, or for made-up jobs."""
