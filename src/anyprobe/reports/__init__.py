"""Results for people: tables and histograms made from snapshots."""
