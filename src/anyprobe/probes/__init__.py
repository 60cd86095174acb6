"""Probes and sessions: what joins everything below."""
