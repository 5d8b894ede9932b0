"""sre.yaml: typed settings. ``models`` are the fields; ``load`` reads, checks and explains."""
