"""What goes to monitoring systems: metrics for Prometheus and OpenTelemetry, and calls as spans.

In: snapshots as they are served, recorded calls. Out: families, messages and requests. Must not send them.
"""
