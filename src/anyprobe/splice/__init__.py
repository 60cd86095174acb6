"""The splice engine: plan, prepare, arm, retire."""
